"""The algorithms of products and correlations on blocks of channels: by transforms, or by direct sums.

A block of signals is `(n, rows, heads, channels)`, time first; lags are `(heads, m, lags)`. Where the kernel has
m > 1 rows, a block that is read carries m - 1 channels more than one that is written, before them for the product and
after them for the adjoint. `row_scales`, `(1, rows, heads, channels, m)`, are factors of what an output reads of each
row of the kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from tmm_core.backend import fast_length

__all__ = ["Algorithm", "Direct", "Fourier", "kernel_row"]

BLOCK = 64
"""Output times of a direct sum at once. On two cores, 32 took up to 1.6 times as long, 128 from 0.9 to 1.9 times."""


class Algorithm(Protocol):
    """One way to compute products and correlations of blocks."""

    span: int
    """Times of a signal that are in use at once."""

    def prepare_filters(self, w: Tensor, *, adjoint: bool) -> Tensor:
        """Return the lags prepared for `product`."""

    def product(self, filters: Tensor, x: Tensor, out: Tensor, *, adjoint: bool, row_scales: Tensor | None) -> None:
        """Write the product, or the adjoint product, of one block to `out`."""

    def new_correlation(self, heads: int, kernel_size: int) -> Tensor:
        """Return a total of zeros, to which `add_correlation` adds; its form depends on the algorithm."""

    def add_correlation(self, total: Tensor, x: Tensor, g: Tensor, *, row_scales: Tensor | None) -> None:
        """Add the correlation of one block to `total`."""

    def finish_correlation(self, total: Tensor, count: int) -> Tensor:
        """Return the correlation `(heads, m, count)` of a total."""


class Fourier:
    """Right-angle convolution for reals, zero-padded convolution for complex values.

    With t[j] = exp(i pi j / 2N), the cyclic convolution of length N of t*x and t*w, times conj(t), has the causal
    product as its real part and what wraps around as its imaginary part.
    """

    def __init__(self, n: int, lags: int, dtype: torch.dtype, device: torch.device) -> None:
        """Prepare for signals of length `n` and at most as many lags."""
        self.span = n
        self.length = fast_length(n + lags - 1 if dtype.is_complex else n)
        self.dtype = torch.complex128 if dtype in (torch.float64, torch.complex128) else torch.complex64
        self.device = device
        self.modulation = None if dtype.is_complex else _modulation(self.length, self.dtype, device)

    def prepare_filters(self, w: Tensor, *, adjoint: bool) -> Tensor:
        """Return the lags' spectra, conjugate for the adjoint, as `(N, 1, heads, 1, kernel)`."""
        spectra = self._spectrum(w.movedim(-1, 0))[:, None, :, None]
        return spectra.conj_physical_() if adjoint else spectra

    def product(self, filters: Tensor, x: Tensor, out: Tensor, *, adjoint: bool, row_scales: Tensor | None) -> None:
        """Write the product, or the adjoint product, of one block to `out`."""
        spectrum = self._spectrum(x)
        kernel_size = filters.shape[-1]
        if kernel_size == 1:
            return self._write_signal(spectrum.mul_(filters[..., 0]), out)
        total = torch.zeros((self.length, *out.shape[1:]), dtype=self.dtype, device=out.device)
        for i in range(kernel_size):
            term = kernel_row(spectrum, i, kernel_size, adjoint) * filters[..., i]
            total.add_(term if row_scales is None else term.mul_(row_scales[..., i]))
        self._write_signal(total, out)

    def new_correlation(self, heads: int, kernel_size: int) -> Tensor:
        """Return a sum of spectra, zeros of `(N, heads, m)`."""
        return torch.zeros((self.length, heads, kernel_size), dtype=self.dtype, device=self.device)

    def add_correlation(self, total: Tensor, x: Tensor, g: Tensor, *, row_scales: Tensor | None) -> None:
        """Add the products of the spectra, summed over rows and channels."""
        kernel_size = total.shape[-1]
        sources, targets = self._spectrum(x).conj_physical_(), self._spectrum(g)
        for i in range(kernel_size):
            term = kernel_row(sources, i, kernel_size, False) * targets
            total[..., i] += (term if row_scales is None else term.mul_(row_scales[..., i])).sum((1, 3))

    def finish_correlation(self, total: Tensor, count: int) -> Tensor:
        """Transform a sum of spectra back, once for each head and kernel row."""
        dtype = self.dtype if self.modulation is None else self.dtype.to_real()
        out = torch.empty((count, *total.shape[1:]), dtype=dtype, device=self.device)
        self._write_signal(total, out)
        return out.movedim(0, -1)

    def _spectrum(self, a: Tensor) -> Tensor:
        """Return the transform over the first axis: of `t` times the signal for reals."""
        count = a.shape[0]
        modulated = torch.empty((self.length, *a.shape[1:]), dtype=self.dtype, device=a.device)
        if self.modulation is None:
            modulated[:count] = a
        else:
            torch.mul(a, _along(self.modulation[0][:count], a.ndim), out=modulated[:count])
        modulated[count:] = 0
        # Transforms over the first axis need no transposition: with copies to time-last blocks and back, the product
        # took 48 instead of 40 ms on (8, 1024, 512), 58 instead of 44 ms on (1, 8192, 512) (two cores).
        spectrum: Tensor = torch.fft.fft(modulated, dim=0)
        return spectrum

    def _write_signal(self, spectrum: Tensor, out: Tensor) -> None:
        """Write the first times of the inverse transform to `out`, times `conj(t)` for reals."""
        result = torch.fft.ifft(spectrum, dim=0)[: out.shape[0]]
        if self.modulation is None:
            out.copy_(result)
        else:
            out.copy_(result.mul_(_along(self.modulation[1][: out.shape[0]], out.ndim)).real)


