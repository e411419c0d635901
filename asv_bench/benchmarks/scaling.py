"""How the time for a token grows with the sequence: no faster than log n, or the method is not what it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tmm_lab.bench import compare, take_turns

from . import BACKEND, measures, ready, samples
from .product import Case

LENGTHS = tuple(2**power for power in range(10, 19))
TOKENS, CHANNELS = LENGTHS[-1], 64  # enough for every thread where there is one sequence


def product_of(n: int) -> Callable[[], Any]:
    """Return a product of as many tokens and channels at every length: only n differs."""
    return Case(n, 1, elements=TOKENS * CHANNELS, channels=CHANNELS).product(BACKEND)


class Scaling:
    """The product of 262144 tokens of 64 channels, in sequences of n."""

    params = (LENGTHS,)
    param_names = ("n",)

    def setup(self, n: int) -> None:
        """Choose threads."""
        ready()

    @measures("product, a token", "ns")
    def track_token(self, n: int) -> dict[str, Any]:
        """Time a token."""
        call = product_of(n)
        call()  # to compile
        (seconds,) = take_turns([call])
        return samples(1e9 * s / TOKENS for s in seconds)

    @measures("growth of a token's time with n", "of the growth of log n")
    def track_growth(self, n: int) -> dict[str, Any]:
        """Time it in turns with sequences of 1024: more than 1 where it grows faster than log n."""
        growth = math.log(n) / math.log(LENGTHS[0])
        return samples(turn / growth for turn in compare(product_of(n), product_of(LENGTHS[0])))
