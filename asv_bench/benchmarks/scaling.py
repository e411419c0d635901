"""How the time for a token grows with the sequence: no faster than log n, or the method is not what it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tmm_lab.bench import FULL, Case, compare, product, take_turns

from . import BACKEND, ready

LENGTHS = tuple(2**power for power in range(10, 19))
TOKENS, CHANNELS = LENGTHS[-1], 64  # enough for every thread where there is one sequence


def product_of(n: int) -> Callable[[], Any]:
    """Return a product of as many tokens and channels at every length: only n differs."""
    return product(Case(n, 1, elements=TOKENS * CHANNELS, channels=CHANNELS), BACKEND)


class Scaling:
    """The product of 262144 tokens of 64 channels, in sequences of n."""

    params = (LENGTHS,)
    param_names = ("n",)

    def setup(self, n: int) -> None:
        """Choose threads."""
        ready()

    def track_token(self, n: int) -> dict[str, Any]:
        """Time a token."""
        call = product_of(n)
        call()  # to compile
        (seconds,) = take_turns([call], FULL)
        return {"samples": [1e9 * s / TOKENS for s in seconds], "number": 1}

    def track_growth(self, n: int) -> dict[str, Any]:
        """Time it in turns with sequences of 1024: more than 1 where it grows faster than log n."""
        turns = compare(product_of(n), product_of(LENGTHS[0])).turns
        growth = math.log(n) / math.log(LENGTHS[0])
        return {"samples": [round(1 / turn / growth, 4) for turn in turns], "number": 1}


Scaling.track_token.unit = "ns a token"  # type: ignore[attr-defined]
Scaling.track_growth.unit = "of the growth of log n"  # type: ignore[attr-defined]
