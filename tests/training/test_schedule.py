"""How long a run is, and in which order it reads its text."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run
from tmm_lab.training.schedule import Revision, Schedule, learning_rate_factor


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 100, 10) for step in range(100)]
    assert factors[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert factors[10] == 1.0
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert 0 < factors[-1] < 1e-3
    assert [learning_rate_factor(s, None, 10) for s in (0, 9, 10, 10**6)] == [1 / 11, 10 / 11, 1.0, 1.0]
    assert max(learning_rate_factor(s, 8, 1000) for s in range(8)) == 1.0, "a warm-up ends within a short run"


@pytest.mark.parametrize("steps", [1, 4, 20, 33, 1000])
@pytest.mark.parametrize("wanted", [None, 3])
def test_evaluations_are_some_steps_apart_unless_their_number_is_given(steps: int, wanted: int | None) -> None:
    schedule = Run(Path(), {"plan": [], "steps": steps}).schedule(TrainingOptions(steps=steps, evaluations=wanted))
    due = [0, *(step for step in range(1, steps + 1) if schedule.evaluation_is_due(step))]
    assert due[-1] == steps
    if wanted is None:
        assert len(due) - 1 == max(1, min(10, steps // 5))
        assert min(b - a for a, b in itertools.pairwise(due)) >= min(5, steps)
    else:
        assert len(due) - 1 == min(wanted, steps)


@pytest.mark.parametrize(("total", "evaluations"), [(100, 10), (7, 10), (1, 1), (95, 4), (12, 3), (2**31 - 1, 7)])
def test_evaluations_are_spread_evenly_and_the_last_step_is_one(total: int, evaluations: int) -> None:
    schedule = Schedule([Revision(0, total, evaluations, 1)], warmup=3)
    expected = {math.ceil(Fraction(total * i, evaluations)) for i in range(1, evaluations + 1)}
    near = {step + off for step in expected for off in (-1, 0, 1) if 0 <= step + off <= total}
    assert {step for step in near if schedule.evaluation_is_due(step)} == expected


def test_a_schedule_of_given_steps_is_the_plain_curve() -> None:
    schedule = Schedule([Revision(0, 50, 1, 1)], warmup=7)
    assert [schedule.factor(step) for step in range(50)] == [learning_rate_factor(step, 50, 7) for step in range(50)]


@pytest.mark.parametrize("seed", range(5))
def test_a_revision_moves_the_end_without_a_jump(seed: int) -> None:
    """Whatever is decided: positions only rise, no step moves farther than the plan in force says, the end is zero."""
    rng = np.random.default_rng(seed)
    plan, step = [], 0
    for _ in range(6):
        step += int(rng.integers(1, 40))
        plan.append(Revision(step, step + int(rng.integers(40, 400)), 10, 4))
    schedule, length = Schedule(plan, warmup=20), plan[0].total
    end = plan[-1].total
    assert schedule.total(plan[0].step - 1) is None
    positions = [schedule.position(step) for step in range(end + 1)]
    moves = np.diff(positions)
    assert (moves > 0).all()
    assert positions[-1] == pytest.approx(length)
    for revision, after in itertools.pairwise([*plan, Revision(end, end, 1, 1)]):
        left = length - positions[revision.step]
        stretch = moves[revision.step : after.step]
        np.testing.assert_allclose(stretch, left / (revision.total - revision.step), rtol=1e-9)
    assert sum(map(schedule.evaluation_is_due, range(end + 1))) <= 11
    assert schedule.evaluation_is_due(end)
    assert schedule.every(end) == 1


def test_what_was_decided_later_changes_nothing_before() -> None:
    early, late = Revision(5, 40, 4, 2), Revision(20, 90, 4, 2)
    one, both = Schedule([early], 3), Schedule([early, late], 3)
    for ask in (Schedule.factor, Schedule.position, Schedule.total, Schedule.evaluation_is_due, Schedule.every):
        assert [ask(one, step) for step in range(20)] == [ask(both, step) for step in range(20)]
