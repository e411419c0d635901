"""Streams of the Numba engine, against the product. The laws of streaming run elsewhere, over all backends."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.requirements import import_or_skip

import_or_skip("numba")

from support.numba_oracle import check_within, normal, widened

import tmm_core
from tmm_backends._numba import backend, streaming, threads, tiles
from tmm_core.backend import StreamLayer
from tmm_core.testing.oracles import dense_product, error_bound

engine = backend.engine


def layer_stream(w, capacity, leaf=None):
    """Return the engine's streams of the filters `(h, m, k)`."""
    return engine.stream(StreamLayer(w, None, None, tmm_core.causal_toeplitz_matmul, capacity, leaf))


def stream(w, x, *, capacity=None, leaf=None, layer=None):
    """Return the outputs of a stream, `(b, n, d)`, each from a call of the engine."""
    rows, n, d = x.shape
    layer = layer or layer_stream(w, capacity or n, leaf)
    cache, outputs = np.zeros((rows, capacity or n, d), x.dtype), []
    for t in range(n):
        y, after = layer.step(cache, t, t, None, x[:, t])
        assert after is cache
        outputs.append(y)
    np.testing.assert_array_equal(cache[:, :n], x)
    return np.stack(outputs, axis=1)


def check(y, w, x):
    """Check outputs by the error law of streams: that of products, times the root of as many as are added up."""
    w, x, dtype = widened(w), widened(x), y.dtype.name
    bound = error_bound(w, x, dtype) * np.log2(2 * x.shape[1]) ** 0.5
    check_within(y, dense_product(w, x), bound)


SHAPES = [  # heads, kernel, channels: full registers of one filter, parts of a register, registers of several filters
    (1, 1, 160),
    (2, 1, 320),
    (1, 1, 5),
    (3, 1, 51),
    (40, 1, 40),
    (1, 3, 20),
    (3, 2, 33),
    (4, 5, 8),
]


@pytest.mark.parametrize(("heads", "kernel_size", "d"), SHAPES)
@pytest.mark.parametrize("lags", [1, 20, 200, 300])
def test_streams_are_products(heads, kernel_size, d, lags):
    w, x = normal(0, heads, kernel_size, lags), normal(1, 2, 200, d)
    check(stream(w, x, capacity=210), w, x)


