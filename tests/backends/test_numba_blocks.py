"""Long signals that the Numba engine cuts into blocks: the same products, adjoints and correlations."""

import numpy as np
import pytest
from support.numba_oracle import check_correlation, check_product, correlate, normal, product
from support.requirements import import_or_skip

import_or_skip("numba")

import tmm_core
from tmm_backends._numba import blocks, series
from tmm_backends._numba.blocks import Blocks

WAYS = ("channels", "blocks", "rows")


@pytest.fixture(params=[(lanes, size, part) for lanes in WAYS for size, part in ((64, 1 << 20), (150, 3000))])
def cut(request, monkeypatch):
    """Let every signal be cut, into parts of few blocks or all at once; return the size of blocks."""
    lanes, size, part = request.param
    monkeypatch.setattr(blocks, "AT_ONCE", part)
    monkeypatch.setattr(series, "MOST_REGISTERS", 0)
    monkeypatch.setattr(
        Blocks, "of", lambda shape, m, lags, *_, sums: Blocks(size, lags - 1, lanes if m == 1 else "channels")
    )
    return size


@pytest.mark.parametrize(("heads", "kernel_size", "width"), [(1, 1, 1), (2, 1, 2), (1, 2, 3)])
@pytest.mark.parametrize("n", [1, 149, 150, 700])
@pytest.mark.parametrize("lags", [1, 30, 99])
def test_blocks_make_the_whole(heads, kernel_size, width, n, lags, cut):
    lags = min(lags, n)
    w = normal(0, heads, kernel_size, lags)
    x = normal(1, 2, 3, n, 2 * heads * width)[..., ::2]
    for adjoint in (False, True):
        check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)
    g = normal(2, *x.shape)
    options = {"lags": lags, "heads": heads, "kernel_size": kernel_size}
    check_correlation(correlate(x, g, **options), x, g, **options)


@pytest.mark.parametrize("adjoint", [False, True])
def test_what_is_not_finite_reaches_as_far_as_in_the_whole(adjoint, cut):
    w, x = normal(0, 1, 50), normal(1, 3, 700, 2)
    for t in (0, cut - 1, cut, 3 * cut + 7, 699):
        bad = x.copy()
        bad[1, t, 1] = np.inf
        expected = tmm_core.causal_toeplitz_matmul(w, bad, adjoint=adjoint, backend="numpy")
        assert 0 < np.isnan(expected).sum() <= 50
        np.testing.assert_allclose(product(w, bad, adjoint=adjoint), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("adjoint", [False, True])
def test_a_lag_that_is_not_finite_reaches_what_comes_after_it(adjoint, cut):
    w, x = normal(0, 2, 50), normal(1, 3, 700, 2)
    w[1, 17] = np.nan
    expected = tmm_core.causal_toeplitz_matmul(w, x, adjoint=adjoint, backend="numpy")
    assert np.isfinite(expected[..., 1]).any()
    y = product(w, x, adjoint=adjoint)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [50_000, 1_000_000, 4_000_000])
@pytest.mark.parametrize("lags", [49, 1000, 10_000])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_series_is_cut_so_that_blocks_fill_registers(n, lags, lanes):
    cut = Blocks.of((1, n, 1), 1, lags, lanes, 2, sums=True)
    assert cut.lanes == "blocks"
    assert lags <= cut.size + cut.overlap <= n / 2
    assert -(-n // cut.size) >= lanes / 2


def test_many_rows_of_a_channel_are_a_register():
    assert Blocks.of((512, 1000, 1), 1, 1000, 16, 2, sums=True) == Blocks(1000, 0, "rows")


def test_what_gains_nothing_is_left_whole():
    for shape, lags in (((1, 1000, 1), 10), ((8, 2048, 64), 2048), ((1, 65536, 512), 65536)):
        assert Blocks.of(shape, 1, lags, 8, 2, sums=True) is None
