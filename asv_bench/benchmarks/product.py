"""The causal Toeplitz product of NumPy arrays: seconds by each backend, and against other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tmm_core
from tmm_lab.bench import FULL, compare

from . import ALLOCATORS, BACKEND, RATIO, check_same, lengths, measures, ready, samples
from ._baselines import PRODUCTS, Floats

LENGTHS = lengths(512, 1024, 2048, 4096, 8192, 32768, 131072)
HEADS: tuple[int, ...] = (1, 4)


@dataclass(frozen=True)
class Case:
    """A product of `n` positions and `heads` filters, with as many elements at every length."""

    n: int
    heads: int
    elements: int = 8 * 1024 * 512
    channels: int = 512

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, n, channels): fewer channels than asked for where one signal of so many would be larger."""
        batch = max(1, self.elements // (self.n * self.channels))
        channels = min(self.channels, self.elements // self.n)
        return batch, self.n, channels - channels % self.heads

    def arrays(self) -> tuple[Floats, Floats]:
        """Return filters (heads, n) and signals (batch, n, channels), normally distributed, the same each time."""
        rng = np.random.default_rng(0)
        w = rng.standard_normal((self.heads, self.n), dtype=np.float32) / np.float32(self.n**0.5)
        return w, rng.standard_normal(self.shape, dtype=np.float32)

    def product(self, backend: str) -> Callable[[], Any]:
        """Return the product by `backend` as a callable without arguments."""
        return partial(tmm_core.causal_toeplitz_matmul, *self.arrays(), backend=backend)


class Product:
    """Seconds of one product."""

    params = (LENGTHS, HEADS, tuple(dict.fromkeys((BACKEND, "numba", "torch", "array_api"))))
    param_names = ("n", "heads", "backend")
    rounds = 1

    def setup(self, n: int, heads: int, backend: str) -> None:
        """Call it once, to compile."""
        ready(backend)
        self.product = Case(n, heads).product(backend)
        self.product()

    @measures("product of as many numbers as (8, 1024, 512)")
    def time_product(self, n: int, heads: int, backend: str) -> None:
        """Multiply."""
        self.product()


class ProductAgainst:
    """One product, in turns with the same by another library."""

    params = (LENGTHS, HEADS, ALLOCATORS, tuple(PRODUCTS))
    param_names = ("n", "heads", "allocator", "baseline")

    def setup(self, n: int, heads: int, allocator: str, baseline: str) -> None:
        """Make both."""
        ready(allocator=allocator)
        case = Case(n, heads)
        self.ours, self.theirs = case.product(BACKEND), PRODUCTS[baseline](*case.arrays())

    @measures("product, against others", RATIO)
    def track_product(self, n: int, heads: int, allocator: str, baseline: str) -> dict[str, Any]:
        """Multiply in turns."""
        return samples(compare(self.ours, self.theirs, FULL, check=partial(check_same, baseline)))
