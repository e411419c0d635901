"""What the tests of the Numba engine share: calls, and checks against the definition for arrays of any dtype."""

import ml_dtypes
import numpy as np

import tmm_core
from tmm_core.testing.oracles import EPS, correlation_bound, dense_correlation, dense_product, error_bound

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}


def product(w, x, **options):
    return tmm_core.causal_toeplitz_matmul(w, x, backend="numba", **options)


def correlate(x, g, **options):
    return tmm_core.causal_toeplitz_correlate(x, g, backend="numba", **options)


def normal(seed, *shape, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def widened(a):
    """Return an array of any floating dtype in float64."""
    return np.asarray(a).astype(np.float64)


def rounded(dtype, expected):
    """Return what rounding the result itself to a dtype may add, and sums of numbers next to zero."""
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}[dtype]
    return EPS[dtype] / 2 * np.abs(expected) + 64 * smallest


def check_product(y, w, x, *, adjoint=False, ids=None):
    """Check a product against its definition."""
    w, x, dtype = widened(w), widened(x), y.dtype.name
    w = w if w.ndim == 3 else w.reshape(-1, 1, w.shape[-1])
    expected = dense_product(w, x, adjoint=adjoint, ids=ids)
    check_within(y, expected, error_bound(w, x, dtype, adjoint=adjoint) + rounded(dtype, expected))


def check_correlation(c, x, g, lags, heads, kernel_size, ids=None):
    """Check a correlation against its definition."""
    x, g, dtype = widened(x).astype(np.longdouble), widened(g), c.dtype.name  # sums err, too
    expected = dense_correlation(x, g, lags, heads, kernel_size, ids)
    bound = correlation_bound(x, g, dtype, heads, kernel_size) + rounded(dtype, expected)
    check_within(widened(c).reshape(expected.shape), expected, bound)


def check_within(found, expected, bound):
    """Fail, with figures, where an error is above its bound, or not a number."""
    error = np.abs(np.asarray(found).astype(np.longdouble) - expected)
    bound = np.broadcast_to(bound, error.shape)
    assert error.shape == expected.shape
    worst = np.unravel_index(np.argmax(np.where(error <= bound, 0, 1)), error.shape) if error.size else ()
    assert np.all(error <= bound), f"error {error[worst]:.3g} where {bound[worst]:.3g} is allowed, at {worst}"
