"""Time two computations in turns, within one process, so that a change of the machine's speed meets both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FULL", "QUICK", "Pace", "Ratio", "compare", "take_turns"]

Side = Callable[[], Any]


@dataclass(frozen=True)
class Pace:
    """How long two sides take turns: at least `turns` times, then until `seconds` are spent."""

    seconds: float
    turns: int


FULL = Pace(seconds=0.6, turns=5)
QUICK = Pace(seconds=0.3, turns=3)


@dataclass(frozen=True)
class Ratio:
    """Their time over ours in the same turn: median and quartiles over the turns; and each side's median seconds.

    Above 1 means that ours is faster.

    Examples
    --------
    >>> Ratio.of([1.0, 1.0, 2.0], [4.0, 5.0, 12.0])
    Ratio(median=5.0, low=4.5, high=5.5, ours=1.0, theirs=5.0, turns=(4.0, 5.0, 6.0))
    """

    median: float
    low: float
    high: float
    ours: float
    theirs: float
    turns: tuple[float, ...]

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Return the ratio of two lists of seconds, one entry a turn.

        Raises
        ------
        ValueError
            If there are fewer than two turns, which leave no spread, or not as many of theirs as of ours.
        """
        if len(ours) < 2:
            raise ValueError(f"a ratio comes of two turns or more, and there is {len(ours)}: take more turns")
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return cls(median, low, high, statistics.median(ours), statistics.median(theirs), tuple(ratios))


def _nothing() -> None:
    """Prepare nothing."""


def take_turns(
    sides: Sequence[Side],
    pace: Pace,
    *,
    prepare: Side = _nothing,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Return the seconds of every turn of each side.

    Parameters
    ----------
    sides : sequence of callables without arguments
        A turn calls each of them once, in this order. What a call returns is dropped within its time, as it is where
        the next result takes its place.
    pace : Pace
        When to stop.
    prepare : callable without arguments
        Called before each turn, outside the time of any side.
    clock : callable
        Returns the time in seconds.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    end = clock() + pace.seconds
    while len(seconds[0]) < pace.turns or clock() < end:
        prepare()
        for side, times in zip(sides, seconds, strict=True):
            start = clock()
            side()
            times.append(clock() - start)
    return seconds


def compare(
    ours: Side,
    theirs: Side,
    pace: Pace = FULL,
    *,
    check: Callable[[Any, Any], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Return how many times as fast as `theirs` the callable `ours` is.

    Parameters
    ----------
    ours, theirs : callables without arguments
        Each is called once to warm up, to compile what it compiles.
    pace : Pace
        How long they take turns.
    check : callable, optional
        Given what the two returned when they warmed up, to raise an error where it is not the same thing.
    clock : callable
        Returns the time in seconds.
    """
    results = ours(), theirs()
    if check is not None:
        check(*results)
    del results  # its memory would be missing from what the allocator has at hand
    return Ratio.of(*take_turns([ours, theirs], pace, clock=clock))
