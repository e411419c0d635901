"""What the tests of the Numba engine share: calls, oracles for any shape, and what the error law allows."""

import ml_dtypes
import numpy as np

import tmm_core
from tmm_core.testing.oracles import EPS, dense_product, error_factor

HALVES = ("float16", "bfloat16")
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


def norms(a, axis):
    """Return Euclidean norms, of numbers of any size."""
    return np.hypot.reduce(np.abs(a), axis=axis, keepdims=True)


def allowed(w, x, dtype):
    """Return the error law's bound of product and adjoint, `(..., 1, d)`, for `w` of shape `(h, m, k)`."""
    heads, kernel_size, _ = w.shape
    width = x.shape[-1] // heads
    signals = norms(x, -2).reshape(*x.shape[:-2], 1, heads, width)
    total = np.zeros_like(signals)
    for i, filters in enumerate(norms(w, -1).swapaxes(0, 1)):
        shift = kernel_size - 1 - i
        if shift < width:
            total[..., shift:] += filters * signals[..., : width - shift]
            if kernel_size > 1:  # the adjoint reads the channels above
                total[..., : width - shift] += filters * signals[..., shift:]
    return error_factor(x.shape[-2], "float32" if dtype in HALVES else dtype) * total.reshape(
        *x.shape[:-2], 1, x.shape[-1]
    )


def check_product(y, w, x, *, adjoint=False, ids=None):
    """Check a product against its definition, where `ids` are those of one row or None."""
    w, x = widened(w), widened(x)
    w = w if w.ndim == 3 else w.reshape(-1, 1, w.shape[-1])
    expected = dense_product(w, x, adjoint=adjoint, ids=ids)
    check_within(y, expected, allowed(w, x, y.dtype.name) + rounded(y.dtype.name, expected))


def dense_correlation(x, g, lags, heads, kernel_size, ids=None):
    """Return the correlation, `(heads, kernel_size, lags)`, and the sum of norms that its error law has beside it."""
    n, width = x.shape[-2], x.shape[-1] // heads
    x, g = (widened(a).reshape(-1, n, heads, width).astype(np.longdouble) for a in (x, g))  # sums err, too
    c, total = (np.zeros((heads, kernel_size, size), np.longdouble) for size in (lags, 1))
    ids = np.zeros(n) if ids is None else ids
    for i in range(kernel_size):
        shift = kernel_size - 1 - i
        if shift >= width:
            continue
        source, target = x[..., : width - shift], g[..., shift:]
        total[:, i, 0] = np.sum(norms(source, 1) * norms(target, 1), axis=(0, 1, 3))
        for j in range(min(lags, n)):
            same = ids[j:] == ids[: n - j]
            c[:, i, j] = np.einsum("rthc,rthc->h", target[:, j:][:, same], source[:, : n - j][:, same])
    return c, total


def check_correlation(c, x, g, lags, heads, kernel_size, ids=None):
    """Check a correlation against its definition."""
    dtype = c.dtype.name
    expected, total = dense_correlation(x, g, lags, heads, kernel_size, ids)
    law = error_factor(x.shape[-2], "float32" if dtype in HALVES else dtype) * total
    check_within(widened(c).reshape(expected.shape), expected, law + rounded(dtype, expected))


def check_within(found, expected, bound):
    """Fail, with figures, where an error is above its bound, or not a number."""
    error = np.abs(np.asarray(found).astype(np.longdouble) - expected)
    bound = np.broadcast_to(bound, error.shape)
    assert error.shape == expected.shape
    worst = np.unravel_index(np.argmax(np.where(error <= bound, 0, 1)), error.shape) if error.size else ()
    assert np.all(error <= bound), f"error {error[worst]:.3g} where {bound[worst]:.3g} is allowed, at {worst}"
