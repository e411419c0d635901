"""How long a run is: the learning rate over its steps, its evaluations, and how minutes become steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Clock", "TimedSchedule", "evaluation_steps", "learning_rate_factor"]

_WARM = 3  # first steps that are not timed: they allocate, and compile
_TIMED = 20


def learning_rate_factor(step: int, total: int | None, warmup: int) -> float:
    """Return the learning rate of `step`, as a share of its peak: linear warm-up, then a cosine that falls to zero.

    Parameters
    ----------
    step : int
        Steps done before this one.
    total : int or None
        Steps of the run; while they are unknown there is no decay.
    warmup : int
        Steps of the warm-up; at most a quarter of the run.

    Examples
    --------
    >>> [round(learning_rate_factor(step, 8, 2), 2) for step in (0, 1, 2, 5, 7)]
    [0.33, 0.67, 1.0, 0.5, 0.07]
    """
    if total is not None:
        warmup = min(warmup, total // 4)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if total is None:
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def evaluation_steps(total: int, evaluations: int, *, timed: bool = False) -> frozenset[int]:
    """Return the steps after which the held-out text is evaluated: evenly spread, the last step always.

    In a run that is `timed` first to find its number of steps, they are spread over the rest.

    >>> sorted(evaluation_steps(100, 4))
    [25, 50, 75, 100]
    """
    start = _WARM + _TIMED if timed and total > 2 * (_WARM + _TIMED) else 0
    return frozenset(start + math.ceil((total - start) * i / evaluations) for i in range(1, evaluations + 1))


class Clock:
    """Seconds since it was made, with and without what is not training."""

    def __init__(self) -> None:
        """Begin to count."""
        self._start = time.monotonic()
        self._paused = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return time.monotonic() - self._start

    @property
    def training_seconds(self) -> float:
        """Seconds without pauses."""
        return self.seconds - self._paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count what happens inside as training."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - start


class TimedSchedule:
    """Turns minutes into steps: times some steps, then sees how many fit.

    Parameters
    ----------
    minutes : float
        Time for the whole run.
    clock : Clock
        Began with the run.
    other_seconds : callable
        Given the seconds of a step, returns those that the run will spend on other things; called once.
    """

    def __init__(self, minutes: float, clock: Clock, other_seconds: Callable[[float], float]) -> None:
        """Begin with no step timed."""
        self._budget = 60.0 * minutes
        self._clock = clock
        self._other_seconds = other_seconds
        self._done = 0
        self._since = 0.0

    def step_done(self, step: int) -> int | None:
        """Return the number of steps that the run will have, or None where more must be timed first.

        Twenty steps are timed, after three that are not; fewer where half of the time is gone before that. At least
        half of what is left goes to steps: a run too short for its evaluations takes longer.
        """
        self._done += 1
        now = self._clock.training_seconds
        timed = self._done - _WARM
        if timed <= 0:
            self._since = now
        in_time = self._clock.seconds < 0.5 * self._budget
        if timed < _TIMED and in_time:
            return None
        seconds = (now - self._since) / timed if timed > 0 else now / self._done
        other = self._other_seconds(seconds)
        left = max(0.0, self._budget - self._clock.seconds)
        return step + int(max(left - other, 0.5 * left) / max(seconds, 1e-9))
