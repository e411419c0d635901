"""Engines on concrete arrays of any library; what holds whichever engine computes is applied here, once."""

from __future__ import annotations

from contextlib import nullcontext

from .._arrays.exchange import Array, namespace_of, share_like
from .._arrays.properties import nan_where
from .._definition.masks import decreasing_rows
from .._definition.toeplitz import Method, quiet
from ._protocols import Engine, Writer

__all__ = ["run_correlate", "run_matmul"]


def run_matmul(
    engine: Engine,
    w: Array,
    x: Array,
    /,
    *,
    adjoint: bool,
    method: Method,
    segment_ids: Array | None,
    ordered: bool = False,
    out: Array | None = None,
) -> Array:
    """Return the product that `engine` computes of concrete arrays of any one library; it lives where they do.

    Rows whose `segment_ids` decrease become NaN, unless they are known to be `ordered`. With `out`, of the result's
    shape and dtype and in C order, the result is written there, without a copy where the engine can write into it.
    """
    ids = segment_ids
    # 10 us faster than `Queued`
    with quiet(), engine.on_stream_of(x) if hasattr(engine, "on_stream_of") else nullcontext():
        if not (engine.owns(w) and engine.owns(x)):
            ids = None if ids is None else engine.receive(ids)
            y = engine.matmul(engine.receive(w), engine.receive(x), adjoint=adjoint, method=method, segment_ids=ids)
            y = share_like(y, x)
        elif out is not None and method == "auto" and isinstance(engine, Writer):
            engine.matmul_into(out, w, x, adjoint=adjoint, segment_ids=ids)
            y = out
        else:
            y = engine.matmul(w, x, adjoint=adjoint, method=method, segment_ids=ids)
        if segment_ids is not None and not ordered:
            wrong = decreasing_rows(segment_ids)
            y = y if wrong is None else nan_where(wrong[..., None, None], y)
    if out is None or y is out:
        return y
    out[...] = y
    return out


def run_correlate(
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
    ordered: bool = False,
) -> Array:
    """Return the correlation that `engine` computes of concrete arrays of any one library; it lives where they do.

    All of it becomes NaN where the `segment_ids` of a row decrease, unless they are known to be `ordered`.
    """
    # 10 us faster than `Queued`
    with quiet(), engine.on_stream_of(x) if hasattr(engine, "on_stream_of") else nullcontext():
        own = engine.owns(x) and engine.owns(g)
        pair = (x, g) if own else (engine.receive(x), engine.receive(g))
        ids = segment_ids if own or segment_ids is None else engine.receive(segment_ids)
        c = engine.correlate(*pair, lags=lags, heads=heads, kernel_size=kernel_size, method=method, segment_ids=ids)
        c = c if own else share_like(c, x)
        if segment_ids is not None and not ordered:
            wrong = decreasing_rows(segment_ids)
            c = c if wrong is None else nan_where(namespace_of(wrong).any(wrong), c)
    return c
