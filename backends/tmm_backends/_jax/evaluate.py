"""The two bilinear operations of the bridge, by any engine.

JAX transposes linear functions without conjugation, so its operations have none: a product with `T(w)` or with its
transpose `T(w)^T`, and the correlation `c[j] = sum_t g[t] x[t - j]`. Engines conjugate, and are given conjugates.
"""

from __future__ import annotations

from typing import Any

from tmm_core.backend import Array, Engine, Method, conj, run_correlate, run_matmul

__all__ = ["correlation", "product"]


def product(
    engine: Engine,
    w: Array,
    x: Array,
    ids: Array | None = None,
    /,
    *,
    transposed: bool,
    method: Method,
    out: Array | None = None,
) -> Any:
    """Return the product that `engine` computes, on concrete arrays or, where it owns them, on traced ones."""
    w = conj(w) if transposed else w
    return run_matmul(engine, w, x, adjoint=transposed, method=method, segment_ids=ids, out=out)


def correlation(engine: Engine, x: Array, g: Array, ids: Array | None = None, /, **options: Any) -> Any:
    """Return the correlation that `engine` computes, on such arrays."""
    return run_correlate(engine, conj(x), g, segment_ids=ids, **options)
