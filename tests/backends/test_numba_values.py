"""The Numba engine on documents and on numbers of any size. The laws themselves run in `test_laws.py`."""

import itertools

import numpy as np
import pytest
from support.requirements import import_or_skip

import_or_skip("numba")

import ml_dtypes
from support.numba_oracle import (
    DTYPES,
    check_correlation,
    check_product,
    check_within,
    correlate,
    normal,
    product,
    widened,
)

from tmm_backends._numba import blocks
from tmm_core.testing.oracles import error_bound, error_factor


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Documents -----------------------------------------------------------------------------------------------------------


def packed(rng, rows, n):
    """Return documents of many lengths: alone, across the crossovers of methods, and of length one."""
    cuts = [
        np.r_[np.arange(40), 50, 50 + blocks.DIRECT_LENGTH, 51 + 2 * blocks.DIRECT_LENGTH, 400] for _ in range(rows)
    ]
    return np.stack([np.searchsorted(cut + rng.integers(0, 9), np.arange(n), side="right") for cut in cuts])


@pytest.mark.parametrize(("heads", "kernel_size"), [(1, 1), (3, 1), (51, 1), (1, 3), (3, 17), (51, 2)])
def test_documents_are_what_each_is_alone(heads, kernel_size, rng):
    n, rows = 700, 2
    w, x, g = normal(0, heads, kernel_size, n), normal(1, rows, n, 51), normal(2, rows, n, 51)
    ids = packed(rng, rows, n)
    for adjoint in (False, True):
        y = product(w, x, adjoint=adjoint, segment_ids=ids)
        for row, document in itertools.product(range(rows), np.unique(ids)):
            its = row, ids[row] == document
            check_product(y[its], w, x[its], adjoint=adjoint)
    options = {"lags": n, "heads": heads, "kernel_size": kernel_size}
    check_correlation(correlate(x, g, segment_ids=ids, **options), x, g, **options, ids=ids)


@pytest.mark.parametrize("kernel_size", [1, 2])
@pytest.mark.parametrize("value", [1e38, np.inf, np.nan, 1e-44])
def test_what_other_documents_hold_changes_no_bit(value, kernel_size, rng):
    n, heads = 700, 3
    w, x = normal(0, heads, kernel_size, n), normal(1, 2, n, 51)
    ids = packed(rng, 2, n)
    kept = (ids % 2 == 0)[..., None]
    other = np.where(kept, x, np.float32(value))
    for adjoint in (False, True):
        y, z = (product(w, a, adjoint=adjoint, segment_ids=ids) for a in (x, other))
        np.testing.assert_array_equal(np.where(kept, z, 0), np.where(kept, y, 0))
    options = {"lags": n, "heads": heads, "kernel_size": kernel_size}
    weights = np.where(kept, normal(2, 2, n, 51), 0)  # the others count for nothing
    if np.isfinite(value):
        check_correlation(correlate(other, weights, segment_ids=ids, **options), other, weights, **options, ids=ids)


def test_documents_of_one_time():
    w, x = normal(0, 4, 3), normal(1, 2, 500, 8)
    ids = np.arange(500)
    np.testing.assert_allclose(product(w, x, segment_ids=ids), x * w[:, 0].repeat(2), rtol=1e-6)
    c = correlate(x, x, lags=3, heads=4, segment_ids=ids)
    check_correlation(c, x, x, 3, 4, 1, ids)
    np.testing.assert_array_equal(c[:, 1:], 0)


# Range ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kernel_size", [1, 2])
def test_filters_and_signals_of_any_size(n, dtype, kernel_size, rng):
    sizes = [0.0, 1e-44, 1e-40, 1e-30, 1.0, 1e15, 1e30, 1e38]
    if dtype == "float64":
        sizes = [0.0, 5e-324, 1e-308, 1e-200, 1.0, 1e120, 1e140, 1e307]
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    shape = rng.uniform(-1, 1, (2, kernel_size, n)), rng.uniform(-1, 1, (n, 2 * len(sizes)))
    for size in sizes:
        w = (size * shape[0]).astype(DTYPES[dtype])
        signals = [s for s in sizes if s * size * 4 * n < largest]
        x = (np.tile(signals, 2) * shape[1][:, : 2 * len(signals)]).astype(DTYPES[dtype])
        for adjoint in (False, True):
            check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)


@pytest.mark.parametrize(
    "sizes", [(1e-43, 1e14), (1e-38, 1e10), (1e-25, 1e-10), (1e30, 1e-30), (1e38, 1e-40), (1e-15, 1e-15)]
)
@pytest.mark.parametrize("kernel_size", [1, 2])
def test_correlations_of_signals_of_any_size(sizes, kernel_size, rng):
    n = 130
    x, g = ((size * rng.uniform(-1, 1, (2, n, 6))).astype(np.float32) for size in sizes)
    for pair in ((x, g), (g, x)):
        check_correlation(correlate(*pair, lags=n, heads=2, kernel_size=kernel_size), *pair, n, 2, kernel_size)


