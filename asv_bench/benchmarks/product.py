"""The causal Toeplitz product: what it takes by each backend, and against what people write today."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import ALLOCATORS, HEADS, LENGTHS, RIVALS, Case, compare_products, product

from . import BACKEND, ready, samples


class Product:
    """Seconds of one product."""

    params = (LENGTHS, HEADS, ("numba", "torch", "array_api"))
    param_names = ("n", "heads", "backend")
    rounds = 1

    def setup(self, n: int, heads: int, backend: str) -> None:
        """Call it once, to compile."""
        ready(backend)
        self.product = product(Case(n, heads), backend)
        self.product()

    def time_product(self, n: int, heads: int, backend: str) -> None:
        """Multiply."""
        self.product()


class Against:
    """One product over the same by another library."""

    params = (LENGTHS, HEADS, tuple(RIVALS), ALLOCATORS)
    param_names = ("n", "heads", "rival", "allocator")
    unit = "of its time"

    def setup(self, n: int, heads: int, rival: str, allocator: str) -> None:
        """Choose threads and allocator; the first turn, which is not counted, warms up."""
        ready(allocator=allocator)

    def track_product(self, n: int, heads: int, rival: str, allocator: str) -> dict[str, Any]:
        """Multiply in turns."""
        return samples(compare_products(Case(n, heads), rival, BACKEND))
