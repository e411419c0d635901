"""The operator index: against zeros in many digits, against the theory, and never wrong where it is hard."""

import dataclasses
import math
import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from conftest import library_or_skip
from exact_roots import zeros_inside

import tmm_core
from tmm_core import _fixed_point, _winding, fredholm_index, toeplitz_symbol

EPS = 2.0**-52


def from_zeros(zeros):
    """Return real lags with these zeros and their conjugates, as float64 rounds them."""
    zeros = np.asarray(zeros)
    w = np.real(np.poly(np.concatenate((zeros, np.conj(zeros)))))[::-1]
    return w / np.max(np.abs(w))


def on_circle(angles):
    return np.exp(1j * np.asarray(angles))


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


def index_by_zeros(w):
    """Return the index that zeros in many digits say, or None where one is not proven to be off the circle."""
    used = np.flatnonzero(w)
    try:
        return -zeros_inside(w[used[0] : used[-1] + 1])[0] - int(used[0])
    except ArithmeticError:
        return None


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
@pytest.mark.timeout(0)
def test_ten_thousand_random_filters_have_the_index_that_their_zeros_say():
    rng = np.random.default_rng(8)
    degrees = [int(rng.integers(1, 301)) for _ in range(1000)] + [int(300 ** rng.random()) for _ in range(9000)]
    found = [check_random(1000 + seed, degree) for seed, degree in enumerate(degrees)]
    assert sum(found) >= 9990


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
    assert least * 0.7 < found.margin <= least * (1 + 1e-12)


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
    assert 0.7 * least < fredholm_index(w).margin <= least


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


# Hard filters


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


# Bad input


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_scales_change_the_margin_only(scale):
    w = np.asarray([1.0, -2.5, 1.3, 0.1])
    plain, found = fredholm_index(w), fredholm_index(w * scale)
    assert found.index == plain.index == -1
    assert found.margin == pytest.approx(plain.margin * scale, rel=1e-12)


def test_the_smallest_and_the_largest_numbers():
    tiny, huge = 5e-324, np.finfo(float).max
    assert fredholm_index(np.asarray([0.0, tiny])) == fredholm_index(np.asarray([0.0, tiny, 0.0]))
    assert fredholm_index(np.asarray([0.0, tiny])).margin == tiny
    found = fredholm_index(np.asarray([10 * tiny, 3 * tiny]))
    assert (found.index, found.margin) == (0, 5 * tiny)  # of seven
    assert fredholm_index(np.asarray([3 * tiny, 2 * tiny])).reason.startswith("not decidable: the symbol's least")
    found = fredholm_index(np.asarray([huge, huge, -huge]))
    assert found.index == index_by_zeros(np.asarray([1.0, 1.0, -1.0]))
    assert found.margin <= np.min(np.abs(toeplitz_symbol(np.asarray([huge, huge, -huge]), points=64)))
    found = fredholm_index(np.asarray([huge, 0, 1j * huge * 0.1, 1e-300]))
    assert (found.index, found.margin <= huge) == (0, True)
    assert fredholm_index(np.asarray([1e-300, 1.0])).index == -1
    assert fredholm_index(np.asarray([1e300, -1e300, 1e-300])).reason.startswith("not decidable: near theta = ")
    assert fredholm_index(np.asarray([1e300, -1e300, 1.0, -1.0])).reason.startswith("not Fredholm")


def test_margins_of_single_complex_lags_are_below_their_magnitudes():
    rng = np.random.default_rng(0)
    for _ in range(50):
        re, im = rng.standard_normal(2)
        margin = fredholm_index(np.asarray([complex(re, im)])).margin
        assert Fraction(margin) ** 2 <= Fraction(re) ** 2 + Fraction(im) ** 2
        assert margin == pytest.approx(abs(complex(re, im)), rel=4 * EPS)


def test_filters_without_an_index():
    found = fredholm_index(np.zeros(5))
    assert (found.index, found.margin, found.certified) == (None, 0.0, False)
    assert found.reason == "not Fredholm: every lag is zero"
    heads = fredholm_index(np.asarray([[0.0, 0.0], [0.0, 1.0]]))
    assert [one.index for one in heads] == [None, -1]


@pytest.mark.parametrize(
    ("w", "error", "text"),
    [
        ([1.0], TypeError, "got list"),
        (np.asarray([True, False]), TypeError, "got bool"),
        (np.asarray([1.0, np.nan]), ValueError, r"w must be finite, and w\[1\] is nan"),
        (np.asarray([[1.0, 2.0], [-np.inf, 1.0]]), ValueError, r"w\[1, 0\] is -inf"),
        (np.asarray([complex(1, np.inf)]), ValueError, "w must be finite"),
        (np.zeros(0), ValueError, "at least one of each"),
        (np.zeros((2, 0)), ValueError, "at least one of each"),
        (np.float64(1.0), ValueError, r"must be \(k,\)"),
        (np.zeros((1, 1, 1, 1)), ValueError, r"must be \(k,\)"),
        (np.asarray([2**53 + 1]), ValueError, "beyond 2\\^53"),
        (np.asarray(["a"]), TypeError, "expected arrays of"),
    ],
)
def test_bad_filters_are_refused(w, error, text):
    for function in (fredholm_index, lambda w: toeplitz_symbol(w, points=8)):
        with pytest.raises(error, match=text):
            function(w)


