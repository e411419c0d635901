"""Runs of given minutes end in time, on machines whose speed changes, and little of the time goes to anything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from tmm_lab.training.schedule import Revision, Schedule
from tmm_lab.training.time_budget import Clock, TimeBudget

WINDOWS, ROWS, EVALUATIONS = 512, 4, 10
FORWARD = 0.4  # of what training takes


@dataclasses.dataclass
class Simulated:
    """What a run came to."""

    seconds: float = 0.0
    others: float = 0.0
    steps: int = 0
    factors: list[float] = dataclasses.field(default_factory=list)
    plan: list[Revision] = dataclasses.field(default_factory=list)
    evaluations: int = 0
    saves: int = 0


def simulate(
    monkeypatch: pytest.MonkeyPatch,
    budget: float,
    step_seconds: Callable[[float], float],
    *,
    first: float = 0.0,
    token: float = 0.0,
    save: float = 0.0,
    suspended: str = "",
) -> Simulated:
    """Run the loop's decisions on a machine that takes `step_seconds` a step, as a function of the time.

    It is `suspended` once, for two fifths of the budget, in the first "step", "sample" or "save" after a quarter of it.
    """

    def lasts(what: str, seconds: float) -> float:
        nonlocal suspended
        if what == suspended and now[0] > budget / 4:
            suspended, seconds = "", seconds + 0.4 * budget
        return seconds

    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock, found = Clock(), Simulated()
    sizes = {"windows": WINDOWS, "rows": ROWS, "sample_tokens": 100, "final_tokens": 400}
    planner = TimeBudget(budget, clock, evaluations=EVALUATIONS, **sizes)
    schedule, saved = Schedule([], warmup=50), 0.0
    while schedule.total(found.steps) is None or found.steps < schedule.total(found.steps):
        found.factors.append(schedule.factor(found.steps))
        now[0] += lasts("step", step_seconds(now[0]))
        found.steps += 1
        if found.steps == 1:
            now[0] += first
            clock.count_at_most(budget / 2)
        revision = planner.step_done(found.steps, schedule.revisions[-1] if schedule.revisions else None)
        if revision is not None:
            schedule.revise(revision)
        with clock.pause():
            before = now[0]
            if schedule.evaluation_is_due(found.steps):
                windows = WINDOWS / schedule.every(found.steps)
                window = FORWARD * step_seconds(now[0]) / ROWS
                planner.evaluated(windows * window, int(windows))
                sample = lasts("sample", 100 * token)
                planner.sampled(sample, 100)
                now[0] += windows * window + sample
                found.evaluations += 1
            if now[0] - saved >= 30 and planner.checkpoint_is_affordable(now[0] - saved):
                found.saves += 1
                took = lasts("save", save)
                planner.saved(took)
                now[0] += took
                saved = now[0]
            if schedule.total(found.steps) != found.steps:
                found.others += now[0] - before
    now[0] += 400 * token + save
    found.seconds, found.plan = clock.seconds, schedule.revisions
    return found


BUSY = {
    "steady": lambda t: 0.1,
    "slower": lambda t: 0.1 if t < 40 else 0.3,
    "faster": lambda t: 0.3 if t < 40 else 0.05,
    "waves": lambda t: 0.1 * (2 + np.sin(t / 7)),
    "slow": lambda t: 4.0,
    "quick": lambda t: 0.004,
}


@pytest.mark.parametrize("machine", BUSY)
@pytest.mark.parametrize("budget", [60, 180])
def test_a_run_takes_its_minutes(machine: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(monkeypatch, budget, BUSY[machine], token=0.005, save=0.5)
    assert 0.8 * budget < found.seconds < 1.1 * budget
    assert found.others < 0.2 * budget, "evaluations, samples and checkpoints before the end"
    assert found.evaluations >= 2
    assert found.factors[-1] < 0.15, "the learning rate has fallen"
    assert max(np.diff(found.factors[len(found.factors) // 2 :]), default=0) <= 1e-9, "and does not go up again"
    assert len(found.plan) < 120


@pytest.mark.parametrize("what", ["step", "sample", "save"])
def test_a_process_that_was_suspended_uses_the_time_that_is_left(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 300
    found = simulate(monkeypatch, budget, BUSY["steady"], token=0.005, save=0.5, suspended=what)
    assert 0.8 * budget < found.seconds < 1.1 * budget
    assert found.steps > 0.8 * 0.6 * budget / 0.1
    assert found.factors[-1] < 0.15
    assert found.evaluations > EVALUATIONS // 2
    assert found.saves > 2


@pytest.mark.parametrize("budget", [1e-9, 6e8])
def test_any_budget_makes_a_plan(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    planner = TimeBudget(
        budget, Clock(), evaluations=EVALUATIONS, windows=WINDOWS, rows=ROWS, sample_tokens=100, final_tokens=400
    )
    plan: list[Revision] = []
    for step in range(1, 40):
        now[0] += 1e-4
        plan += filter(None, [planner.step_done(step, plan[-1] if plan else None)])
        if plan and plan[-1].total == step:
            break
    assert (plan[-1].total == 1) == (budget < 1)
    assert Schedule(plan, warmup=50).factor(plan[-1].total - 1) < 1


def test_a_slow_start_leaves_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(monkeypatch, 60, BUSY["steady"], first=100.0)
    assert found.steps > 150
    assert found.seconds < 66


def test_dear_samples_and_checkpoints_become_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(monkeypatch, 180, BUSY["steady"], token=0.1, save=10.0)
    assert found.evaluations < EVALUATIONS
    assert found.others < 0.25 * 180


def test_a_time_that_is_over_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(monkeypatch, 5, lambda t: 10.0)
    assert found.steps == 2