class Direct:
    """Direct sums as matrix products, `block` output times at once.

    Their rows of the matrix T[t, s] = w[t - s] are the same strip for all blocks. So half of a full matrix is
    multiplied, of a banded one the band, and no whole matrix is in memory.
    """

    def __init__(self, n: int, lags: int, dtype: torch.dtype, device: torch.device) -> None:
        """Prepare for signals of length `n` and at most as many lags."""
        self.n, self.dtype, self.device = n, dtype, device
        self.block = min(n, BLOCK)
        self.span = min(n, lags - 1 + self.block)  # the input times that a block of outputs reads

    def prepare_filters(self, w: Tensor, *, adjoint: bool) -> Tensor:
        """Return the strips, `(kernel, heads, block, span)`: for the last times, or the first for the adjoint."""
        padded = w.new_zeros((*w.shape[:-1], self.block - 1 + self.span), dtype=self.dtype)
        padded[..., self.block - 1 : self.block - 1 + w.shape[-1]] = w.conj() if adjoint else w
        # The adjoint's row s reads w[t - s] at time t: windows of [0, ..., 0, w], each row one entry earlier.
        windows = (padded if adjoint else padded.flip(-1)).unfold(-1, self.span, 1)
        return windows.flip(-2).movedim(1, 0)

    def product(self, filters: Tensor, x: Tensor, out: Tensor, *, adjoint: bool, row_scales: Tensor | None) -> None:
        """Write the product, or the adjoint product, of one block of channels into `out`."""
        kernel_size = filters.shape[0]
        for (rows, lags), outputs, inputs in self._blocks(adjoint):
            y: Tensor | None = None
            for i in range(kernel_size):
                source = self._columns(
                    kernel_row(x[inputs], i, kernel_size, adjoint), None if row_scales is None else row_scales[..., i]
                )
                strip = filters[i, :, rows, lags]
                # Into contiguous memory: into a part of a larger tensor, PyTorch would multiply head by head.
                y = torch.bmm(strip, source) if y is None else y.baddbmm_(strip, source)
            target = out[outputs]
            target.copy_(y.view(*y.shape[:2], *target.shape[1::2]).permute(1, 2, 0, 3))  # type: ignore[union-attr]

    def new_correlation(self, heads: int, kernel_size: int) -> Tensor:
        """Return a strip of zeros, and `block` more to the left of each row: `(kernel, heads, block, block + span)`."""
        return torch.zeros(
            (kernel_size, heads, self.block, self.block + self.span), dtype=self.dtype, device=self.device
        )

    def add_correlation(self, total: Tensor, x: Tensor, g: Tensor, *, row_scales: Tensor | None) -> None:
        """Add the products of outputs and of the inputs that they read, at the place of their lag in the strip."""
        strips, kernel_size = total[..., self.block :], total.shape[0]
        for (rows, lags), outputs, inputs in self._blocks(adjoint=False):
            for i in range(kernel_size):
                targets = self._columns(g[outputs], None if row_scales is None else row_scales[..., i])
                sources = self._columns(kernel_row(x[inputs], i, kernel_size, False), None)
                strips[i, :, rows, lags].baddbmm_(targets, sources.mH)

    def finish_correlation(self, total: Tensor, count: int) -> Tensor:
        """Return the sums along diagonals, which are columns of a view whose rows are one entry longer."""
        kernel_size, heads, block, row = total.shape
        steps = (*total.stride()[:2], row + 1, 1)
        # In the first row, lag 0 is at column span - block of the strip, and each lag is left of the one before.
        first = total.storage_offset() + self.span - count + 1
        diagonals = total.as_strided((kernel_size, heads, block, count), steps, first)
        return diagonals.sum(-2).flip(-1).movedim(0, 1)

    def _columns(self, a: Tensor, row_scales: Tensor | None) -> Tensor:
        """Return signals, scaled, as `(heads, times, rows * channels)`."""
        a = a.to(self.dtype)
        a = a if row_scales is None else a * row_scales
        return a.permute(2, 0, 1, 3).reshape(a.shape[2], a.shape[0], -1)

    def _blocks(self, adjoint: bool) -> Iterator[tuple[tuple[slice, slice], slice, slice]]:
        """Yield, for each block, the rows and columns of the strip, and the times of outputs and of inputs."""
        for start in range(0, self.n, self.block):
            stop = min(start + self.block, self.n)
            if adjoint:
                end = min(self.n, start + self.span)
                yield (slice(stop - start), slice(end - start)), slice(start, stop), slice(start, end)
            else:
                first = max(0, stop - self.span)
                rows, columns = slice(self.block - (stop - start), None), slice(self.span - (stop - first), None)
                yield (rows, columns), slice(start, stop), slice(first, stop)


def kernel_row(a: Tensor, i: int, kernel_size: int, adjoint: bool) -> Tensor:
    """Return the channels of a block that kernel row `i` reads for each output channel."""
    start = kernel_size - 1 - i if adjoint else i
    return a[..., start : a.shape[-1] - kernel_size + 1 + start]


def _along(a: Tensor, ndim: int) -> Tensor:
    """Return a vector with `ndim` axes, along the first of them."""
    return a.reshape(-1, *(1,) * (ndim - 1))


@functools.lru_cache(maxsize=16)
def _modulation(length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return t[m] = exp(i pi m / 2N) for m < N, rounded once from float64, and its conjugate."""
    # Not in inference mode, so that the cached tensors can be used outside of it, too.
    with torch.inference_mode(False):
        angle = torch.arange(length, dtype=torch.float64, device=device) * (math.pi / (2 * length))
        wave = torch.polar(torch.ones_like(angle), angle)
        return wave.to(dtype), wave.conj().resolve_conj().to(dtype)
