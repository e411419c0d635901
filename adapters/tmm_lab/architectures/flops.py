"""Floating-point operations by formula, for the accounts of each architecture."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Flops", "attention", "linear", "long_convolution"]


@dataclass(frozen=True)
class Flops:
    """Floating-point operations a token; a multiplication and an addition are two.

    Matrix products, convolutions and Fourier transforms count, as `tmm_lab.evaluation.accounts.count_flops` counts
    them; what is computed element by element does not.
    """

    forward: float
    """Of the forward pass."""
    training: float
    """Of the forward and the backward pass."""

    def __add__(self, other: Flops) -> Flops:
        """Return the operations of both."""
        return Flops(self.forward + other.forward, self.training + other.training)

    def __mul__(self, times: float) -> Flops:
        """Return the operations of as many of these."""
        return Flops(self.forward * times, self.training * times)


def linear(multiplications: float) -> Flops:
    """Return the operations of products whose two factors both need a gradient: a product more for each."""
    return Flops(2 * multiplications, 6 * multiplications)


def attention(d: int, n: int) -> Flops:
    """Return the operations of softmax attention over `d` channels in texts of `n` tokens.

    The square of scores counts whole, as it is computed, whatever the mask leaves of it: two products forward and five
    backward, where the scores are computed again (FlashAttention, arXiv 2205.14135).
    """
    return Flops(2 * 2 * n * d, 7 * 2 * n * d)


def long_convolution(d: int, n: int, batch: int) -> Flops:
    """Return the operations of `d` causal Toeplitz products, each channel with a filter of its own of `n` lags.

    By right-angle convolution: one complex transform of length n, of 5 n log2 n operations, takes a row of a channel
    there and one back; the filter's own is shared by the batch. Backward, the adjoint product takes three again, and
    the gradient of the filter one for each of its two factors and one back.
    """
    transform = 5 * math.log2(n) * d
    return Flops((2 + 1 / batch) * transform, (2 + 1 / batch + 2 + 1 / batch + 2 + 1 / batch) * transform)
