"""The bridge of Dask arrays: products stay lazy, and an engine computes each block of rows when Dask asks for it.

Dask is not imported: the arrays' own namespace has what is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import toeplitz
from ._arrays.exchange import Array, namespace_of
from ._arrays.properties import computed_in, result_dtype
from .backend import Engine, Method

__all__ = ["correlate", "matmul", "solve"]


def matmul(engine: Engine, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
    """Return the product, lazily; see `toeplitz.causal_toeplitz_matmul`."""
    return _row_by_row(_matmul_block, w, x, segment_ids, adjoint=adjoint, method=method, backend=engine.name)


def solve(w: Array, y: Array, /) -> Array:
    """Return the solution, lazily; see `toeplitz.causal_toeplitz_solve`."""
    return _row_by_row(toeplitz.causal_toeplitz_solve, w, y)


def correlate(
    engine: Engine,
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
    """Return the correlation, lazily: the sum of those of the blocks; see `toeplitz.causal_toeplitz_correlate`."""
    xp = namespace_of(x, g)
    dtype, (x, g) = computed_in(x, g)  # the sum over blocks, too, is done in the wider dtype
    signal = tuple(range(x.ndim))
    shape = {x.ndim: heads, x.ndim + 1: kernel_size, x.ndim + 2: lags}
    rows = signal[:-2]
    block = functools.partial(
        _correlate_block, lags=lags, heads=heads, kernel_size=kernel_size, method=method, backend=engine.name
    )
    parts = xp.blockwise(
        block,
        (*rows, *shape),
        *(_whole_times(x, 2), signal, _whole_times(g, 2), signal, *_ids_and_axes(segment_ids, signal[:-1])),
        new_axes=shape,
        adjust_chunks=dict.fromkeys(rows, _one),
        concatenate=True,
        dtype=x.dtype,
        meta=_meta(x, x.ndim + 1, x.dtype),
    )
    return xp.astype(xp.sum(parts, axis=rows) if rows else parts, dtype)


def _row_by_row(function: Callable[..., Array], w: Array, x: Array, ids: Array | None = None, **options: Any) -> Array:
    """Return `function(w, x, ids)` of each block of whole signals."""
    xp = namespace_of(w, x)
    signal = tuple(range(x.ndim))
    filters = tuple(range(x.ndim, x.ndim + w.ndim))
    dtype = result_dtype(w, x)
    return xp.blockwise(
        functools.partial(function, **options),
        signal,
        *(_whole_times(w, w.ndim), filters, _whole_times(x, 2), signal, *_ids_and_axes(ids, signal[:-1])),
        concatenate=True,
        dtype=dtype,
        meta=_meta(x, x.ndim, dtype),
    )


def _matmul_block(w: Array, x: Array, ids: Array | None = None, **options: Any) -> Array:
    return toeplitz.causal_toeplitz_matmul(w, x, segment_ids=ids, **options)


def _correlate_block(x: Array, g: Array, ids: Array | None = None, **options: Any) -> Array:
    c = toeplitz.causal_toeplitz_correlate(x, g, segment_ids=ids, **options)
    xp = namespace_of(c)
    shape = (options["heads"], options["kernel_size"], options["lags"])
    return xp.reshape(c, (*(1 for _ in x.shape[:-2]), *shape))


def _one(size: int) -> int:
    """Return the rows that a block's part of a correlation has."""
    return 1


def _whole_times(a: Array, axes: int) -> Array:
    """Return `a` with its last axes in one chunk each: a product reads all times, and neighbouring channels."""
    return a.rechunk(dict.fromkeys(range(a.ndim - axes, a.ndim), -1))


def _ids_and_axes(ids: Array | None, axes: tuple[int, ...]) -> tuple[Any, ...]:
    return () if ids is None else (_whole_times(ids, 1), axes)


def _meta(x: Array, ndim: int, dtype: Any) -> Array:
    """Return an empty array of the kind that the blocks have, which spares Dask a trial call."""
    xp = namespace_of(x._meta)
    return xp.zeros((0,) * ndim, dtype=dtype)
