"""The two bilinear operations of the bridge, by any engine.

JAX transposes linear functions without conjugation, so its operations have none: a product with `T(w)` or with its
transpose `T(w)^T`, and the correlation `c[j] = sum_t g[t] x[t - j]`. Engines conjugate, and are given conjugates.
"""

from __future__ import annotations

import math
from typing import Any

from tmm_core._arrays import exchange
from tmm_core._arrays import properties as arrays
from tmm_core._arrays.exchange import Array
from tmm_core._definition import masks
from tmm_core._dispatch import registry
from tmm_core.backend import Engine

__all__ = ["evaluate", "unsorted_rows"]


def evaluate(engine: Engine, operation: str, first: Array, second: Array, ids: Array | None, /, **options: Any) -> Any:
    """Return what `engine` computes, on concrete arrays or, where it owns them, on traced ones."""
    if operation == "matmul":
        transposed, method = options["transposed"], options["method"]
        w = arrays.conj(first) if transposed else first
        result = registry.run(engine, "matmul", w, second, segment_ids=ids, adjoint=transposed, method=method)
    else:
        result = registry.run(engine, "correlate", arrays.conj(first), second, segment_ids=ids, **options)
    if ids is not None and arrays.values_known(result, ids):
        # Decreasing numbers come here from code that may not look at them; elsewhere they were refused.
        wrong = unsorted_rows(ids)
        xp = exchange.namespace_of(result)
        if bool(xp.any(wrong)):
            mask = wrong[..., None, None] if operation == "matmul" else xp.any(wrong)
            result = xp.where(mask, xp.asarray(math.nan, dtype=result.dtype), result)
    return result


def unsorted_rows(ids: Array) -> Array:
    """Return which rows number their documents out of order."""
    return masks.unsorted(ids)
