"""Dask arrays: lazy, in chunks of any shape, beside NumPy arrays."""

import functools

import numpy as np
import pytest
from support.requirements import import_or_skip

import tmm_core

da = import_or_skip("dask.array")

RNG = np.random.default_rng(0)
W, X = RNG.standard_normal((2, 3, 20)), RNG.standard_normal((3, 2, 50, 4))
IDS = np.sort(RNG.integers(0, 4, (2, 50)), axis=-1)


def chunked():
    return da.from_array(X, chunks=(2, 1, 17, 3))


@pytest.mark.parametrize("w", [W, da.from_array(W, chunks=(1, 2, 7))], ids=["numpy-w", "dask-w"])
@pytest.mark.parametrize("ids", [None, IDS, da.from_array(IDS, chunks=(1, 20))], ids=["whole", "numpy-ids", "dask-ids"])
@pytest.mark.parametrize("adjoint", [False, True])
def test_products_are_lazy_and_right(w, ids, adjoint):
    y = tmm_core.causal_toeplitz_matmul(w, chunked(), segment_ids=ids, adjoint=adjoint)
    expected = tmm_core.causal_toeplitz_matmul(W, X, segment_ids=None if ids is None else IDS, adjoint=adjoint)
    assert isinstance(y, da.Array)
    assert (y.shape, y.dtype) == (X.shape, X.dtype)
    assert y.numblocks == (2, 2, 1, 1), "blocks of rows stay apart, times and channels come together"
    np.testing.assert_allclose(y.compute(), expected, atol=1e-12)


@pytest.mark.parametrize("ids", [None, IDS])
def test_correlations_are_lazy_and_right(ids):
    x, g = chunked(), da.from_array(X[..., ::-1], chunks=(3, 1, 50, 4))
    c = tmm_core.causal_toeplitz_correlate(x, g, lags=60, heads=2, kernel_size=3, segment_ids=ids)
    expected = tmm_core.causal_toeplitz_correlate(X, X[..., ::-1], lags=60, heads=2, kernel_size=3, segment_ids=ids)
    assert isinstance(c, da.Array)
    assert (c.shape, c.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(c.compute(), expected, atol=1e-11)


def test_nothing_is_computed_early():
    def fail(block):
        raise RuntimeError("computed too early")

    x = chunked().map_blocks(fail, dtype=X.dtype, meta=np.empty((0,) * 4))
    y = tmm_core.causal_toeplitz_matmul(W, x, segment_ids=IDS)
    assert y.dtype == X.dtype
    with pytest.raises(RuntimeError, match="too early"):
        y.compute()


def test_single_precision_and_dtypes_before_computing():
    y = tmm_core.causal_toeplitz_matmul(W.astype("complex64"), chunked().astype("float32"))
    assert y.dtype == np.complex64
    assert y.compute().dtype == np.complex64


def test_documents_out_of_order_are_refused_when_computed():
    with pytest.raises(ValueError, match="not decrease"):
        tmm_core.causal_toeplitz_matmul(W, chunked(), segment_ids=IDS[:, ::-1]).compute()


@pytest.mark.parametrize("call", ["matmul", "correlate", "solve", "inverse"])
def test_the_choice_is_made_when_it_is_called(call, monkeypatch):
    """However late it is computed, and by a thread that knows nothing of the choice."""
    w, x = da.from_array(W[:, 0], chunks=(1, 7)), chunked()
    calls = {
        "matmul": lambda: tmm_core.causal_toeplitz_matmul(w, x),
        "correlate": lambda: tmm_core.causal_toeplitz_correlate(x, x, lags=3),
        "solve": lambda: tmm_core.causal_toeplitz_solve(w, x),
        "inverse": lambda: tmm_core.causal_toeplitz_inverse(w, 50),
    }
    computed = set()
    for name in ("array_api", "numpy", "numba"):
        engine = tmm_core.get_backend(name).engine
        for part in ("matmul", "correlate"):

            def spied(*arrays, _name, _real, **options):
                computed.add(_name)
                return _real(*arrays, **options)

            spy = functools.partial(spied, _name=name, _real=getattr(engine, part))
            monkeypatch.setattr(engine, part, spy)
    with tmm_core.use_backend("numpy"):
        lazy = calls[call]()
    assert not computed
    lazy.compute(scheduler="threads")
    assert computed == {"numpy"}


def test_solutions_and_general_products():
    w = W[:, 0] / 5
    w[:, 0] = 1
    np.testing.assert_allclose(
        tmm_core.causal_toeplitz_solve(w, chunked()).compute(), tmm_core.causal_toeplitz_solve(w, X), atol=1e-12
    )
    y = tmm_core.toeplitz_matmul(da.asarray(w), None, chunked()[:, :, :20])
    np.testing.assert_allclose(y.compute(), tmm_core.toeplitz_matmul(w, None, X[:, :, :20]), atol=1e-12)
