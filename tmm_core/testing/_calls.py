"""What the laws call, compiled once for all of them, and the lengths that they call it with."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tmm_core

from .._arrays.exchange import Array
from ..backend import Method
from .libraries import Library

__all__ = ["N_LONG", "N_SHORT", "SMALLEST", "Law", "correlate_of", "matmul_of"]

N_LONG, N_SHORT = 131, 16
"""Lengths on both sides of where direct sums stop paying, few since JAX compiles every operation for each."""

SMALLEST = 2.0**-126
"""The smallest normal float32: XLA reads and writes zero for what is smaller."""

Law = Callable[[Library, str], None]
"""A law of a library and the name of a backend; a broken one raises AssertionError."""


@functools.cache
def matmul_of(library: Library, backend: str, adjoint: bool = False, method: Method = "auto") -> Callable[..., Array]:
    """Return the product as a function of arrays, compiled once for all laws."""

    def matmul(w: Array, x: Array, segment_ids: Array | None = None) -> Array:
        return tmm_core.causal_toeplitz_matmul(
            w, x, adjoint=adjoint, method=method, segment_ids=segment_ids, backend=backend
        )

    return library.transform(matmul)


@functools.cache
def correlate_of(
    library: Library, backend: str, lags: int, heads: int = 1, kernel_size: int = 1, method: Method = "auto"
) -> Callable[..., Array]:
    def correlate(x: Array, g: Array, segment_ids: Array | None = None) -> Array:
        return tmm_core.causal_toeplitz_correlate(
            x,
            g,
            lags=lags,
            heads=heads,
            kernel_size=kernel_size,
            method=method,
            segment_ids=segment_ids,
            backend=backend,
        )

    return library.transform(correlate)
