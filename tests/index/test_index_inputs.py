"""What the operator index and the symbol accept, and what they refuse: scales, bad filters, arrays of all libraries."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from support.exact_roots import index_by_zeros
from support.requirements import import_or_skip, library_or_skip

from tmm_core import fredholm_index, toeplitz_symbol
from tmm_core.errors import InputTypeError

EPS = 2.0**-52


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
    for theta in (np.ones(2, complex), np.asarray(["1"]), np.zeros(2, "M8[s]"), [1, [2, 3]], [1j], np.ones(2, object)):
        with pytest.raises(InputTypeError, match=r"theta must be (real numbers|angles)"):
            toeplitz_symbol(np.ones(3), theta)
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
    torch = import_or_skip("torch")
    w = torch.tensor([1 + 1j, 3 - 2j], dtype=torch.complex128)
    assert fredholm_index(w.requires_grad_()) == fredholm_index(w.detach().numpy())
    assert fredholm_index(torch.conj(w)) == fredholm_index(np.conj(w.detach().numpy()))
    assert fredholm_index(torch.tensor([1, 3, 1])).index == -1


def test_traced_filters_are_refused():
    torch = import_or_skip("torch")
    jax = library_or_skip("jax") and import_or_skip("jax")

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
