"""How long a comparison takes: minutes as steps, and the time that is left."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tmm_adapters.words import counted
from tmm_core.errors import InputError

from ..evaluation.accounts import Speeds
from ..training.display import duration
from ..training.schedule import Revision, spread
from .options import ComparisonOptions

__all__ = ["RATES", "TimeLeft", "expected_seconds", "kinds", "plan", "steps_in"]

RATES = (0.0015, 0.003, 0.006)
"""Learning rates tried for each model, at 128 channels; others go with 1 / width, as Adam's steps do."""
EVALUATIONS = 5
"""Evaluations of each run that is long enough."""
EVALUATED = 8
"""Of how many windows of the held-out text an evaluation while a run is trained measures one."""
FEWEST_STEPS = 20
RESULTS_SECONDS = 1.5
"""What a run takes to begin, and for its picture and its model."""


def plan(steps: int) -> Revision:
    """Return the steps and evaluations of a run."""
    return Revision(0, steps, spread(EVALUATIONS, steps), EVALUATED, EVALUATED)


def rate_steps(steps: int) -> int:
    """Return the steps of a run that tries a learning rate, given those of the others: a quarter."""
    return max(FEWEST_STEPS, steps // 4)


def expected_seconds(
    speeds: Mapping[str, Speeds], options: ComparisonOptions, held_out_tokens: int, steps: int
) -> dict[tuple[str, str], float]:
    """Return how long each run takes, by label and kind, with evaluations; all of the text is measured of the last."""
    seconds = {}
    for label, speed in speeds.items():
        evaluation = 2 * held_out_tokens / speed.prefill  # each token is read twice
        for kind, length in kinds(options, steps).items():
            training = length * options.batch * options.max_len / speed.training
            times = plan(length).evaluations / EVALUATED + kind.startswith("seed")
            seconds[label, kind] = training + times * evaluation + RESULTS_SECONDS
    return seconds


def kinds(options: ComparisonOptions, steps: int) -> dict[str, int]:
    """Return the steps of the runs of each model, by their kind."""
    rates = {f"rate-{rate:g}": rate_steps(steps) for rate in RATES}
    return rates | {f"seed-{seed}": steps for seed in range(options.seeds)}


def steps_in(speeds: Mapping[str, Speeds], options: ComparisonOptions, held_out_tokens: int) -> int:
    """Return how many steps of each run fit into the minutes of the options.

    Raises
    ------
    ValueError
        If they are too few.
    """
    some, more = (sum(expected_seconds(speeds, options, held_out_tokens, n).values()) for n in (1000, 2000))
    a_step = (more - some) / 1000
    fixed = some - 1000 * a_step
    steps = int((60 * options.minutes - fixed) / a_step)
    if steps < FEWEST_STEPS:
        needed = math.ceil(sum(expected_seconds(speeds, options, held_out_tokens, FEWEST_STEPS).values()) / 60)
        raise InputError(
            f"{options.minutes:g} minutes are too few: {len(speeds)} models with {counted(options.seeds, 'seed')} "
            f"take about {counted(needed, 'minute')} for {FEWEST_STEPS} steps a run; give --minutes {needed}, "
            "or fewer --seeds or --arch"
        )
    return steps


class TimeLeft:
    """How many runs are left, and how long they take, by what those before them took.

    Parameters
    ----------
    seconds : mapping
        What each run is expected to take, by label and kind.
    """

    def __init__(self, seconds: Mapping[tuple[str, str], float]) -> None:
        """Begin with none done."""
        self._left = dict(seconds)
        self._expected = self._took = 0.0

    def skip(self, run: tuple[str, str]) -> None:
        """Leave out a run that is done."""
        self._left.pop(run, None)

    @contextmanager
    def timed(self, run: tuple[str, str]) -> Iterator[None]:
        """Time a run."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._expected += self._left.pop(run)
            self._took += time.monotonic() - begin

    def __str__(self) -> str:
        """Return both in words."""
        slower = self._took / self._expected if self._expected else 1.0
        return f"{counted(len(self._left), 'run')} left, about {duration(slower * sum(self._left.values()))}"
