"""The operator index where it is hard: never wrong, and found where float64 or many digits tell it."""

import itertools
import math

import numpy as np
import pytest
from support.exact_roots import from_zeros, index_by_zeros, on_circle

from tmm_core import fredholm_index

EPS = 2.0**-52


@pytest.mark.parametrize("exponent", range(3, 18))
@pytest.mark.parametrize("angle", [0.0, 0.3, 2.0, np.pi])
def test_zeros_near_the_circle(exponent, angle):
    for sign in (-1, 1):
        w = from_zeros([(1 + sign * 10.0**-exponent) * np.exp(1j * angle), 0.5, 1.7j])
        found = fredholm_index(w)
        assert found.index == (index_by_zeros(w) if found.certified else None)
        assert found.certified or exponent >= 15 or (angle in (0.0, np.pi) and exponent >= 7)  # these are double


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-9, 1e-6, 1e-3])
def test_clusters_and_multiple_zeros(gap):
    for count in (2, 3, 5, 8):
        for radius in (1 - 1e-3, 1 - 1e-6, 1, 1 + 1e-9, 1 + 1e-4):
            w = from_zeros(radius * on_circle(0.7 + gap * np.arange(count)))
            found = fredholm_index(w)
            assert found.index == (index_by_zeros(w) if found.certified else None)


HARD = {
    "binomial": [math.comb(40, j) for j in range(41)],
    "binomial, moved": [math.comb(40, j) * 0.999**j for j in range(41)],
    "binomial, rounded": [math.comb(40, j) / 3**40 * 0.999999**j for j in range(41)],
    "chebyshev": np.polynomial.chebyshev.cheb2poly(np.eye(1, 31, 30)[0]),
    "chebyshev, moved": np.polynomial.chebyshev.cheb2poly(np.eye(1, 31, 30)[0]) + 1e-3,
    "alternating magnitudes": [1e200, 1e-200, -2e200, 1e-200, 3e200],
    "alternating magnitudes from below": [1e-200, 1e200, -1e-200, 2e200],
    "wilkinson": np.poly(np.arange(1, 21) / 10)[::-1],
    "geometric": 0.5 ** np.arange(200),
    "growing": 1.5 ** np.arange(200),
    "nearly moving average": np.ones(60) + 1e-14 * np.arange(60),
    "golay": np.asarray([1, 1, 1, -1, 1, 1, -1, 1, 1, 1, 1, -1, -1, -1, 1, -1]),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_filters(name):
    w = np.asarray(HARD[name], dtype=float)
    w = w / 2.0 ** math.frexp(np.max(np.abs(w)))[1]
    found, expected = fredholm_index(w), index_by_zeros(w)
    assert found.index == expected
    assert found.certified == (expected is not None)


def test_all_filters_of_up_to_five_small_integers():
    """Their zeros are on the circle or well away from it."""
    for k in range(2, 6):
        for w in itertools.product(range(-2, 3), repeat=k):
            if w[0] > 0 and w[-1] != 0:
                found, zeros = fredholm_index(np.asarray(w)), np.abs(np.roots(w[::-1]))
                on = np.min(np.abs(zeros - 1)) < 1e-4
                assert found.index == (None if on else -np.sum(zeros < 1)), w


CYCLOTOMIC = [
    ([1, -1], "not Fredholm"),
    ([1, 1], "not Fredholm"),
    ([1, 1, 1], "not Fredholm"),
    ([1, 0, 1], "not Fredholm"),
    ([1, 1, 1, 1, 1], "not Fredholm"),
    ([1, 0, -1, 0, 1], "not Fredholm"),
    (np.convolve([1, 1, 1], [1, 1, 1]), "not decidable"),  # touches zero and turns back
    (np.convolve([1, 1, 1], [1, 3]), "not decidable"),
    (np.convolve([1, 1, 1, 1, 1], [2, 0, 1]), "not decidable"),
    (np.convolve([1, -1], np.arange(1, 50)), "not Fredholm"),
    ([1, 1j], "not decidable"),
    ([1, 1j, 1j, 1], "not Fredholm"),
    ([1 + 1j, 0, 1 - 1j], "not Fredholm"),
    ([1 + 1j, 0, -1 + 1j], "not Fredholm"),
    (np.convolve([1, 0, 2, 0, 1], [3, 7, 23, 7, 3]), "not decidable"),
    ([1e16, 1, -1e16, -1], "not Fredholm: the symbol is zero at theta = 0"),
    (np.ones(999), "not Fredholm"),
    (np.ones(1000), "not Fredholm"),
]


@pytest.mark.parametrize(("w", "reason"), CYCLOTOMIC)
def test_zeros_on_the_circle_are_never_certified(w, reason):
    found = fredholm_index(np.asarray(w))
    assert (found.index, found.margin, found.certified) == (None, 0.0, False)
    assert found.reason.startswith(reason)


def test_symmetric_filters_whose_symbol_keeps_its_sign_have_half_their_zeros_inside():
    assert fredholm_index(np.asarray([1.0, 3.0, 1.0])).index == -1
    assert fredholm_index(np.asarray([1.0, 0.0, -3.0, 0.0, 1.0])).index == -2
    assert fredholm_index(np.asarray([1j, 1.0, 4.0, 1.0, -1j])).index == -2


@pytest.mark.parametrize(("power", "exponent"), [(6, 39), (8, 39), (10, 38), (12, 35)])
def test_symmetric_filters_that_nearly_vanish(power, exponent):
    """(1 + u + u^2)^power 2^exponent + u^power: the symbol is at least 1, where its terms are up to 1e16."""
    w = np.ones(1)
    for _ in range(power):
        w = np.convolve(w, [1, 1, 1])
    w *= 2.0**exponent
    w[power] += 1
    found = fredholm_index(w)
    assert found.index == -power
    assert 0.25 < found.margin <= 1


@pytest.mark.parametrize(
    ("last", "index"),
    [
        (1 - 1e-6, 0),
        (-(1 - 1e-6), 0),
        (1 + 1e-6, -16383),
        (1.0, None),
        (-1.0, None),
        (1 - EPS / 2, None),
        (1 + EPS, None),
    ],
)
def test_two_lags_far_apart(last, index):
    w = np.zeros(16384)
    w[0], w[-1] = 1, last
    found = fredholm_index(w)
    assert found.index == index
    assert found.margin <= abs(1 - abs(last))
