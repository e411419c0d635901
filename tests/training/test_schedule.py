"""How long a run is, and in which order it reads its text."""

from __future__ import annotations

import itertools

import pytest

from tmm_lab.training.schedule import Clock, TimedSchedule, evaluation_steps, learning_rate_factor


def test_a_timed_schedule_fits_what_is_left_into_the_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = Clock()
    timed = TimedSchedule(1.0, clock, other_seconds=lambda step_seconds: 10 * step_seconds)
    found = None
    for step in range(1, 100):
        now[0] += 5.0 if step <= 3 else 0.5  # the first steps are slow, and not timed
        found = timed.step_done(step)
        if found is not None:
            break
    assert step == 23
    assert found == 23 + int((60 - 5 - 25) / 0.5)


def test_half_of_what_is_left_goes_to_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose evaluations alone would take longer than it may still learns something."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    timed = TimedSchedule(1.0, Clock(), other_seconds=lambda step_seconds: 1000.0)
    for step in range(1, 24):
        now[0] += 1.0
        found = timed.step_done(step)
    assert found == 23 + int((60 - 23) / 2)


def test_a_timed_schedule_does_not_wait_for_twenty_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    timed = TimedSchedule(1.0, Clock(), other_seconds=lambda step_seconds: 0.0)
    for expected in (None, None, 6):
        now[0] += 10.0
        found = timed.step_done(int(now[0] / 10))
        assert found == expected


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 100, 10) for step in range(100)]
    assert factors[:10] == pytest.approx([(i + 1) / 11 for i in range(10)])
    assert factors[10] == 1.0
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert 0 < factors[-1] < 1e-3
    assert [learning_rate_factor(s, None, 10) for s in (0, 9, 10, 10**6)] == [1 / 11, 10 / 11, 1.0, 1.0]
    assert max(learning_rate_factor(s, 8, 1000) for s in range(8)) == 1.0, "a warm-up ends within a short run"


@pytest.mark.parametrize(("total", "evaluations"), [(100, 10), (7, 10), (1, 1), (95, 4)])
def test_the_last_step_is_always_evaluated(total: int, evaluations: int) -> None:
    steps = evaluation_steps(total, evaluations)
    assert max(steps) == total
    assert min(steps) >= 1
    assert len(steps) == min(total, evaluations)


def test_a_timed_run_misses_none_of_its_evaluations() -> None:
    steps = evaluation_steps(100, 10, timed=True)
    assert len(steps) == 10
    assert min(steps) > 23, "before that the number of steps is unknown"
    assert max(steps) == 100
