"""A backend for `tmm_core` over `scipy.fft`, complete: an engine that serves NumPy arrays, and by bridges all others.

Signals are padded with zeros to twice their length, which is short and plain; the engines of `tmm_backends` are faster.
Documents, direct sums and numbers of extreme sizes need more, and are handed to the definition.
"""

from __future__ import annotations

from tmm_core.backend import (
    Array,
    Backend,
    Method,
    Request,
    computed_in,
    definition_correlate,
    definition_matmul,
    is_real,
    share,
    shift_channels,
)

MODERATE = 2.0**-30, 2.0**30  # magnitudes whose sums of products are in the range of float32


class ScipyEngine:
    """Products of NumPy arrays by transforms; `scipy` is imported when the first engine is made."""

    name = "scipy"
    devices = ("cpu",)

    def __init__(self) -> None:
        import numpy
        import scipy.fft

        self.np, self.fft = numpy, scipy.fft

    def owns(self, array: Array) -> bool:
        return isinstance(array, self.np.ndarray) and array.dtype.isnative

    def receive(self, array: Array) -> Array:
        return share(array, self.np)

    def unsupported(self, request: Request) -> str | None:
        return None if request.device == "cpu" else f"SciPy computes on the CPU, not on {request.device!r}"

    def matmul(self, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
        if method == "direct" or segment_ids is not None or not self._moderate(w, x):
            return definition_matmul(w, x, adjoint=adjoint, method=method, segment_ids=segment_ids)
        dtype, (w, x) = computed_in(w, x)
        (heads, kernel_size, _), (n, d) = w.shape, x.shape[-2:]
        W = self._spectra(w[..., :n], n, -1)  # (h, m, N)
        W = self.np.repeat(W.conj() if adjoint else W, d // heads, axis=0).transpose(1, 2, 0)  # (m, N, d)
        X = self._spectra(x, n, -2)  # (..., N, d)
        offsets = range(1 - kernel_size, 1) if adjoint else range(kernel_size - 1, -1, -1)
        Y = sum(row * shift_channels(X, offset, heads) for row, offset in zip(W, offsets, strict=True))
        y = self.fft.ifft(Y, axis=-2)[..., :n, :]
        return (y.real if is_real(x) else y).astype(dtype)

    def correlate(
        self,
        x: Array,
        g: Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Array | None,
    ) -> Array:
        if method == "direct" or segment_ids is not None or not self._moderate(x, g):
            options = {"lags": lags, "heads": heads, "kernel_size": kernel_size, "method": method}
            return definition_correlate(x, g, **options, segment_ids=segment_ids)
        dtype, (x, g) = computed_in(x, g)
        n, d = x.shape[-2:]
        X, G = self._spectra(x, n, -2).conj(), self._spectra(g, n, -2)
        out = self.np.zeros((heads, kernel_size, lags), dtype)
        for i in range(kernel_size):
            pairs = (G * shift_channels(X, kernel_size - 1 - i, heads)).reshape(-1, X.shape[-2], heads, d // heads)
            c = self.fft.ifft(pairs.sum(axis=(0, 3)), axis=0)[: min(lags, n)].T  # (h, lags)
            out[:, i, : c.shape[1]] = c.real if is_real(x) else c
        return out

    def _spectra(self, a: Array, n: int, axis: int) -> Array:
        return self.fft.fft(a, self.fft.next_fast_len(2 * n), axis=axis)

    def _moderate(self, *arrays: Array) -> bool:
        low, high = MODERATE
        sizes = [self.np.abs(a.astype("complex128")) for a in arrays]
        return all(size.size and ((size == 0) | (size >= low) & (size <= high)).all() for size in sizes)


backend = Backend(
    name="scipy",
    requires=("scipy", "numpy"),
    serves="arrays on the CPU of every floating and complex dtype",
    load_engine=ScipyEngine,
    ranks={"numpy": 30},
)
