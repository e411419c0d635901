"""Toeplitz products written out in array-API calls: the definition of what `toeplitz.py` offers, and its oracle.

`w` is `(h, m, k)`, `x` and `g` are `(..., n, d)`. Short products are direct sums (`direct.py`), long
ones go through transforms (`fourier.py`); documents and non-finite entries are masked (`masks.py`).
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Literal

from .._arrays.exchange import Array, namespace_of
from .._arrays.properties import computed_in, device_of, nan_where
from . import direct, fourier
from .masks import by_segments, correlate_by_segments, nan_mask_of_lags, nan_mask_of_outputs, split_finite

__all__ = ["Method", "causal_toeplitz_correlate", "causal_toeplitz_matmul", "quiet"]

Method = Literal["auto", "direct"]
"""Sums or transforms, whichever is faster, or direct sums only, which are causal to the bit."""

DIRECT_BELOW = 128
"""Up to this length direct sums are faster: in NumPy on one core, float32, 1.5 to 4 times at n = 128, even at 256."""


def causal_toeplitz_matmul(w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
    """Return `T(w) x` or `T(w)^H x`; see `toeplitz.causal_toeplitz_matmul`."""
    xp = namespace_of(w, x, segment_ids)
    dtype, (w, x) = computed_in(w, x)
    if 0 in x.shape:
        return xp.zeros(x.shape, dtype=dtype, device=device_of(x))
    w, bad_w = split_finite(w[..., : min(w.shape[-1], x.shape[-2])])
    x, bad_x = split_finite(x)

    def product(w: Array, x: Array) -> Array:
        return _algorithm(xp, method, x.shape[-2]).product(w, x, adjoint=adjoint)

    y = product(w, x) if segment_ids is None else by_segments(product, w, x, segment_ids, adjoint=adjoint)
    if not (bad_w is None and bad_x is None):
        nan_mask = nan_mask_of_outputs(w, x, bad_w, bad_x, adjoint=adjoint, segment_ids=segment_ids)
        y = nan_where(nan_mask, y)
    return xp.astype(y, dtype, copy=False)


def causal_toeplitz_correlate(
    x: Array, g: Array, /, *, lags: int, heads: int, kernel_size: int, method: Method, segment_ids: Array | None
) -> Array:
    """Return the gradient of `<g, T(w) x>` for `w`; see `toeplitz.causal_toeplitz_correlate`."""
    xp = namespace_of(x, g, segment_ids)
    dtype, (x, g) = computed_in(x, g)
    if 0 in x.shape:
        return xp.zeros((heads, kernel_size, lags), dtype=dtype, device=device_of(x))
    used = min(lags, x.shape[-2])
    x, bad_x = split_finite(x)
    g, bad_g = split_finite(g)

    def correlate(x: Array, g: Array, lags: int) -> Array:
        return _algorithm(xp, method, x.shape[-2]).correlation(x, g, lags=lags, heads=heads, kernel_size=kernel_size)

    c = correlate(x, g, used) if segment_ids is None else correlate_by_segments(correlate, x, g, segment_ids, lags=used)
    nan_mask = nan_mask_of_lags(
        x, g, bad_x, bad_g, lags=used, heads=heads, kernel_size=kernel_size, segment_ids=segment_ids
    )
    c = xp.astype(nan_where(nan_mask, c), dtype, copy=False)
    if used < lags:
        c = xp.concat([c, xp.zeros((heads, kernel_size, lags - used), dtype=dtype, device=device_of(c))], axis=-1)
    return c


def _algorithm(xp: ModuleType, method: Method, n: int) -> ModuleType:
    """Return what computes n times: transforms are an extension of the array API, which a library may lack."""
    return direct if method == "direct" or n <= DIRECT_BELOW or not hasattr(xp, "fft") else fourier


def quiet() -> Any:
    """Return a context without NumPy's floating-point warnings, which also concern results that are then repaired."""
    numpy = sys.modules.get("numpy")  # also under array_api_strict and in Dask's blocks
    return nullcontext() if numpy is None else numpy.errstate(all="ignore")
