"""What is measured of a product: its speed against each rival, the same with gradients, and the memory it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import tmm_core

from .process import extra_memory, wanted
from .rivals import RIVALS, torch_fft_product
from .turns import FULL, Pace, Ratio, compare

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "HEADS",
    "LENGTHS",
    "LONGEST",
    "Case",
    "agree",
    "compare_gradients",
    "compare_products",
    "gradients",
    "product",
    "product_memory",
]

LENGTHS = (512, 1024, 2048, 4096, 8192, 32768, 131072)
HEADS = (1, 4)
LONGEST = 2**20
# float32 results of different summation orders differ by 1e-6 of their scale at most; a wrong one by all of it.
AGREEMENT = 1e-4

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A product of `n` positions and `heads` filters, of as many elements as `(8, 1024, 512)` has.

    >>> Case(512, 1).shape, Case(1024, 4).shape, Case(131072, 4).shape
    ((16, 512, 512), (8, 1024, 512), (1, 131072, 32))
    >>> Case(1024, 1, channels=16).shape, Case(262144, 1, channels=16).shape
    ((256, 1024, 16), (1, 262144, 16))
    """

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


def product(case: Case, backend: str) -> Callable[[], Any]:
    """Return the product of NumPy arrays by `backend`, as a callable without arguments."""
    return partial(tmm_core.causal_toeplitz_matmul, *case.arrays(), backend=backend)


def compare_products(case: Case, rival: str, backend: str, pace: Pace = FULL) -> Ratio:
    """Return how many times as fast as `rival` the product by `backend` is.

    Parameters
    ----------
    case : Case
        The arrays.
    rival : str
        A name in `RIVALS`.
    backend : str
        Who computes ours.
    pace : Pace
        How long they take turns.

    Raises
    ------
    NotImplementedError
        If the rival's library is missing, or the case is none for it.
    RuntimeError
        If the two do not agree: a wrong result is not worth its time.
    """
    ours, theirs = product(case, backend), RIVALS[rival](*case.arrays())
    return compare(ours, theirs, pace, check=partial(agree, rival))


def gradients(case: Case, backend: str | None) -> Callable[[], tuple[Tensor, ...]]:
    """Return the product of Torch tensors with both gradients: by `backend`, or by `torch.fft` where it is None.

    Raises
    ------
    NotImplementedError
        If Torch is missing.
    """
    with wanted("torch"):
        import torch

    w, x = (torch.from_numpy(array).requires_grad_() for array in case.arrays())
    cotangent = x.detach().flip(1)

    def call() -> tuple[Tensor, ...]:
        ours = partial(tmm_core.causal_toeplitz_matmul, backend=backend)
        y = torch_fft_product(w, x) if backend is None else ours(w, x)
        return torch.autograd.grad(y, (w, x), cotangent)

    return call


def compare_gradients(case: Case, backend: str, pace: Pace = FULL) -> Ratio:
    """Return how many times as fast as `torch.fft` under autograd the product with both gradients is.

    Raises
    ------
    NotImplementedError, RuntimeError
        As `compare_products`.
    """

    def check(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
        for mine, other in zip(ours, theirs, strict=True):
            agree("torch.fft under autograd", mine, other)

    return compare(gradients(case, backend), gradients(case, None), pace, check=check)


def product_memory(case: Case, backend: str | None) -> int:
    """Return the bytes that a product takes beyond input and output: by `backend`, or by `torch.fft` where it is None.

    Raises
    ------
    NotImplementedError
        If Torch is missing, or the system does not tell.
    """
    call = RIVALS["torch.fft"](*case.arrays()) if backend is None else product(case, backend)
    return extra_memory(call, 4 * int(np.prod(case.shape)))


def agree(rival: str, ours: Any, theirs: Any) -> None:
    """Check that two results are one.

    Raises
    ------
    RuntimeError
        If they differ by more than rounding, or are not finite.
    """
    mine, other = np.asarray(ours), np.asarray(theirs)
    scale = float(np.abs(other).max())
    difference = float(np.abs(mine - other).max())
    if not difference <= AGREEMENT * scale < np.inf:  # NaN is refused as well
        raise RuntimeError(f"{rival} and ours differ by {difference:.1e} where the largest result is {scale:.1e}")
