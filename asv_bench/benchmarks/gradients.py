"""The causal Toeplitz product of Torch tensors with its gradients for filters and signals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tmm_core
from tmm_lab.bench import FULL, compare

from . import ALLOCATORS, BACKEND, RATIO, check_same, lengths, measures, ready, require, samples
from ._baselines import torch_fft
from .product import HEADS, Case

LENGTHS = lengths(1024, 2048, 4096, 8192)
Tensors = tuple[Any, Any]


def gradients(case: Case, product: Callable[[Any, Any], Any]) -> Callable[[], Tensors]:
    """Return a product with both of its gradients, as a callable without arguments."""
    torch = require("torch")
    w, x = (torch.from_numpy(array).requires_grad_() for array in case.arrays())
    cotangent = x.detach().flip(1)

    def call() -> Tensors:
        both: Tensors = torch.autograd.grad(product(w, x), (w, x), cotangent)
        return both

    return call


class Gradients:
    """Seconds of a product, forward and backward."""

    params = (LENGTHS, HEADS, tuple(dict.fromkeys((BACKEND, "numba", "torch"))))
    param_names = ("n", "heads", "backend")
    rounds = 1

    def setup(self, n: int, heads: int, backend: str) -> None:
        """Call it once, to compile."""
        ready(backend)
        self.gradients = gradients(Case(n, heads), partial(tmm_core.causal_toeplitz_matmul, backend=backend))
        self.gradients()

    @measures("product with both gradients")
    def time_gradients(self, n: int, heads: int, backend: str) -> None:
        """Multiply, and differentiate for both."""
        self.gradients()


class GradientsAgainst:
    """The same in turns with `torch.fft` under autograd."""

    params = (LENGTHS, HEADS, ALLOCATORS, ("torch.fft under autograd",))
    param_names = ("n", "heads", "allocator", "baseline")

    def setup(self, n: int, heads: int, allocator: str, baseline: str) -> None:
        """Make both."""
        ready(allocator=allocator)
        ours = partial(tmm_core.causal_toeplitz_matmul, backend=BACKEND)
        self.ours, self.theirs = (gradients(Case(n, heads), product) for product in (ours, torch_fft))

    @measures("product with both gradients, against others", RATIO)
    def track_gradients(self, n: int, heads: int, allocator: str, baseline: str) -> dict[str, Any]:
        """Multiply and differentiate in turns."""

        def check(ours: Tensors, theirs: Tensors) -> None:
            for mine, other in zip(ours, theirs, strict=True):
                check_same(baseline, mine, other)

        return samples(compare(self.ours, self.theirs, FULL, check=check))