@pytest.mark.parametrize(("heads", "kernel_size", "d"), [(2, 1, 40), (2, 3, 20)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("leaf", [1, 2, 8, 64, 256])
def test_any_leaf_will_do(heads, kernel_size, d, dtype, leaf):
    w, x = normal(0, heads, kernel_size, 150, dtype=dtype), normal(1, 1, 150, d, dtype=dtype)
    check(stream(w, x, leaf=leaf), w, x)


def test_short_streams_have_no_tiles():
    for capacity in (1, 2, 33, streaming.SHORT):
        assert layer_stream(normal(0, 1, 1, 5), capacity).leaf >= capacity
    assert layer_stream(normal(0, 1, 1, 5), streaming.SHORT + 1).leaf == streaming.LEAF
    assert layer_stream(normal(0, 1, 1, 5), 10**6).leaf == streaming.LEAF


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("lags", [20, 50, 300])
def test_what_is_not_finite_reaches_what_it_does_in_a_product(kernel_size, lags):
    w, x = normal(0, 2, kernel_size, lags), normal(1, 3, 200, 40)
    x[0, 70, 3], x[1, 9, 22], x[1, 190, 0] = np.nan, np.inf, -np.inf
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    assert 0 < np.isnan(expected).sum() < expected.size
    np.testing.assert_allclose(stream(w, x), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("bad", [0, 5, 40, 150])
def test_a_lag_that_is_not_finite_reaches_what_comes_after_it_in_its_head(kernel_size, bad):
    w, x = normal(0, 2, kernel_size, 160), normal(1, 1, 200, 24)
    w[1, kernel_size - 1, bad] = np.inf
    x[0, :, 20] = 0  # times infinity
    y = stream(w, x)
    assert np.isnan(y[:, bad:, 12:]).all()
    w[1, kernel_size - 1, bad] = 0
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    np.testing.assert_allclose(y[..., :12], expected[..., :12], rtol=0, atol=1e-4)
    np.testing.assert_allclose(y[:, :bad, 12:], expected[:, :bad, 12:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize(("lag_scale", "scale"), [(1, 1e30), (1, 1e-35), (1e25, 1e-35), (1e-25, 1e30), (1e-30, 1)])
def test_numbers_of_any_size(kernel_size, lag_scale, scale):
    w, x = normal(0, 2, kernel_size, 150) * np.float32(lag_scale), normal(1, 1, 150, 40) * np.float32(scale)
    x[..., 5] = normal(2, 1, 150)
    check(stream(w, x), w, x)


def test_a_channel_does_not_disturb_another():
    w, x = normal(0, 1, 1, 130), normal(1, 2, 130, 40)
    y = stream(w, x)
    for change in (1e10, np.nan):
        other = x.copy()
        other[0, :, 7] *= np.float32(change)
        changed = stream(w, other)
        changed[0, :, 7] = y[0, :, 7]
        np.testing.assert_allclose(changed, y, rtol=0, atol=1e-5 * np.abs(y).max())


# Plans and threads ---------------------------------------------------------------------------------------------------


def test_a_plan_serves_caches_of_many_shapes_at_once():
    w = normal(0, 2, 1, 100)
    layer = layer_stream(w, 100)
    xs = [normal(1, 1, 100, 40), normal(2, 3, 100, 6), normal(3, 2, 100, 40), normal(4, 0, 100, 6)]
    caches, ys = [np.zeros_like(x) for x in xs], [np.empty_like(x) for x in xs]
    for t in range(100):
        for x, cache, y in zip(xs, caches, ys, strict=True):
            y[:, t], _ = layer.step(cache, t, t, None, x[:, t])
    for x, y in zip(xs[:3], ys[:3], strict=True):
        check(y, w, x)


def test_inputs_may_be_read_only():
    w, x = normal(0, 1, 1, 70), normal(1, 1, 70, 20)
    layer, cache, y = layer_stream(w, 70), np.zeros_like(x), np.empty_like(x)
    for t in range(70):
        token = x[:, t].copy()
        token.flags.writeable = False
        y[:, t], _ = layer.step(cache, t, t, None, token)
    check(y, w, x)


@pytest.fixture
def threaded(monkeypatch):
    """Let every tile and step be computed by so many threads, however small it is."""
    monkeypatch.setattr(tiles, "LARGE", 1)
    monkeypatch.setattr(streaming, "LARGE", 1)
    with ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(threads, "_pool", pool)

        def use(count):
            monkeypatch.setattr(tiles, "thread_count", lambda: count)
            monkeypatch.setattr(streaming, "thread_count", lambda: count)

        yield use


@pytest.mark.parametrize(("heads", "kernel_size"), [(1, 1), (2, 3)])
def test_the_same_bits_for_any_number_of_threads(heads, kernel_size, threaded):
    w, x = normal(0, heads, kernel_size, 150), normal(1, 5, 150, 40)
    x[3, 20, 3] = np.nan
    results = []
    for count in (1, 2, 3):
        threaded(count)
        results.append(stream(w, x))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def test_streams_of_one_plan_in_many_threads_do_not_disturb_each_other():
    w = normal(0, 1, 1, 1000)
    layer = layer_stream(w, 1000)
    xs = [normal(i, 1, 1000, 512) for i in range(6)] + [normal(i, 1 + i, 1000, 16 + i) for i in range(2)]
    expected = [stream(w, x) for x in xs]
    together = threading.Barrier(len(xs))

    def call(x):
        together.wait(timeout=30)
        return stream(w, x, layer=layer)

    with ThreadPoolExecutor(len(xs)) as pool:
        for found, right in zip(pool.map(call, xs), expected, strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("n", [1, 100, 10000])
def test_caches_are_zeros_at_a_cache_line(n):
    """Also those in pages of their own, from 4 MiB on."""
    cache = layer_stream(normal(0, 1, 1, 5), n).new_cache(2, n, 100)
    assert (cache.shape, cache.dtype) == ((2, n, 100), np.float32)
    assert cache.flags.c_contiguous
    assert cache.flags.writeable
    assert cache.ctypes.data % 64 == 0
    assert not cache.any()
