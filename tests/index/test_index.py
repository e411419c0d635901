"""The operator index: against zeros in many digits, against the theory, and never wrong where it is hard."""

import math

import mpmath
import numpy as np
import pytest
from support.exact_roots import from_zeros, index_by_zeros, on_circle, zeros_inside

import tmm_core
from tmm_core import fredholm_index, toeplitz_symbol

EPS = 2.0**-52


def draw(rng, degree):
    """Return a random filter of one of seven kinds, of which some have clusters of zeros near the circle."""
    kind = rng.integers(7)
    k = degree + 1
    if kind == 0:
        return rng.standard_normal(k) * math.sqrt(2 / k)  # what the paper's layers start from
    if kind == 1:
        return rng.standard_normal(k) + 1j * rng.standard_normal(k)
    if kind == 2:
        return rng.standard_normal(k) * np.exp(-np.arange(k) / rng.uniform(1, k + 1))
    if kind == 3:
        return rng.choice([-1.0, 1.0], k)
    if kind == 4:
        return np.where(rng.random(k) < 0.2, rng.standard_normal(k), 0) + np.eye(1, k)[0] + np.eye(1, k, degree)[0]
    pairs = max(1, degree // 2)
    radii = 1 + rng.choice([-1, 1], pairs) * 10.0 ** rng.uniform(-9, -1, pairs)
    angles = rng.uniform(0, np.pi, pairs)
    if kind == 6:
        size = min(pairs, int(rng.integers(2, 9)))
        angles[:size] = angles[0] + 10.0 ** rng.uniform(-7, -1) * rng.standard_normal(size)
    return from_zeros(radii * on_circle(angles))


def check_random(seed, degree):
    """Compare one random filter with its zeros; return whether its index was found."""
    w = draw(np.random.default_rng(seed), degree)
    found, expected = fredholm_index(w), index_by_zeros(w)
    assert found.certified == (found.index is not None) == (found.margin > 0)
    if found.certified:
        assert found.index == expected, f"seed {seed}, degree {degree}: {found}, expected {expected}"
    return found.certified or expected is None


def test_random_filters_have_the_index_that_their_zeros_say():
    rng = np.random.default_rng(7)
    degrees = [300, 300] + [int(100 ** rng.random()) for _ in range(298)]
    for seed, degree in enumerate(degrees):
        assert check_random(1 + seed, degree)


@pytest.mark.slow
def test_a_thousand_random_filters_have_the_index_that_their_zeros_say():
    rng = np.random.default_rng(8)
    degrees = [int(rng.integers(1, 301)) for _ in range(100)] + [int(300 ** rng.random()) for _ in range(900)]
    found = [check_random(1000 + seed, degree) for seed, degree in enumerate(degrees)]
    assert sum(found) >= 999


def test_zeros_in_many_digits_are_those_of_mpmath():
    rng = np.random.default_rng(1)
    for degree in range(1, 13):
        w = rng.standard_normal(degree + 1)
        zeros = mpmath.polyroots([mpmath.mpf(lag) for lag in w[::-1]], maxsteps=200, extraprec=200)
        inside, distance = zeros_inside(w)
        assert inside == sum(abs(zero) < 1 for zero in zeros)
        assert distance == pytest.approx(float(min(abs(abs(zero) - 1) for zero in zeros)), rel=1e-6)


def test_fixed_numbers_of_points_miscount_what_is_found():
    w = np.random.default_rng(3).standard_normal(512)
    zeros = np.abs(np.roots(w[::-1]))
    assert np.min(np.abs(zeros - 1)) > 1e-8
    found = fredholm_index(w)
    assert found.index == -np.sum(zeros < 1)
    counts = [turns(toeplitz_symbol(w, points=points)) for points in (16, 128, 512, 1024)]
    assert len(set(counts)) > 2
    assert found.index not in counts[:2]
    assert turns(toeplitz_symbol(w, points=1 << 18)) == found.index


def turns(curve):
    """Add up the angles between points of a closed curve."""
    return round(float(np.sum(np.angle(np.roll(curve, -1) / curve))) / (2 * math.pi))


@pytest.mark.parametrize(
    ("w", "index"),
    [
        ([1.0], 0),
        ([0.0, 1.0], -1),
        ([0.0, 0.0, -3.0, 0.0], -2),
        ([1.0, 0.5], 0),
        ([0.5, 1.0], -1),
        ([0.0, 0.5, 1.0, 0.0], -2),
        ([2.0, -1.0j], 0),
        ([1.0, -1.0j, 1.0], -1),
        ([3 + 4j], 0),
        ([2 + 1j, -2 + 0.5j], 0),
    ],
)
def test_small_filters(w, index):
    found = fredholm_index(np.asarray(w))
    assert (found.index, found.certified) == (index, True)
    least = np.min(np.abs(toeplitz_symbol(np.asarray(w), points=1 << 12)))
    assert least * 0.7499 < found.margin <= least * (1 + 1e-12)


# Theory


def integers(rng, k):
    """Return lags whose products and sums are exact."""
    return rng.integers(-9, 10, k).astype(float)


def test_the_index_of_a_product_is_the_sum():
    rng = np.random.default_rng(2)
    checked = 0
    for _ in range(40):
        a, b = integers(rng, rng.integers(1, 30)), integers(rng, rng.integers(1, 30))
        first, second, both = fredholm_index(a), fredholm_index(b), fredholm_index(np.convolve(a, b))
        if first.certified and second.certified:
            assert both.index == first.index + second.index
            assert both.margin >= 0.5 * first.margin * second.margin
            checked += 1
    assert checked >= 30


def test_perturbations_smaller_than_the_margin_change_nothing():
    rng = np.random.default_rng(4)
    for k in (2, 5, 20, 100):
        w = rng.standard_normal(k)
        found = fredholm_index(w)
        for _ in range(10):
            change = rng.standard_normal(k) * (rng.random(k) < rng.random())
            change *= 0.99 * found.margin / max(np.sum(np.abs(change)), 1e-300)
            assert fredholm_index(w + change).index == found.index


def test_a_perturbation_of_the_least_magnitude_can_change_the_index():
    w = np.asarray([1.0, -0.9])  # least magnitude 0.1, at theta = 0
    assert fredholm_index(w).index == 0
    assert fredholm_index(w - np.asarray([0.1 + 1e-9, 0.0])).index == -1


@pytest.mark.parametrize("seed", range(5))
def test_margins_are_below_the_least_magnitude_and_near_it(seed):
    w = np.random.default_rng(seed).standard_normal(40)
    least = np.min(np.abs(toeplitz_symbol(w, points=1 << 16)))
    assert 0.7499 * least < fredholm_index(w).margin <= least  # the grid may miss the very bottom


@pytest.mark.parametrize("k", [2, 60])
@pytest.mark.parametrize("phase", [1.0, 1j])
def test_margins_are_near_the_least_magnitude_where_rounding_matters(k, phase):
    """The least magnitude is 2^-exponent exactly, beside lags of size 1."""
    w, shares = np.zeros(k, complex), []
    w[0] = 1
    for exponent in range(1, 54):
        w[-1] = phase * (1 - 2.0**-exponent)
        found = fredholm_index(w)
        if found.certified:
            shares.append(found.margin * 2.0**exponent)
            assert 1 / 7 <= shares[-1] <= 1
            assert shares[-1] >= 0.75 or exponent > 30, "float64 has 22 bits more"
    assert len(shares) >= 45
    assert min(shares) < 0.75, "rounding was no matter"


ZEROS = [
    [1.5, -2.0, 1.4j, -1.4j],
    [0.5, 1.5, -2.0],
    [0.4, -0.6, 1.6],
    [0.5j, -0.5j, 0.6, 1.7],
]


@pytest.mark.parametrize("zeros", ZEROS)
def test_the_adjoint_has_the_opposite_index(zeros):
    """T(a)^H = T(conj a): its kernel is what T(a) misses, and its symbol winds the other way."""
    w = np.real(np.poly(zeros))[::-1].copy()
    inside = [zero for zero in zeros if abs(zero) < 1]
    assert fredholm_index(w).index == -len(inside)
    assert turns(np.conj(toeplitz_symbol(w, points=1024))) == len(inside)
    n, k = 120, len(w)
    for zero in inside:  # decaying sequences that the adjoint takes to zero
        x = np.conj(complex(zero)) ** np.arange(n)
        assert np.max(np.abs(tmm_core.causal_toeplitz_matmul(w + 0j, x, adjoint=True)[: n - k])) < 1e-12
    # The splitting of singular values (Roch and Silbermann): as many tend to zero as the index says, and no more.
    singular = np.linalg.svd(tmm_core.causal_toeplitz(w, n), compute_uv=False)
    assert np.sum(singular < 1e-8) == len(inside)
    assert np.sum(singular < 1e-2) == len(inside)


@pytest.mark.parametrize("zeros", ZEROS)
def test_filters_of_index_zero_have_inverses_that_decay_and_others_do_not(zeros):
    w = np.real(np.poly(zeros))[::-1].copy()
    found = fredholm_index(w)
    v = np.abs(tmm_core.causal_toeplitz_inverse(w, 200))
    assert found.certified
    if found.index == 0:
        assert np.max(v[100:]) < 1e-10 * np.max(v)
        assert np.sum(v) >= 1 / np.sum(np.abs(w))
    else:
        assert np.max(v[100:]) > 1e10 * np.max(v[:50])


def test_kernel_filters_have_the_index_of_their_determinant():
    rng = np.random.default_rng(5)
    w = rng.standard_normal((2, 3, 6))
    found = fredholm_index(w, channels=4)
    assert min(one.margin for one in found) > 0.1  # so that adding up angles is right
    symbols = toeplitz_symbol(w, points=1 << 14)
    for head in range(2):
        # Output channel c reads the channels c - 2 + i.
        matrix = sum(symbols[head, i][:, None, None] * np.eye(4, k=i - 2) for i in range(3))
        determinant = np.linalg.det(matrix)
        assert found[head].index == turns(determinant)
        assert found[head].margin == fredholm_index(w[head, -1]).margin
        assert 4 * fredholm_index(w)[head].index == found[head].index


def test_the_matrix_symbol_is_that_of_the_product():
    """Steady oscillations pass through a kernel filter as the matrix symbol says."""
    rng = np.random.default_rng(6)
    w, direction, theta, n = rng.standard_normal((1, 2, 5)), rng.standard_normal(3), 0.7, 12
    x = np.exp(1j * theta * np.arange(n))[:, None] * direction
    y = tmm_core.causal_toeplitz_matmul(w + 0j, x)
    a = toeplitz_symbol(w, theta)[0]
    expected = (a[1] * np.eye(3) + a[0] * np.eye(3, k=-1)) @ direction * np.exp(1j * theta * (n - 1))
    np.testing.assert_allclose(y[-1], expected, atol=1e-12)
