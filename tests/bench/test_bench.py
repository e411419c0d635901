"""Benchmarks: ratios are computed rightly, of results that agree, and what is missing is told apart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
import torch

import tmm_core
from tmm_core import TMMConfig
from tmm_lab.bench import measure, rivals, training
from tmm_lab.bench.turns import QUICK, Pace, Ratio, compare, take_turns

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = measure.Case(24, 2, elements=24 * 8 * 3)
NEEDS = {"torch.fft": "torch", "jnp.fft": "jax", "dense T @ x": "torch", "scipy.signal.fftconvolve": "scipy"}


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


# Turns


def test_a_ratio_is_that_of_the_same_turn() -> None:
    """The machine becomes ten times as slow in the middle; medians of each side by itself would not be 3 apart."""
    clock = Clock()
    slow = iter([1.0, 1.0] + [1.0] * 2 * 3 + [10.0] * 2 * 4)
    sides = clock.taking(lambda: next(slow)), clock.taking(lambda: 3 * next(slow))
    ratio = compare(*sides, Pace(seconds=1.0, turns=7), clock=clock)
    assert ratio.turns == (3.0,) * 7
    assert (ratio.low, ratio.median, ratio.high) == (3.0, 3.0, 3.0)
    assert (ratio.ours, ratio.theirs) == (10.0, 30.0)


def test_quartiles_lie_within_the_turns() -> None:
    ratio = Ratio.of([2.0] * 5, [2.0, 4.0, 6.0, 8.0, 20.0])
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 3.0, 4.0)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_ratio_has_a_spread(turns: int) -> None:
    with pytest.raises(ValueError, match=f"two turns or more, and there is {turns}"):
        Ratio.of([1.0] * turns, [2.0] * turns)


def test_sides_take_turns_until_the_time_is_spent_and_warm_up_beforehand() -> None:
    clock, order = Clock(), []

    def side(name: str) -> Callable[[], float]:
        return clock.taking(lambda: order.append(name) or 1.0)

    assert take_turns([side("a"), side("b")], Pace(seconds=9.0, turns=2), clock=clock) == [[1.0] * 5] * 2
    assert order == ["a", "b"] * 5
    assert len(take_turns([side("a"), side("b")], Pace(seconds=0.0, turns=3), clock=clock)[0]) == 3
    order.clear()
    first = count()
    compiles = clock.taking(lambda: 100.0 if next(first) == 0 else 1.0)
    assert compare(compiles, side("b"), Pace(seconds=0.0, turns=3), clock=clock).ours == 1.0
    assert order == ["b"] * 4


def test_results_are_compared_before_anything_is_timed() -> None:
    with pytest.raises(RuntimeError, match="differ"):
        compare(lambda: 1.0, lambda: 2.0, check=lambda a, b: measure.agree("it", a, b), clock=lambda: 1 / 0)


# Rivals


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", rivals.RIVALS)
def test_rivals_agree_with_the_definition(name: str, heads: int) -> None:
    pytest.importorskip(NEEDS[name])
    rng = np.random.default_rng(heads)
    w, x = rng.standard_normal((heads, 33)), rng.standard_normal((2, 33, 6))
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    found = np.asarray(rivals.RIVALS[name](w.astype(np.float32), x.astype(np.float32))())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_gradients_agree_and_are_those_of_filters_and_signals() -> None:
    ours, theirs = (measure.gradients(SMALL, backend)() for backend in ("torch", None))
    assert [g.shape for g in theirs] == [(2, 24), SMALL.shape]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)


def test_a_comparison_times_ours_and_theirs() -> None:
    pace = Pace(seconds=0.0, turns=2)
    for ratio in (
        measure.compare_products(SMALL, "torch.fft", "torch", pace),
        measure.compare_gradients(SMALL, "torch", pace),
    ):
        assert len(ratio.turns) == 2
        assert min(ratio.turns) > 0


@pytest.mark.parametrize("wrong", [lambda y: y + 0.01, lambda y: y * np.float32(np.nan), lambda y: y * 1.01])
def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, wrong: Callable) -> None:
    right = rivals.RIVALS["torch.fft"]
    monkeypatch.setitem(rivals.RIVALS, "torch.fft", lambda w, x: lambda: wrong(right(w, x)()))
    with pytest.raises(RuntimeError, match=r"torch\.fft and ours differ by"):
        measure.compare_products(SMALL, "torch.fft", "torch", QUICK)


def test_arrays_have_as_many_elements_at_every_length() -> None:
    for n in (*measure.LENGTHS, 1021, measure.LONGEST):
        for heads in measure.HEADS:
            case = measure.Case(n, heads)
            assert case.shape[1] == n
            assert case.shape[2] % heads == 0 < case.shape[2]
            assert np.prod(case.shape) == pytest.approx(8 * 1024 * 512, rel=0.01)
    w, x = SMALL.arrays()
    assert (w.shape, x.shape, w.dtype, x.dtype) == ((2, 24), (1, 24, 24), np.float32, np.float32)


# Training


def test_training_steps_with_the_mixing_replaced_and_in_jax() -> None:
    config = TMMConfig(d_model=8, n_layers=2, n_heads=2, vocab_size=16, max_len=12)
    given, dense, none = (
        training.training_step(config, mixing, tokens_a_step=24)
        for mixing in (None, training.dense_mixing, training.no_mixing)
    )
    in_jax = training.jax_training_step(config, tokens_a_step=24)
    first = given()
    assert dense() == pytest.approx(first, abs=1e-5), "the same model, by a matrix"
    assert in_jax() == pytest.approx(first, abs=1e-5), "the same model, in JAX"
    assert abs(none() - first) > 1e-5, "another model"
    second = given()
    assert second < first, "it learns"
    assert in_jax() == pytest.approx(second, abs=1e-6), "and JAX with it"


@pytest.mark.parametrize("bias", [True, False])
def test_dense_mixing_agrees_with_the_definition(bias: bool) -> None:
    rng = np.random.default_rng(0)
    w, x, b = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, 9), (3, 7, 4), (2, 9)))
    b = b if bias else None
    expected = tmm_core.mix_tokens(w, x, b, backend="array_api")
    torch.testing.assert_close(training.dense_mixing(w, x, b), expected)


# What is missing


@pytest.mark.parametrize("name", rivals.RIVALS)
def test_a_missing_library_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == NEEDS[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, NEEDS[name], None)
    with pytest.raises(NotImplementedError, match=f"{NEEDS[name]} cannot be imported"):
        rivals.RIVALS[name](*SMALL.arrays())


def test_a_matrix_that_nobody_holds_is_nothing_to_measure() -> None:
    w, x = measure.Case(rivals.MOST_DENSE + 1, 1).arrays()
    with pytest.raises(NotImplementedError, match="8193 rows"):
        rivals.dense(w, x)
    with pytest.raises(NotImplementedError, match="16384 rows"):
        training.compare_training(16384, 4, "dense T @ x", "torch")
