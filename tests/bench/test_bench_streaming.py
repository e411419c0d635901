"""Benchmarks of streaming: rivals give the same outputs, and what is timed is a whole stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tmm_core
from tmm_lab.bench import rivals, streaming
from tmm_lab.bench.streaming import Stream
from tmm_lab.bench.topics import TOPICS, Task
from tmm_lab.bench.turns import Pace, Ratio

pytestmark = pytest.mark.usefixtures("one_thread")

FEW = Pace(seconds=0.0, turns=2)
NEEDS = {"history in NumPy": "numpy", "history in Torch": "torch", "history joined": "torch"}
SMALL = Stream(40, 2, channels=6)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", rivals.HISTORIES)
def test_histories_agree_with_the_definition(name: str, heads: int) -> None:
    pytest.importorskip(NEEDS[name])
    w, x = Stream(33, heads, channels=6).arrays()
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    step = rivals.HISTORIES[name](w, x)
    for t in (0, 5, 32, 7):
        np.testing.assert_allclose(np.asarray(step(t)), expected[t], rtol=0, atol=1e-5)


def test_tokens_are_put_into_the_history_within_a_step() -> None:
    """Otherwise the step would be spared what a stream has to do."""
    w, x = Stream(33, 1, channels=6).arrays()
    for name in ("history in NumPy", "history in Torch"):
        tokens = x.copy()
        step = rivals.HISTORIES[name](w, tokens)
        before = np.asarray(step(5)).copy()
        tokens[4:6] += 1  # the step puts token 5 into the history, and that alone
        np.testing.assert_allclose(np.asarray(step(5)) - before, w[0, 0], rtol=0, atol=1e-5)


def test_all_steps_of_short_streams_are_taken_and_some_of_long_ones() -> None:
    assert Stream(64, 1).times == range(64)
    for n in (1000, 8192, 32768):
        times = Stream(n, 1).times
        assert 256 <= len(times) <= 1024
        assert np.mean(times) == pytest.approx((n - 1) / 2, rel=0.01), "a step takes as long as its history is"


def test_a_comparison_is_of_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams a turn takes, and however few steps the rival does."""
    monkeypatch.setattr(streaming, "STEPS", 10)
    steps = {"ours": 0, "theirs": 0}

    def counted(name: str, function: Callable) -> Callable:
        def call(*arguments: object) -> object:
            steps[name] += 1
            return function(*arguments)

        return call

    monkeypatch.setattr(tmm_core, "stream_step", counted("ours", tmm_core.stream_step))
    right = rivals.HISTORIES["history in NumPy"]
    monkeypatch.setitem(rivals.HISTORIES, "history in NumPy", lambda w, x: counted("theirs", right(w, x)))
    monkeypatch.setattr(
        streaming, "take_turns", lambda sides, pace, prepare: [_timed(s, prepare, steps) for s in sides]
    )
    ratio = streaming.compare_streams(SMALL, "history in NumPy", "numpy", FEW)
    assert (ratio.ours, ratio.theirs) == (40.0, 40.0)


def _timed(side: Callable, prepare: Callable, steps: dict[str, int]) -> list[float]:
    """Return as the seconds of two turns the steps that are taken."""
    prepare()
    before = sum(steps.values())
    side()
    return [float(sum(steps.values()) - before)] * 2


@pytest.mark.parametrize("wrong", [lambda y: y + 0.1, lambda y: y * np.float32(np.nan)])
def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, wrong: Callable) -> None:
    right = rivals.HISTORIES["history in NumPy"]
    monkeypatch.setitem(rivals.HISTORIES, "history in NumPy", lambda w, x: lambda t: wrong(right(w, x)(t)))
    with pytest.raises(RuntimeError, match="history in NumPy and ours differ by"):
        streaming.compare_streams(SMALL, "history in NumPy", "numpy", FEW)


def test_the_slowest_step_and_the_memory() -> None:
    mean = float(np.median(streaming.time_streams(SMALL, "numpy", FEW))) / SMALL.n
    assert streaming.slowest_step(SMALL, "numpy", times=2) > 0.5 * mean > 0
    assert streaming.stream_memory(SMALL, "numpy") == 40 * 6 * 4


def test_the_topic_measures_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmm_lab.bench.topics.Stream", lambda n, heads: Stream(n, heads, channels=4))
    found = [Task("streaming", 20, 2, column, "numpy", quick=True).run() for column in TOPICS["streaming"].columns]
    assert [type(value) for value in found] == [Ratio, Ratio, Ratio, float, int]
