"""The operations of the CuPy engine on NumPy arrays, so that its mathematics is tried where there is no GPU.

Each says in NumPy what the kernel of the same name in `tmm_backends._cupy.sources` does.
"""

import contextlib

import numpy as np

from tmm_backends._cupy.engine import CupyEngine
from tmm_backends._cupy.operations import BLOCK, FAR, NEVER, ZERO, Survey


class Twin:
    """See `tmm_backends._cupy.operations.Operations`."""

    xp = np

    def survey(self, signals, real, *, last):
        n, *column = signals.shape
        x = wide(signals)
        finite, missing = np.isfinite(x), -n % BLOCK
        times = np.where(finite, NEVER if last else FAR, np.arange(n).reshape(-1, 1, 1, 1)).astype(np.int32)

        def blocks(a, fill):
            a = np.pad(a, [(0, missing), (0, 0), (0, 0), (0, 0)], constant_values=fill)
            return a.reshape(-1, BLOCK, *column)

        marks = blocks(times, NEVER).max(1) if last else blocks(times, FAR).min(1)
        x = np.where(finite, x, 0)
        peaks = np.maximum(np.abs(x.real), np.abs(x.imag)).max(0).astype(real)
        exponents = np.where(peaks > 0, np.frexp(peaks)[1], ZERO).astype(np.int32)
        scaled = scaled_by(x, -exponents)
        norms = np.sqrt((scaled.real**2 + scaled.imag**2).sum(0)).astype(real)
        return Survey(exponents, norms, marks.max(0) if last else marks.min(0), marks)

    def load(self, signals, exponents, length, dtype, *, modulate):
        n, *column = signals.shape
        buffer = np.zeros((length, *column), dtype)
        x = wide(signals)
        buffer[:n] = scaled_by(np.where(np.isfinite(x), x, 0), -exponents)
        return buffer * modulation(length, dtype) if modulate else buffer

    def transform(self, buffer, *, inverse):
        buffer[...] = np.fft.ifft(buffer, axis=0, norm="forward") if inverse else np.fft.fft(buffer, axis=0)

    def apply_filters(self, spectra, filters, relative_scales, width, missing, *, adjoint):
        kernel_size = filters.shape[-1]
        behind = width + kernel_size - 1 - missing - spectra.shape[-1]
        padded = np.pad(spectra, [(0, 0), (0, 0), (0, 0), (missing, behind)])
        total = 0
        for i in range(kernel_size):
            start = kernel_size - 1 - i if adjoint else i
            product = padded[..., start : start + width] * filters[..., i : i + 1]
            total = total + scaled_by(product, relative_scales[..., i])
        return total

    def cross_spectrum(self, x, g, relative_scales):
        return scaled_by(x.conj() * g, relative_scales).sum((1, 3))

    def store(self, buffer, out, exponents, noise, *, modulate):
        y = (buffer * modulation(len(buffer), buffer.dtype).conj()).real if modulate else buffer
        y = y[: len(out)] / y.real.dtype.type(len(buffer))
        result, size = scaled_by(y, exponents), np.abs(y)
        nearer = np.where(size > noise, 1 - noise / np.where(size > 0, size, 1), 0)
        out[...] = np.where(np.isfinite(result), result, scaled_by(y * nearer, exponents))

    def write_nan(self, out, signals, survey, first, reach, lags, kernel_size, *, adjoint):
        n, rows, heads, width = signals.shape
        bad = ~np.isfinite(wide(signals))
        times = np.arange(n)
        for r in range(rows):
            far = reach[r] if reach is not None else times[::-1] if adjoint else times
            lag = times - times[:, None] if adjoint else times[:, None] - times
            seen = (lag >= 0) & (lag <= np.minimum(far, lags - 1)[:, None])
            for h in range(heads):
                not_finite = np.broadcast_to((far >= first[h])[:, None], (n, width)).copy()
                for k in range(kernel_size):
                    near = np.zeros((n, width), bool)
                    if k < width:
                        shown = bad[:, r, h, k:] if adjoint else bad[:, r, h, : width - k]
                        near[:, slice(0, width - k) if adjoint else slice(k, None)] = seen @ shown
                    not_finite |= near
                out[:, r, h][not_finite] = np.nan


def wide(signals):
    """Return signals with halves widened."""
    return signals.astype(np.float32) if signals.dtype.itemsize == 2 else signals


def scaled_by(a, exponents):
    """Return `a * 2**exponents`; `ldexp` knows no complex numbers."""
    if a.dtype.kind != "c":
        return np.ldexp(a, exponents)
    result = np.empty(np.broadcast_shapes(a.shape, exponents.shape), a.dtype)
    result.real, result.imag = np.ldexp(a.real, exponents), np.ldexp(a.imag, exponents)
    return result


def modulation(length, dtype):
    angles = np.pi * np.arange(length) / (2 * length)
    return np.exp(1j * angles).astype(dtype).reshape(-1, 1, 1, 1)


class HostEngine(CupyEngine):
    """The engine on NumPy arrays, by operations on them."""

    name = "host"
    devices = ("cpu",)

    def receive(self, array):
        return np.asarray(array)

    def on_stream_of(self, array):
        return contextlib.nullcontext()

    def unsupported(self, request):
        return None

    def matmul(self, *arrays, **options):
        with np.errstate(all="ignore"):
            return super().matmul(*arrays, **options)

    def correlate(self, *arrays, **options):
        with np.errstate(all="ignore"):
            return super().correlate(*arrays, **options)
