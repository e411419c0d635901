"""Dask: a bridge; products stay lazy, and an engine computes each block of rows when Dask asks for it.

Dask is not imported: the arrays' own namespace has what is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tmm_core.backend import (
    Array,
    Backend,
    Engine,
    Method,
    check_ordered,
    computed_in,
    get_backend,
    namespace_of,
    result_dtype,
    run_correlate,
    run_matmul,
)

__all__ = ["DaskBridge", "backend"]


class DaskBridge:
    """What Dask's arrays need around any engine."""

    def matmul(
        self, engine: Engine, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None
    ) -> Array:
        """Return the product, lazily."""
        block = functools.partial(_matmul_block, engine=engine.name, adjoint=adjoint, method=method)
        return _row_by_row(block, w, x, segment_ids)

    def correlate(
        self,
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
        """Return the correlation, lazily: the sum of those of the blocks."""
        shape = {"lags": lags, "heads": heads, "kernel_size": kernel_size}
        block = functools.partial(_correlate_block, engine=engine.name, method=method, **shape)
        return _summed_over_rows(block, x, g, segment_ids, (heads, kernel_size, lags))

    def row_by_row(self, function: Callable[[Array, Array], Array], w: Array, x: Array, /) -> Array:
        """Return `function(w, x)`, lazily, of blocks of whole signals."""
        return _row_by_row(function, w, x)


backend = Backend(
    name="dask",
    requires=("dask",),
    serves="Dask arrays, block by block, by the engine of any backend",
    load_bridge=DaskBridge,
    bridge_for="dask",
)


def _summed_over_rows(
    block: Callable[..., Array], x: Array, g: Array, segment_ids: Array | None, sizes: tuple[int, ...]
) -> Array:
    """Return the sum of what `block(x, g, ids)` returns of blocks of rows, of the shape `sizes`."""
    xp = namespace_of(x, g)
    dtype, (x, g) = computed_in(x, g)  # the sum over blocks, too, is done in the wider dtype
    signal = tuple(range(x.ndim))
    shape = dict(enumerate(sizes, x.ndim))
    rows = signal[:-2]
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


def _row_by_row(function: Callable[..., Array], w: Array, x: Array, ids: Array | None = None) -> Array:
    """Return `function(w, x, ids)` of each block of whole signals."""
    xp = namespace_of(w, x)
    signal = tuple(range(x.ndim))
    filters = tuple(range(x.ndim, x.ndim + w.ndim))
    dtype = result_dtype(w, x)
    return xp.blockwise(
        function,
        signal,
        *(_whole_times(w, w.ndim), filters, _whole_times(x, 2), signal, *_ids_and_axes(ids, signal[:-1])),
        concatenate=True,
        dtype=dtype,
        meta=_meta(x, x.ndim, dtype),
    )


def _matmul_block(w: Array, x: Array, ids: Array | None = None, *, engine: str, **options: Any) -> Array:
    ordered = ids is not None and check_ordered(ids)
    return run_matmul(get_backend(engine).engine, w, x, segment_ids=ids, ordered=ordered, **options)


def _correlate_block(x: Array, g: Array, ids: Array | None = None, *, engine: str, **options: Any) -> Array:
    ordered = ids is not None and check_ordered(ids)
    c = run_correlate(get_backend(engine).engine, x, g, segment_ids=ids, ordered=ordered, **options)
    return namespace_of(c).reshape(c, (*(1 for _ in x.shape[:-2]), *c.shape))


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