@pytest.mark.parametrize("kernel_size", [1, 2])
@pytest.mark.parametrize("size", [2e11, 1e14, 1e15])
def test_correlations_of_large_signals_stay_in_range(size, kernel_size):
    x = np.full((8, 8192, 16), size, np.float32)  # its spectrum is one large number, of which a thousand are added up
    c = correlate(x, x, lags=3, heads=1, kernel_size=kernel_size)[0]
    channels = 16 - (kernel_size - 1 - np.arange(kernel_size))[:, None]
    expected = (8.0 * size) * size * channels * (8192 - np.arange(3))
    np.testing.assert_allclose(c.astype(float).reshape(expected.shape), expected, rtol=1e-6)


@pytest.mark.parametrize("n", [50, 200])
@pytest.mark.parametrize("kernel_size", [1, 2])
def test_channels_do_not_touch_each_other(n, kernel_size):
    w, x = normal(0, 2, kernel_size, n), normal(1, n, 34)
    plain = [product(w, x, adjoint=adjoint) for adjoint in (False, True)]
    for value in (1e6, 1e38, 1e-44, np.nan, np.inf, -np.inf):
        other = x.copy()
        other[:, 5] *= value if np.isfinite(value) else 1
        other[7, 5] = value
        for adjoint, before in zip((False, True), plain, strict=True):
            y = product(w, other, adjoint=adjoint)
            near = np.arange(34) != 5
            near[5 - kernel_size + 1 : 5 + kernel_size] = False
            bound = error_bound(widened(w), widened(x), "float32", adjoint=adjoint)
            check_within(y[:, near], widened(before[:, near]), 2 * bound[:, near])
            assert np.isnan(y[7, 5]) == (not np.isfinite(value))


def test_zeros_give_zeros():
    w, x = normal(0, 2, 200), normal(1, 200, 18)
    for zero in (0.0, -0.0):
        np.testing.assert_array_equal(product(w * zero, x), 0)
        np.testing.assert_array_equal(product(w, x * zero), 0)
        np.testing.assert_array_equal(correlate(x, x * zero, lags=200), 0)
    x[:, 3] = 0
    np.testing.assert_array_equal(product(w, x)[:, 3], 0)


# Rounding that adds up -----------------------------------------------------------------------------------------------


def drifting(count, dtype):
    """Return numbers near one, each of which a running sum rounds down by nearly half a unit in its last place."""
    total, numbers = 0.0, []
    for _ in range(count):
        unit = np.finfo(dtype).eps * 2.0 ** np.floor(np.log2(max(total, 1)))
        numbers.append(1 + unit / 2 - np.finfo(dtype).eps if unit > np.finfo(dtype).eps else 1.0)
        total += 1
    return np.asarray(numbers, dtype)


@pytest.mark.parametrize(("n", "lags"), [(80, 80), (97, 96), (128, 96)])
def test_sums_that_always_round_down(n, lags):
    w, x = np.ones((1, lags), np.float32), np.zeros((n, 2), np.float32)
    x[:lags] = drifting(lags, np.float32)[:, None]
    check_product(product(w, x), w, x)


@pytest.mark.parametrize(
    ("rows", "n", "d", "one_by_one"),
    [(4096, 96, 16, False), (16384, 32, 16, False), (2, 96, 8192, False), (8, 512, 32, True)],
)
def test_sums_over_many_signals(rows, n, d, one_by_one):
    ids = np.arange(n) if one_by_one else None
    for a in np.random.default_rng(0).uniform(1, 2, 3).astype(np.float32):
        x = np.broadcast_to(a, (rows, n, d))
        c = correlate(x, np.broadcast_to(np.float32(1), x.shape), lags=n, segment_ids=ids)[0]
        count = (n - np.arange(n)) * rows * d
        expected = np.where(np.arange(n) == 0, count, 0) if one_by_one else count
        check_within(c, expected * float(a), error_factor(n, "float32") * rows * d * n * float(a))


def test_what_a_half_cannot_hold_is_infinite_without_a_warning():
    x = np.full((200, 2), 300, np.float16)
    assert np.all(np.isinf(correlate(x, x, lags=50)))
    assert np.all(np.isinf(product(x[:, 0], x)[50:]))


def test_what_is_left_to_numpy_or_scaled_is_logged(caplog):
    w, x = np.ones((1, 1, 4), np.float32), np.ones((300, 2), np.float32)
    huge = x * np.float32(1e30)
    with caplog.at_level("DEBUG", "tmm_core"):
        product(w, x)
        correlate(x, x, lags=3)
        assert not caplog.messages
        calls = {
            "computed by NumPy": (lambda: product(w, x, method="direct"),
                                  lambda: correlate(x, x, lags=3, method="direct")),
            "are scaled": (lambda: product(w * np.float32(1e-30), huge),
                           lambda: product(w * np.inf, x),
                           lambda: correlate(huge * np.nan, x, lags=3)),
        }  # fmt: skip
        for words, several in calls.items():
            for call in several:
                caplog.clear()
                call()
                assert any(words in message for message in caplog.messages)
