"""Oracles for whole families of shapes: the definitions in float64, and what the error law allows."""

import numpy as np

from tmm_core._oracles import EPS, channel_norms, dense_product, error_bound, error_factor

HALVES = ("float16", "bfloat16")


def widened(a):
    """Return an array of any floating dtype in float64."""
    return np.asarray(a).astype(np.float64)


def rounded(dtype, expected):
    """Return what rounding the result itself to a dtype may add."""
    smallest = {"float16": 2.0**-24, "float64": 2.0**-1074}.get(dtype, 2.0**-149)
    return EPS[dtype] / 2 * np.abs(expected) + smallest


def check_product(y, w, x, *, adjoint=False, ids=None, slack=1.0):
    """Check a product against its definition, where `ids` are those of one row or None."""
    dtype = y.dtype.name
    w, x = widened(w), widened(x)
    w = w if w.ndim == 3 else w.reshape(-1, 1, w.shape[-1])
    expected = dense_product(w, x, adjoint=adjoint, ids=ids)
    bound = slack * error_bound(w, x, "float32" if dtype in HALVES else dtype) + rounded(dtype, expected)
    check_within(y, expected, bound)


def dense_correlation(x, g, lags, heads, kernel, ids=None):
    """Return the correlation, `(heads, kernel, lags)`, and the sum of norms that its error law has beside it."""
    n, width = x.shape[-2], x.shape[-1] // heads
    x, g = (widened(a).reshape(-1, n, heads, width) for a in (x, g))
    c, norms = np.zeros((heads, kernel, lags)), np.zeros((heads, kernel, 1))
    ids = np.zeros(n) if ids is None else ids
    for i in range(kernel):
        shift = kernel - 1 - i
        if shift >= width:
            continue
        source, target = x[..., : width - shift], g[..., shift:]
        norms[:, i, 0] = np.sum(channel_norms(source.swapaxes(1, 2)) * channel_norms(target.swapaxes(1, 2)), (0, 2, 3))
        for j in range(min(lags, n)):
            same = ids[j:] == ids[: n - j]
            c[:, i, j] = np.einsum("rthc,rthc->h", target[:, j:][:, same], source[:, : n - j][:, same])
    return c, norms


def check_correlation(c, x, g, lags, heads, kernel, ids=None):
    """Check a correlation against its definition."""
    dtype = c.dtype.name
    expected, norms = dense_correlation(x, g, lags, heads, kernel, ids)
    law = error_factor(x.shape[-2], "float32" if dtype in HALVES else dtype) * norms
    check_within(widened(c).reshape(expected.shape), expected, law + rounded(dtype, expected))


def check_within(found, expected, bound):
    """Fail, with figures, where an error is above its bound, or not a number."""
    error = np.abs(widened(found) - expected)
    bound = np.broadcast_to(bound, error.shape)
    assert error.shape == expected.shape
    worst = np.unravel_index(np.argmax(np.where(error <= bound, 0, 1)), error.shape) if error.size else ()
    assert np.all(error <= bound), f"error {error[worst]:.3g} where {bound[worst]:.3g} is allowed, at {worst}"
