"""The bridge of Dask arrays: products stay lazy, and the engine runs on each block of rows when it is computed."""

from __future__ import annotations

from typing import Any

from ._exchange import Array

__all__ = ["correlate", "matmul"]


def matmul(engine: Any, w: Array, x: Array, /, *, adjoint: bool, exact: bool, segment_ids: Array | None) -> Array:
    """Return the product, lazily; see `toeplitz.causal_toeplitz_matmul`."""
    raise TypeError("Dask arrays are not served yet")


def correlate(
    engine: Any,
    x: Array,
    g: Array,
    /,
    *,
    lags: int,
    heads: int,
    kernel: int,
    exact: bool,
    segment_ids: Array | None,
) -> Array:
    """Return the correlation, lazily; see `toeplitz.causal_toeplitz_correlate`."""
    raise TypeError("Dask arrays are not served yet")
