"""The Numba engine on numbers of any size, and not finite: right, and no more than scaled kernels are run."""

import numpy as np
import pytest
from support.numba_oracle import check_correlation, check_product, correlate, normal, product
from support.requirements import import_or_skip

import_or_skip("numba")

import tmm_core
from tmm_backends._numba import engine, streaming
from tmm_backends._numba import rescaling as rescaling_module
from tmm_core.testing.oracles import error_bound

N = 150


@pytest.fixture(autouse=True)
def no_definition(monkeypatch):
    """Let nothing be computed by the definition in NumPy, which takes ten times as long and more."""
    for module, name in (
        (engine, "definition_matmul"),
        (engine, "definition_correlate"),
        (streaming, "definition_matmul"),
    ):
        monkeypatch.setattr(module, name, None)


def magnitudes(dtype):
    """Signals `(N, channels)`, a magnitude or a shape of its own in each channel, subnormal ones among them."""
    least, most = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    sizes = np.geomspace(float(least) * 4, float(most) / 2**12, 12, dtype=np.longdouble)
    x = np.random.default_rng(0).uniform(-1, 1, (N, 16))
    t = np.arange(N)
    x[:, 12] *= np.exp(-t)  # fading into nothing
    x[:, 13] *= np.exp(t - N)  # and out of it
    x[:, 14] = 0
    return (x * np.r_[sizes, 1, 1, 1, 1e6].astype(np.longdouble)).astype(dtype)


SCALES = {"float32": (1e-44, 1e-30, 1e-7, 1, 1e15, 1e30), "float64": (1e-320, 1e-200, 1, 1e120, 1e250)}


def of_size(w, scale, x):
    """Return w of a size, and the channels of x for which products stay in the range."""
    w = (w * np.longdouble(scale)).astype(x.dtype)
    bound = np.abs(w).astype(np.longdouble).sum(axis=(1, 2)).max() * np.abs(x).max(axis=0)
    return w, x[:, bound < np.finfo(x.dtype).max / 4][:, ::-1]


@pytest.mark.parametrize(("dtype", "scale"), [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales])
@pytest.mark.parametrize("lags", [20, N])
def test_products_of_any_magnitude(dtype, scale, lags):
    w, x = of_size(np.random.default_rng(1).uniform(-1, 1, (1, 1, lags)), scale, magnitudes(dtype))
    for adjoint in (False, True):
        check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)


@pytest.mark.parametrize("far", [1e-7, 1e-13, 1e-25, 1e-38])
@pytest.mark.parametrize("row", [0, 1])
def test_rows_of_a_kernel_and_channels_of_any_magnitude(far, row):
    w = np.random.default_rng(1).uniform(-1, 1, (1, 2, N))
    w[:, row] *= far
    w, x = of_size(w, 1, magnitudes("float32"))
    for adjoint in (False, True):
        check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 3.4e37), ("float64", 1.3e307)])
@pytest.mark.parametrize("kernel_size", [1, 2])
def test_what_is_representable_does_not_overflow(dtype, size, kernel_size):
    x = np.full((N, 4), size, dtype)
    x[1::2] *= -1
    w = np.zeros((1, kernel_size, N), dtype)
    w[0, -1, :2] = 5, -5
    for adjoint in (False, True):
        y = product(w, x, adjoint=adjoint)
        before = np.roll(x, -1 if adjoint else 1, axis=0)
        before[-1 if adjoint else 0] = 0
        np.testing.assert_allclose(y, 5 * x - 5 * before, rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize(("heads", "kernel_size"), [(1, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_not_finite_reaches_as_the_law_says(heads, kernel_size, packed):
    w, x, g = normal(0, heads, kernel_size, 30), normal(1, 2, N, 16), normal(2, 2, N, 16)
    ids = np.sort(np.random.default_rng(0).integers(0, 4, (2, N))) if packed else None
    x[0, 40, 3], x[0, 60, 3], x[1, 100, 9], x[:, :, 5] = np.nan, np.inf, -np.inf, x[:, :, 5] * np.float32(1e-35)
    for bad in (w, w.copy()):
        for adjoint in (False, True):
            y = product(bad, x, adjoint=adjoint, segment_ids=ids)
            expected = tmm_core.causal_toeplitz_matmul(bad, x, adjoint=adjoint, segment_ids=ids, backend="numpy")
            np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)
        w[-1, -1, 17] = np.nan
    options = {"lags": 30, "heads": heads, "kernel_size": kernel_size, "segment_ids": ids}
    expected = tmm_core.causal_toeplitz_correlate(x, g, backend="numpy", **options)
    np.testing.assert_allclose(correlate(x, g, **options), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-44), ("float32", 1e-18), ("float64", 1e-300)])
@pytest.mark.parametrize(("heads", "kernel_size"), [(1, 1), (2, 1), (1, 2)])
def test_correlations_of_any_magnitude(dtype, scale, heads, kernel_size):
    x = magnitudes(dtype)[:, ::-1]
    g = (np.random.default_rng(2).uniform(-1, 1, x.shape) * np.longdouble(scale)).astype(dtype)
    for pair in ((x, g), (g, x), (x * 0, g)):
        check_correlation(correlate(*pair, lags=N, heads=heads, kernel_size=kernel_size), *pair, N, heads, kernel_size)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1, 1e15])
@pytest.mark.parametrize("kernel_size", [1, 2])
def test_streams_of_any_magnitude(scale, kernel_size):
    w, x = of_size(np.random.default_rng(1).uniform(-1, 1, (1, kernel_size, N)), scale, magnitudes("float32"))
    plan = tmm_core.stream_plan(w, N)
    state, outputs = tmm_core.stream_init(plan, (), x.shape[1]), []
    for token in x:
        y, state = tmm_core.stream_step(plan, state, token)
        outputs.append(y)
    expected = product(w.astype(float), x.astype(float))
    bound = 4 * error_bound(w.astype(float), x.astype(float), "float32") + N * 2.0**-149
    assert np.all(np.abs(np.stack(outputs) - expected) <= bound)


def test_a_healthy_channel_keeps_its_bits():
    w, x = normal(0, 2, N), normal(1, N, 16)
    before = product(w, x)
    for value in (np.nan, 1e30, 1e-42):
        other = x.copy()
        other[:, 5] = value
        y = product(w, other)
        y[:, 5] = before[:, 5]
        np.testing.assert_array_equal(y, before)


def test_scaling_is_exact():
    exponents = np.arange(-300, 300)
    for dtype in (np.float32, np.float64):
        near, far = rescaling_module.halves_of(exponents, np.dtype(dtype))
        inside = np.abs(exponents) <= 2 * (np.finfo(dtype).maxexp - 2)
        np.testing.assert_array_equal(
            (np.log2(near.astype(float)) + np.log2(far.astype(float)))[inside], exponents[inside]
        )
