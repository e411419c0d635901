"""Time two computations in turns, within one process, so that a change of the machine's speed meets both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FULL", "QUICK", "Schedule", "compare", "take_turns"]

Call = Callable[[], Any]


@dataclass(frozen=True)
class Schedule:
    """How long calls take turns: at least `turns` times, then until `seconds` are spent."""

    seconds: float
    turns: int


FULL = Schedule(seconds=0.6, turns=5)
QUICK = Schedule(seconds=0.3, turns=3)


def _nothing() -> None:
    """Prepare nothing."""


def take_turns(
    calls: Sequence[Call],
    schedule: Schedule = FULL,
    *,
    prepare: Call = _nothing,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Return the seconds of every turn of each call.

    Parameters
    ----------
    calls : sequence of callables without arguments
        A turn calls each of them once, in this order. The result of a call is freed within its time.
    schedule : Schedule
        When to stop.
    prepare : callable without arguments
        Called before each turn, outside the measured time.
    clock : callable
        Returns the time in seconds.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    end = clock() + schedule.seconds
    while len(seconds[0]) < schedule.turns or clock() < end:
        prepare()
        for call, times in zip(calls, seconds, strict=True):
            start = clock()
            call()
            times.append(clock() - start)
    return seconds


def compare(
    ours: Call,
    theirs: Call,
    schedule: Schedule = FULL,
    *,
    check: Callable[[Any, Any], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return our time over theirs, for every turn: less than 1 means that ours is faster.

    Parameters
    ----------
    ours, theirs : callables without arguments
        Each is called once beforehand, which compiles what it compiles.
    schedule : Schedule
        How long they take turns.
    check : callable, optional
        Receives both results of the first call, and raises an error if they differ.
    clock : callable
        Returns the time in seconds.
    """
    results = ours(), theirs()
    if check is not None:
        check(*results)
    del results  # its memory would be missing from what the allocator has at hand
    turns = take_turns([ours, theirs], schedule, clock=clock)
    return [our / their for our, their in zip(*turns, strict=True)]
