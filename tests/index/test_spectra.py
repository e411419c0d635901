"""Finite sections and inverses of filters: against dense matrices, and against what operator theory says of them."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse.linalg
from scipy.sparse.linalg import ArpackNoConvergence

from tmm_core import causal_toeplitz, fredholm_index, toeplitz_symbol
from tmm_lab.operators import spectra
from tmm_lab.operators.spectra import DENSE, dominant_lag, finite_section, inverse_growth

EPS = np.finfo(np.float64).eps


def with_zeros(zeros: list[complex]) -> np.ndarray:
    """Return the real lags whose polynomial in u has these zeros."""
    w = np.asarray([1.0])
    for zero in zeros:
        w = np.convolve(w, [-zero, 1.0])
    assert np.allclose(w.imag, 0)
    return w.real


def random_zeros(rng: np.random.Generator, inside: int, outside: int) -> list[complex]:
    """Return real and paired complex zeros, those inside up to 0.7 and those outside from 1.3."""
    zeros: list[complex] = []
    for count, low, high in ((inside, 0.3, 0.7), (outside, 1.3, 2.5)):
        for _ in range(count // 2):
            zero = rng.uniform(low, high) * np.exp(1j * rng.uniform(0, math.pi))
            zeros += [zero, zero.conjugate()]
        zeros += [float(rng.choice([-1, 1]) * rng.uniform(low, high))] * (count % 2)
    return zeros


def lags(kind: str, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(k)
    return {
        "random": noise,
        "complex": noise + 1j * rng.standard_normal(k),
        "decaying": noise * 0.5 ** np.arange(k) + 3 * (np.arange(k) == 0),
        "shifted": np.where(np.arange(k) < 3, 0, noise),
    }[kind]


# Finite sections


@pytest.mark.parametrize("kind", ["random", "complex", "decaying", "shifted"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (5, 1), (5, 5), (5, 40), (60, 40), (97, 97)])
def test_singular_values_are_those_of_the_matrix(kind: str, k: int, n: int) -> None:
    w = lags(kind, k)
    expected = np.linalg.svd(causal_toeplitz(w, n), compute_uv=False)
    section = finite_section(w, n)
    np.testing.assert_allclose(section.singular_values, expected, rtol=0, atol=8 * EPS * math.sqrt(n) * expected[0])
    assert section.n == len(section.singular_values) == n
    assert (section.largest, section.smallest) == (section.singular_values[0], section.singular_values[-1])
    assert section.rank == np.linalg.matrix_rank(causal_toeplitz(w, n))


@pytest.mark.parametrize("zeros", [0, 2])
@pytest.mark.parametrize("kind", ["decaying", "complex"])
def test_the_ends_without_the_matrix_agree_with_it(kind: str, zeros: int) -> None:
    w = np.concatenate([np.zeros(zeros), lags(kind, 300)])
    w[zeros] = 40  # larger than all others together: well-conditioned apart from the zeros
    dense, ends = finite_section(w, 300, dense=True), finite_section(w, 300, dense=False)
    assert ends.singular_values is None
    assert ends.largest == pytest.approx(dense.largest, rel=1e-4)
    if zeros:
        assert (dense.smallest, dense.condition, dense.rank) == (0, math.inf, 298)
        assert (ends.smallest, ends.condition, ends.rank) == (0, math.inf, None)
    else:
        assert ends.condition == pytest.approx(dense.condition, rel=2e-4)
        assert ends.smallest == pytest.approx(dense.smallest, rel=1e-4)
        assert ends.rank == dense.rank == 300


@pytest.mark.parametrize("n", [3, 5, 17])
@pytest.mark.parametrize("kind", ["random", "complex", "shifted"])
def test_few_rows_need_no_matrix_either(kind: str, n: int) -> None:
    w = lags(kind, n)
    dense, ends = finite_section(w, n, dense=True), finite_section(w, n, dense=False)
    assert ends.largest == pytest.approx(dense.largest, rel=1e-4, abs=0)
    assert math.isinf(ends.condition) == (dense.rank < n)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("first", [1e-3, 1e-300])
def test_an_inverse_beyond_float64_is_a_condition_beyond_all_numbers(first: float, dense: bool) -> None:
    section = finite_section([first, 1.0], 500, dense=dense)
    assert section.condition == math.inf
    assert section.rank == (499 if dense else None)
    assert section.largest == pytest.approx(1, rel=2e-3)


def test_shifts_are_nilpotent() -> None:
    for shift in (0, 1, 7, 63, 64):
        w = np.zeros(70)
        w[shift] = -2.5
        section = finite_section(w, 64)
        assert section.rank == 64 - shift
        assert section.singular_values.tolist() == [2.5] * (64 - shift) + [0.0] * shift
        assert section.condition == (1 if shift == 0 else math.inf)


@pytest.mark.parametrize("seed", range(6))
def test_as_many_singular_values_vanish_as_the_index_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside = seed % 4
    w = with_zeros(random_zeros(rng, inside, 3))
    index = fredholm_index(w).index
    assert index == -inside
    section = finite_section(w, 300)  # 0.7^300 is nothing beside eps
    assert section.rank == 300 + index
    kept = section.singular_values[: section.rank]
    assert kept[-1] >= 0.9 * np.abs(toeplitz_symbol(w, points=4096)).min()


@pytest.mark.parametrize("seed", range(4))
def test_sections_of_an_invertible_operator_keep_between_the_ends_of_the_symbol(seed: int) -> None:
    w = with_zeros(random_zeros(np.random.default_rng(seed), 0, 6))
    found = fredholm_index(w)
    magnitudes = np.abs(toeplitz_symbol(w, points=1 << 14))
    conditions = []
    for n in (1, 10, 200):
        section = finite_section(w, n)
        assert found.margin <= magnitudes.min() * (1 + 1e-12) <= section.smallest * (1 + 1e-9)
        assert section.largest <= magnitudes.max() * (1 + 1e-6)  # the grid may miss the very top
        conditions.append(section.condition)
    assert conditions == sorted(conditions)
    assert conditions[-1] == pytest.approx(magnitudes.max() / magnitudes.min(), rel=0.1), "and come near to them"


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e300])
def test_scale_changes_no_rank_and_no_condition(scale: float, dense: bool) -> None:
    w = lags("decaying", 30)
    plain, scaled = finite_section(w, 30, dense=dense), finite_section(w * scale, 30, dense=dense)
    assert scaled.rank == plain.rank
    assert scaled.condition == pytest.approx(plain.condition, rel=1e-6)
    assert scaled.largest == pytest.approx(plain.largest * scale, rel=1e-6)
    assert inverse_growth(w * scale, 30) == pytest.approx(inverse_growth(w, 30), rel=1e-6)
    assert dominant_lag(w * scale) == (dominant_lag(w)[0], pytest.approx(dominant_lag(w)[1]))


def test_nothing_at_all_is_of_rank_zero() -> None:
    section = finite_section(np.zeros(5), 4)
    assert (section.rank, section.largest, section.condition) == (0, 0, math.inf)
    assert section.singular_values.tolist() == [0, 0, 0, 0]
    assert finite_section(np.zeros(5), DENSE + 1).singular_values is None


def test_large_sections_are_not_formed() -> None:
    n = 2 * DENSE
    w = lags("decaying", 64)
    tracemalloc.start()
    section = finite_section(w, n)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * 8 * n, "linear: a matrix would take 8 n^2 bytes"
    assert section.rank == n
    assert section.condition == pytest.approx(finite_section(w, 400).condition, rel=1e-3)


@pytest.mark.parametrize(("lost", "names"), [([1], "largest"), ([2], "smallest"), ([1, 2], "largest and the smallest")])
def test_an_end_that_is_not_found_is_told(lost: list[int], names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ARPACK gives up at the first, the second or both of its calls."""
    w = lags("decaying", 64)
    right = finite_section(w, 300, dense=False)
    assert right.missing == ""
    calls = itertools.count(1)

    def eigsh(*args: object, **kwargs: object) -> object:
        if next(calls) in lost:
            raise ArpackNoConvergence("No convergence (301 iterations)", np.empty(0), np.empty((0, 0)))
        return scipy.sparse.linalg.eigsh(*args, **kwargs)

    monkeypatch.setattr(spectra, "eigsh", eigsh)
    found = finite_section(w, 300, dense=False)
    expected = [math.nan if call in lost else end for call, end in ((1, right.largest), (2, right.smallest))]
    assert [found.largest, found.smallest] == pytest.approx(expected, nan_ok=True)
    assert math.isnan(found.condition)
    assert (found.rank, found.vanishing) == (None, None)
    assert f"the {names} singular value" in found.missing
    assert "ARPACK did not converge" in found.missing


