"""How long a run is: its learning rate and its evaluations as functions of the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Revision", "Schedule", "learning_rate_factor", "spread"]

_APART = 5  # steps from one evaluation to the next
_ROUNDING = 1e-12  # of positions, as a share of the schedule


def learning_rate_factor(step: float, total: int | None, warmup: int) -> float:
    """Return the learning rate of `step`, as a share of its peak: linear warm-up, then a cosine that falls to zero.

    Parameters
    ----------
    step : float
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


def spread(evaluations: int, steps: int) -> int:
    """Return how many of so many evaluations there may be in a run, so that each has some steps to tell of.

    Examples
    --------
    >>> [spread(10, steps) for steps in (1, 20, 1000)]
    [1, 4, 10]
    """
    return max(1, min(evaluations, steps // _APART))


class Revision(NamedTuple):
    """What is decided after a step about the rest of a run."""

    step: int
    """Steps done when it was decided."""
    total: int
    """Steps that the run is to have."""
    evaluations: int
    """Evaluations over the whole run."""
    every: int = 1
    """An evaluation before the last measures one in so many windows of the held-out text."""
    last_every: int = 1
    """The last one measures one in so many."""


class Schedule:
    """The learning rate and the evaluations of a run, as functions of the step and of what was decided before it.

    A run of given steps has one revision, before its first step. A run of given minutes has none until its speed is
    known; its first revision fixes the curve of the learning rate, and each later one moves the end of it: what is
    left of the curve is stretched or squeezed, without a jump, over the steps that are left.

    Parameters
    ----------
    revisions : iterable of Revision
        Earlier ones first.
    warmup : int
        Steps of the warm-up.

    Examples
    --------
    >>> schedule = Schedule([Revision(0, 10, 2), Revision(5, 15, 2)], warmup=0)
    >>> [schedule.position(step) for step in (0, 5, 6, 10, 15)]
    [0.0, 5.0, 5.5, 7.5, 10.0]
    """

    def __init__(self, revisions: Iterable[Revision], warmup: int) -> None:
        """Take over what was decided."""
        self.revisions: list[Revision] = []
        self._warmup = warmup
        self._corners: list[tuple[int, float, float]] = []  # step, position, and how far a step moves from there on
        for revision in revisions:
            self.revise(revision)

    def revise(self, revision: Revision) -> None:
        """Add a decision about what follows its step."""
        here = self.position(revision.step)
        self.revisions.append(revision)
        left = revision.total - revision.step
        self._corners.append((revision.step, here, (self._length - here) / left if left > 0 else 0.0))

    def position(self, step: int) -> float:
        """Return how far a step is on the curve that the first revision fixed, in steps of that curve."""
        index = bisect_right(self._corners, step, key=lambda corner: corner[0]) - 1
        if index < 0:
            return float(step)
        corner, position, slope = self._corners[index]
        return position + (step - corner) * slope

    def total(self, step: int) -> int | None:
        """Return the steps that the run is to have, as was decided up to `step`; None before the first decision."""
        revision = self._in_force(step)
        return None if revision is None else revision.total

    def factor(self, step: int) -> float:
        """Return the learning rate of the step after `step` steps, as a share of its peak."""
        known = self._in_force(step) is not None
        return learning_rate_factor(self.position(step), self._length if known else None, self._warmup)

    def evaluation_is_due(self, step: int) -> bool:
        """Return whether the held-out text is evaluated after `step` steps: evenly over the curve, and at the end."""
        revision = self._in_force(step)
        if revision is None or step == 0:
            return False
        before, now = (self._evaluations_until(at, revision.evaluations) for at in (step - 1, step))
        return now > before or step == revision.total

    def every(self, step: int) -> int:
        """Return of how many windows of the held-out text the evaluation after `step` steps measures one."""
        revision = self._in_force(step)
        if revision is None:
            return 1
        return revision.last_every if step >= revision.total else revision.every

    @property
    def _length(self) -> int:
        return self.revisions[0].total

    def _in_force(self, step: int) -> Revision | None:
        index = bisect_right(self.revisions, step, key=lambda revision: revision.step) - 1
        return self.revisions[index] if index >= 0 else None

    def _evaluations_until(self, step: int, evaluations: int) -> int:
        return math.floor(evaluations * (self.position(step) / self._length + _ROUNDING))
