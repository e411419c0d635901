"""Series of few channels and lags, which the Numba engine sums directly along time, cut into pieces."""

import numpy as np
import pytest
from support.numba_oracle import check_correlation, check_product, correlate, normal, product
from support.requirements import import_or_skip

import_or_skip("numba")

import tmm_core
from tmm_backends._numba import engine, series
from tmm_backends._numba.operands import ARITHMETIC, Signals

LANES = ARITHMETIC["float32"].lanes


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    """Let series of a few hundred times be cut, and nothing be computed by transforms."""
    monkeypatch.setattr(series, "SIZE", 64)
    monkeypatch.setattr(engine, "multiply", None)


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 3), (2, 1), (3, 1), (1, LANES)])
@pytest.mark.parametrize("n", [1, 40, 500])
@pytest.mark.parametrize("lags", [1, 8, 33, 60])
@pytest.mark.parametrize("packed", [False, True])
def test_sums_along_time(heads, width, n, lags, packed):
    w, x, g = normal(0, heads, 1, lags), normal(1, 2, n, 2 * heads * width)[..., ::2], normal(2, 2, n, heads * width)
    ids = np.sort(np.random.default_rng(0).integers(0, 4, n)) if packed else None
    for adjoint in (False, True):
        check_product(product(w, x, adjoint=adjoint, segment_ids=ids), w, x, adjoint=adjoint, ids=ids)
    options = {"lags": lags, "heads": heads, "kernel_size": 1}
    check_correlation(correlate(x, g, segment_ids=ids, **options), x, g, ids=ids, **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_sums_of_other_dtypes(dtype):
    w, x, g = normal(0, 2, 1, 20, dtype=dtype), normal(1, 300, 2, dtype=dtype), normal(2, 300, 2, dtype=dtype)
    for adjoint in (False, True):
        check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)
    check_correlation(correlate(x, g, lags=20, heads=2), x, g, 20, 2, 1)


@pytest.mark.parametrize("heads", [1, 3])
def test_correlations_of_more_channels_than_a_register_has(heads, monkeypatch):
    monkeypatch.setattr(series, "LONG", 1)
    x, g = normal(0, 2, 150, 3 * LANES + 3), normal(1, 2, 150, 3 * LANES + 3)
    check_correlation(correlate(x, g, lags=20, heads=heads), x, g, 20, heads, 1)


@pytest.mark.parametrize("lags", [1, 30])
def test_pieces_cover_their_signals_once(lags):
    signals = Signals.of(1, 1000, np.repeat([0, 1, 2], [1, 99, 900])[None])
    for adjoint in (False, True):
        pieces = series.Pieces.of(signals, lags, 1, adjoint=adjoint)
        begin = pieces.inputs.start + pieces.skipped
        np.testing.assert_array_equal(begin[1:], (begin + pieces.outputs)[:-1])
        assert (begin[0], begin[-1] + pieces.outputs[-1]) == (0, 1000)
        assert len(pieces) > 10
        assert pieces.inputs.length.max() <= 64 + 2 * lags


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("value", [np.nan, 1e30, 1e-42])
def test_what_is_out_of_range_changes_no_bit_that_it_does_not_reach(adjoint, value):
    w, x = normal(0, 1, 20), normal(1, 500, 1)
    for t in (0, 63, 64, 499):
        other = x.copy()
        other[t] = value
        reached = slice(max(0, t - 19), t + 1) if adjoint else slice(t, t + 20)
        y, before = product(w, other, adjoint=adjoint), product(w, x, adjoint=adjoint)
        assert np.isnan(y[reached]).all() == np.isnan(value)
        y[reached] = before[reached]
        np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_lag_that_is_not_finite_reaches_what_comes_after_it(adjoint, packed):
    w, x = normal(0, 2, 30), normal(1, 3, 500, 2)
    w[1, 17] = np.inf
    ids = np.sort(np.random.default_rng(0).integers(0, 4, (3, 500))) if packed else None
    expected = tmm_core.causal_toeplitz_matmul(w, x, adjoint=adjoint, segment_ids=ids, backend="numpy")
    assert np.isfinite(expected[..., 1]).any()
    y = product(w, x, adjoint=adjoint, segment_ids=ids)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-44, 1e-18, 1e30])
def test_series_whose_pieces_have_any_magnitude(scale):
    sizes = np.geomspace(scale, scale**0.1, 500)[:, None]
    x, g, w = ((normal(i, 500, 1) * a).astype("float32") for i, a in enumerate((sizes, sizes[::-1], 1)))
    w = w[:20, 0]
    for adjoint in (False, True):
        check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)
    check_correlation(correlate(x, g, lags=20), x, g, 20, 1, 1)


@pytest.mark.parametrize("faint", [0.0, 1e-40])
def test_a_channel_out_of_range_costs_no_other_its_correlation(faint):
    x, g = normal(0, 30, 2), normal(1, 30, 2)
    x[:, 0] *= faint
    g *= np.asarray([1e25, 1e30], "float32")
    check_correlation(correlate(x, g, lags=5, heads=2), x, g, 5, 2, 1)
