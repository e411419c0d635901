"""Intervals hold the true difference as often as they say, and the verdict is undecided where it must be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tmm_lab.compare.statistics import Difference, paired_difference, verdict


def runs(rng, *, seeds, documents, difference, spread, noise=0.0, kinds=0.0):
    """Cross-entropies of two models over seeds and documents whose bits per byte differ by `difference` on average.

    The difference varies by `spread` with the seed, by `kinds` with the document, and by `noise` with both together.
    """
    n_bytes = rng.integers(200, 2000, documents)
    first = rng.normal(2.0, 0.3, documents) * np.ones((seeds, 1))  # a document's own difficulty
    deviation = rng.normal(difference, spread, (seeds, 1)) + rng.normal(0, noise, (seeds, documents))
    deviation += rng.normal(0, kinds, documents)
    return (first + deviation) * n_bytes * math.log(2), first * n_bytes * math.log(2), n_bytes


@pytest.mark.parametrize(
    ("seeds", "documents", "spread"),
    [
        (2, 50, {"spread": 0.01, "noise": 0.05}),
        (3, 50, {"spread": 0.001, "noise": 0.3}),
        (3, 29, {"spread": 0.02, "kinds": 0.01}),
        (3, 29, {"spread": 0.001, "kinds": 0.1}),
        (3, 5, {"spread": 0.001, "kinds": 0.1}),
        (3, 2, {"spread": 0.001, "kinds": 0.1}),
    ],
)
def test_intervals_hold_the_difference_at_their_level(seeds, documents, spread):
    rng = np.random.default_rng(1)
    held = 0
    for repetition in range(400):
        arrays = runs(rng, seeds=seeds, documents=documents, difference=0.05, **spread)
        found = paired_difference(*arrays, resamples=400, seed=repetition)
        held += found.low <= 0.05 <= found.high
    # Three standard errors of 400 repetitions below 95 %; above it intervals are wider than they need be, which they
    # are where noise decides: it is in the spread of the seeds and in that of the documents.
    assert held / 400 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)


@pytest.mark.parametrize(("seeds", "documents"), [(1, 50), (3, 1)])
def test_one_of_a_kind_decides_nothing(seeds, documents):
    arrays = runs(np.random.default_rng(2), seeds=seeds, documents=documents, difference=-0.5, spread=0.01, noise=0.01)
    found = paired_difference(*arrays)
    assert found.mean == pytest.approx(-0.5, abs=0.05)
    assert verdict([found]) == "undecided"


def test_the_ends_do_not_depend_on_what_was_drawn():
    arrays = runs(np.random.default_rng(3), seeds=3, documents=29, difference=0.01, spread=0.003, kinds=0.05)
    found = [paired_difference(*arrays, seed=seed) for seed in range(5)]
    length = found[0].high - found[0].low
    assert np.ptp([difference.high for difference in found]) < 0.05 * length


def test_the_same_seed_gives_the_same_interval():
    arrays = runs(np.random.default_rng(3), seeds=3, documents=50, difference=0.1, spread=0.01, noise=0.1)
    assert paired_difference(*arrays) == paired_difference(*arrays)
    assert paired_difference(*arrays) != paired_difference(*arrays, seed=1)


def test_exchanged_models_have_the_opposite_difference():
    first, second, n_bytes = runs(
        np.random.default_rng(4), seeds=3, documents=100, difference=0.1, spread=0.01, noise=0.1
    )
    there, back = paired_difference(first, second, n_bytes), paired_difference(second, first, n_bytes)
    assert there.mean == pytest.approx(-back.mean)
    assert there.p_value == pytest.approx(back.p_value)
    assert there.low == pytest.approx(-back.high, abs=2e-3)


@pytest.mark.parametrize(
    ("intervals", "right"),
    [
        ([(-0.3, -0.1), (-0.1, 0.019)], "confirmed"),
        ([(-0.3, -0.1), (-0.1, 0.021)], "undecided"),
        ([(-0.3, -0.1), (0.021, 0.4)], "refuted"),
        ([(0.0, 0.4)], "undecided"),
        ([], "undecided"),
    ],
)
def test_the_verdict_follows_the_ends_of_the_intervals(intervals, right):
    assert verdict(Difference((low + high) / 2, low, high, 0.5) for low, high in intervals) == right


def test_shapes_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match=r"n_bytes \(documents,\)"):
        paired_difference(np.ones((2, 3)), np.ones((2, 3)), np.ones(4))