def test_bad_options_are_refused():
    w = np.asarray([1.0, 0.5])
    with pytest.raises(ValueError, match="channels must be at least 1"):
        fredholm_index(w, channels=0)
    with pytest.raises(TypeError, match="either theta"):
        toeplitz_symbol(w)
    with pytest.raises(TypeError, match="either theta"):
        toeplitz_symbol(w, 0.0, points=4)
    with pytest.raises(ValueError, match="points must be at least 1"):
        toeplitz_symbol(w, points=0)
    with pytest.raises(ValueError, match="theta must be finite"):
        toeplitz_symbol(w, [0.0, np.nan])


# Arrays of all libraries


def test_every_library_and_dtype(xp):
    values = np.asarray([[0.5, 2.0, 0.25], [4.0, 1.0, -0.5]])
    for dtype in xp.dtypes:
        w = xp.asarray(values, dtype)
        assert fredholm_index(w) == fredholm_index(values)
        np.testing.assert_allclose(toeplitz_symbol(w, points=8), toeplitz_symbol(values, points=8), atol=1e-14)


@pytest.mark.parametrize(
    "made",
    [
        np.asfortranarray,
        lambda a: a.astype(a.dtype.newbyteorder()),
        lambda a: np.flip(np.flip(a).copy()),
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.ascontiguousarray(a.T).T,
    ],
    ids=["fortran", "byte-swapped", "negative-strides", "gaps", "transposed"],
)
def test_any_memory_layout_is_read_as_its_values(made):
    rng = np.random.default_rng(0)
    for w in (rng.standard_normal((3, 7)), rng.standard_normal((3, 7)) + 1j * rng.standard_normal((3, 7))):
        assert fredholm_index(made(w)) == fredholm_index(w)
        np.testing.assert_array_equal(toeplitz_symbol(made(w), points=8), toeplitz_symbol(w, points=8))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_are_read_as_numbers(dtype):
    assert fredholm_index(np.asarray([1, 2, 5], dtype)) == fredholm_index(np.asarray([1.0, 2.0, 5.0]))


def test_tensors_that_record_gradients_or_are_views():
    torch = library_or_skip("torch") and pytest.importorskip("torch")
    w = torch.tensor([1 + 1j, 3 - 2j], dtype=torch.complex128)
    assert fredholm_index(w.requires_grad_()) == fredholm_index(w.detach().numpy())
    assert fredholm_index(torch.conj(w)) == fredholm_index(np.conj(w.detach().numpy()))
    assert fredholm_index(torch.tensor([1, 3, 1])).index == -1


def test_traced_filters_are_refused():
    torch = library_or_skip("torch") and pytest.importorskip("torch")
    jax = library_or_skip("jax") and pytest.importorskip("jax")

    def margin(w):
        return fredholm_index(w).margin * w[0]

    with pytest.raises(TypeError, match="w is traced"):
        jax.jit(margin)(jax.numpy.asarray([1.0, 2.0]))
    with pytest.raises(TypeError, match="w is traced"):
        torch.func.grad(margin)(torch.tensor([1.0, 2.0]))


# The symbol


def test_symbols_on_a_grid_are_those_at_its_angles():
    rng = np.random.default_rng(9)
    w = rng.standard_normal((2, 3, 37)) + 1j * rng.standard_normal((2, 3, 37))
    for points in (1, 5, 37, 64, 100):
        at_angles = toeplitz_symbol(w, 2 * np.pi * np.arange(points) / points)
        np.testing.assert_allclose(toeplitz_symbol(w, points=points), at_angles, atol=1e-12)
        direct = np.sum(
            w[..., None] * np.exp(-1j * np.arange(37)[:, None] * 2 * np.pi * np.arange(points) / points), -2
        )
        np.testing.assert_allclose(at_angles, direct, atol=1e-12)


def test_shapes_of_symbols():
    assert toeplitz_symbol(np.ones(4), 0.5).shape == ()
    assert toeplitz_symbol(np.ones((2, 4)), np.zeros((3, 5))).shape == (2, 3, 5)
    assert toeplitz_symbol(np.ones((2, 3, 4)), np.zeros(0)).shape == (2, 3, 0)
    assert toeplitz_symbol(np.ones((2, 4)), points=6).shape == (2, 6)


