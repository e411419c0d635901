"""The memory that a causal Toeplitz product takes beyond its input and output."""

from __future__ import annotations

from tmm_lab.bench import HEADS, LENGTHS, Case, product_memory

from . import ready


class Memory:
    """Bytes at the height of one product."""

    params = (LENGTHS, HEADS, ("numba", "torch"))
    param_names = ("n", "heads", "backend")
    unit = "bytes"

    def setup(self, n: int, heads: int, backend: str) -> None:
        """Choose threads; the call that warms up is `product_memory`'s own."""
        ready(backend)

    def track_product(self, n: int, heads: int, backend: str) -> int:
        """Multiply."""
        return product_memory(Case(n, heads), backend)
