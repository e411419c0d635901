"""The causal Toeplitz product of Torch tensors with the gradients for filters and signals."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import ALLOCATORS, HEADS, Case, compare_gradients, gradients

from . import BACKEND, ready, samples

LENGTHS = (1024, 2048, 4096, 8192)


class Gradients:
    """Seconds of a product, forward and backward."""

    params = (LENGTHS, HEADS, ("numba", "torch"))
    param_names = ("n", "heads", "backend")
    rounds = 1

    def setup(self, n: int, heads: int, backend: str) -> None:
        """Call it once, to compile."""
        ready(backend)
        self.gradients = gradients(Case(n, heads), backend)
        self.gradients()

    def time_gradients(self, n: int, heads: int, backend: str) -> None:
        """Multiply, and differentiate for both."""
        self.gradients()


class Against:
    """The same over `torch.fft` under autograd."""

    params = (LENGTHS, HEADS, ALLOCATORS)
    param_names = ("n", "heads", "allocator")
    unit = "of its time"

    def setup(self, n: int, heads: int, allocator: str) -> None:
        """Choose threads and allocator; the first turn, which is not counted, warms up."""
        ready(allocator=allocator)

    def track_gradients(self, n: int, heads: int, allocator: str) -> dict[str, Any]:
        """Multiply and differentiate in turns."""
        return samples(compare_gradients(Case(n, heads), BACKEND))