def test_late_lags_turn_by_the_exact_angle():
    w = np.zeros(65536)
    w[-1] = 1
    mpmath.mp.prec = 100
    angles = np.random.default_rng(0).uniform(-10, 10, 50)
    exact = [complex(mpmath.expj(-65535 * mpmath.mpf(angle))) for angle in angles]
    np.testing.assert_allclose(toeplitz_symbol(w, angles), exact, rtol=0, atol=4 * EPS)


def test_symbols_of_extreme_filters():
    assert toeplitz_symbol(np.asarray([1e308, 1e308, -1e308]), points=1)[0] == 1e308
    assert np.isinf(toeplitz_symbol(np.asarray([1.5e308, 1.5e308]), points=1)[0].real)
    assert toeplitz_symbol(np.asarray([5e-324, 5e-324]), 0.0) == 1e-323
    assert np.all(toeplitz_symbol(np.zeros(3), points=4) == 0)


# What the proof stands on


def test_ffts_err_less_than_the_proof_takes_them_to():
    rng = np.random.default_rng(0)
    for exponent in (1, 2, 3, 7, 10, 12):
        points = 1 << exponent
        for w in (rng.standard_normal(points), rng.standard_normal(points) + 1j * rng.standard_normal(points)):
            w = w / 16
            found = np.fft.fft(w)
            for i in rng.integers(0, points, 5).tolist():
                re, im = _fixed_point.powers(_fixed_point.cis(-2 * i, exponent), points)
                wr, wi = _fixed_point.from_floats(w.real), _fixed_point.from_floats(w.imag)
                exact = complex(sum(wr * re - wi * im) / (1 << 512), sum(wr * im + wi * re) / (1 << 512))
                assert abs(found[i] - exact) <= EPS * (4 * exponent + 8) * np.sum(np.abs(w))


@pytest.mark.parametrize("numerator", [0, 1, -1, 12345, -(3 << 28), (5 << 30) + 7])
def test_phases_have_256_places(numerator):
    mpmath.mp.prec = 300
    exact = mpmath.expjpi(mpmath.mpf(numerator) / 2**30)
    re, im = _fixed_point.cis(numerator, 30)
    assert abs(mpmath.mpc(re, im) / mpmath.mpf(2) ** 256 - exact) < mpmath.mpf(2) ** -248
    re, im = _fixed_point.powers((re, im), 1000)
    assert abs(mpmath.mpc(re[-1], im[-1]) / mpmath.mpf(2) ** 256 - exact**999) < mpmath.mpf(2) ** -236


def test_taylor_polynomials_from_integers_are_those_from_ffts():
    w = np.random.default_rng(1).standard_normal(50) / 8
    symbol = _winding._Symbol(w)
    arcs = symbol.first_arcs()[::13]
    exact = symbol.exact_arcs(arcs)
    assert np.all(np.sum(np.abs(arcs.terms - exact.terms[: len(arcs.terms)]), axis=0) <= arcs.error + exact.error)
    assert np.all(exact.error < 0.1 * arcs.error)


def test_cut_arcs_are_the_same_polynomial():
    w = np.random.default_rng(1).standard_normal(50) / 8
    symbol = _winding._Symbol(w)
    arcs = symbol.first_arcs()[::13]
    halves = _winding._halves(arcs, np.abs(arcs.terms))
    exact = symbol.exact_arcs(halves)
    orders = len(halves.terms)
    assert np.all(np.sum(np.abs(halves.terms - exact.terms[:orders]), axis=0) <= halves.error + exact.error)
    assert np.all(halves.error < 1.2 * np.tile(arcs.error, 2))
    # From polynomials that are taken for exact, what is left is the rounding of the cut.
    arcs = symbol.exact_arcs(arcs)
    halves = _winding._halves(dataclasses.replace(arcs, error=0 * arcs.error), np.abs(arcs.terms))
    found = np.sum(np.abs(halves.terms[: len(exact.terms)] - exact.terms), axis=0)
    assert np.all(found <= halves.error)
    assert np.any(found > 0)


def test_terms_that_are_left_out_count_as_error():
    terms = np.asarray([[1.0], [0.5], [1e-4]], complex)
    arcs = _winding._Arcs(0, np.zeros(1, int), np.zeros(1, int), terms, np.ones(1))
    halves = _winding._halves(arcs, np.abs(terms))
    assert len(halves.terms) == 2
    assert np.all(halves.error >= 1 + 1e-4)


def test_memory_is_linear_in_the_lags():
    rng = np.random.default_rng(0)
    peaks = []
    for k in (1 << 11, 1 << 13, 1 << 15):
        w = rng.standard_normal(k)
        fredholm_index(w[:64])
        tracemalloc.start()
        fredholm_index(w)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0]
    assert peaks[2] < 5 * peaks[1]
    assert peaks[2] < 2048 * (1 << 15)