def test_a_condition_beyond_float64_is_told_without_the_largest_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "_norm", lambda *_: math.nan)
    for w in ([0.5, 1.0], [0.0, 1.0]):
        section = finite_section(w, 500, dense=False)
        assert (section.smallest, section.condition, section.rank) == (0, math.inf, None)


# Inverses


@pytest.mark.parametrize("inside", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_inverse_grows_by_the_nearest_zero(seed: int, inside: int) -> None:
    rng = np.random.default_rng([seed, inside])
    zeros = random_zeros(rng, inside, 4)
    nearest = min(zeros, key=abs)
    # Zeros of nearly the same size decide how soon the growth shows: set the nearest apart.
    zeros = [z * 0.8 if abs(z) == abs(nearest) else z for z in zeros]
    w = with_zeros(zeros)
    growth = float(inverse_growth(w, 1024))
    assert growth == pytest.approx(1 / min(map(abs, zeros)), rel=3e-3)
    assert (growth < 1) == (fredholm_index(w).index == 0), "the inverse decays exactly where the index is 0"


def test_growth_is_told_of_heads_together_and_alone() -> None:
    w = np.random.default_rng(0).standard_normal((3, 50))
    w[1, 0] = 0
    w[2, 1:] = 0
    together = inverse_growth(w, 200)
    assert together.shape == (3,)
    assert together[0] == pytest.approx(float(inverse_growth(w[0], 200)), rel=1e-9)
    assert together[1:].tolist() == [math.inf, 0]
    assert inverse_growth(w[0].astype(complex) * 1j, 200) == pytest.approx(together[0], rel=1e-9)


@pytest.mark.parametrize(
    ("w", "growth"),
    [
        ([1.0, 0, 0.81], 0.9),
        ([1.0] + [0] * 49 + [1e-5], 1e-5 ** (1 / 50)),
        ([1e-300, 1.0], 1e300),
        ([1e-300, 1e300], math.inf),  # 1e600
        ([1e300, 1e-300], 0.0),
        ([1e-5, 0, 0, 0, 0, 0, 0, 1.0], 1e5 ** (1 / 7)),
        ([7], 0.0),
        ([0], math.inf),
    ],
)
@pytest.mark.parametrize("n", [4, 1000])
def test_extreme_inverses(w: list[float], growth: float, n: int) -> None:
    # Lags of which most are zero leave few to tell the growth from.
    assert inverse_growth(w, n) == pytest.approx(growth, rel=0.02)


# Shifts


def test_the_share_is_the_lags_part_of_the_energy() -> None:
    w = np.random.default_rng(0).standard_normal(30) * 0.1
    w[11] = -2
    lag, share = dominant_lag(w)
    assert lag == 11
    assert share == pytest.approx(4 / (w**2).sum())
    assert dominant_lag([3.0, -3.0]) == (0, 0.5)
    assert dominant_lag([0, 5j]) == (1, 1.0)
    assert math.isnan(dominant_lag([0.0, 0.0])[1])


# Bad input


@pytest.mark.parametrize("function", [lambda w: finite_section(w, 3), lambda w: inverse_growth(w, 3), dominant_lag])
def test_what_is_no_filter_is_refused(function: Callable[[object], object]) -> None:
    for w in ([1.0, math.nan], [math.inf], [1, complex(0, math.nan)]):
        with pytest.raises(ValueError, match="w must be finite"):
            function(w)
    for w in ([], 3.0, np.ones((1, 2, 3))):
        with pytest.raises(ValueError, match=r"w must be \(k,\).* with at least one lag, and has the shape"):
            function(w)
    with pytest.raises(TypeError, match="w must hold numbers"):
        function(["a"])
    function([True, False])
    function([2, 1])


def test_sections_have_rows() -> None:
    with pytest.raises(ValueError, match="n must be at least 1 row, and is 0"):
        finite_section([1.0], 0)
    with pytest.raises(ValueError, match=r"w must be \(k,\), the lags of one filter"):
        finite_section(np.ones((2, 2)), 2)
