"""Paired timing: a ratio is that of the same turn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from benchmarks import check_same

from tmm_lab.bench import Schedule, compare, take_turns


class Clock:
    """A clock that only computations move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: Callable[[], float]) -> Callable[[], float]:
        """Return a computation that takes as long as `seconds` says each time."""

        def compute() -> float:
            self.now += seconds()
            return self.now

        return compute


def test_a_ratio_is_that_of_the_same_turn() -> None:
    """The machine becomes ten times as slow in the middle; medians of each side by itself would not be 3 apart."""
    clock = Clock()
    slow = iter([1.0, 1.0] + [1.0] * 2 * 3 + [10.0] * 2 * 4)
    calls = clock.taking(lambda: next(slow)), clock.taking(lambda: 3 * next(slow))
    assert compare(*calls, Schedule(seconds=1.0, turns=7), clock=clock) == pytest.approx([1 / 3] * 7)


def test_calls_take_turns_until_the_time_is_spent_and_warm_up_beforehand() -> None:
    clock, order = Clock(), []

    def call(name: str) -> Callable[[], float]:
        return clock.taking(lambda: order.append(name) or 1.0)

    assert take_turns([call("a"), call("b")], Schedule(seconds=9.0, turns=2), clock=clock) == [[1.0] * 5] * 2
    assert order == ["a", "b"] * 5
    assert len(take_turns([call("a"), call("b")], Schedule(seconds=0.0, turns=3), clock=clock)[0]) == 3
    order.clear()
    first = count()
    compiles = clock.taking(lambda: 100.0 if next(first) == 0 else 1.0)
    assert compare(compiles, call("b"), Schedule(seconds=0.0, turns=3), clock=clock) == [1.0] * 3
    assert order == ["b"] * 4


def test_results_are_compared_before_anything_is_timed() -> None:
    with pytest.raises(RuntimeError, match="differ"):
        compare(lambda: 1.0, lambda: 2.0, check=lambda a, b: check_same("it", a, b), clock=lambda: 1 / 0)
