"""Equations with causal Toeplitz matrices: their solutions, and the lags of inverses."""

from __future__ import annotations

import functools
from types import ModuleType

from ._arrays.exchange import Array, library_of
from ._arrays.properties import computed_in, device_of, surely_any
from ._definition import direct
from ._definition.toeplitz import quiet
from ._dispatch.checks import check_arrays, check_count, check_filter, check_heads, check_signal
from ._dispatch.choice import bridge_of, chosen_backend
from ._dispatch.compilation import one_operation
from .backend import LazyBridge
from .errors import InputError
from .toeplitz import product

__all__ = ["causal_toeplitz_inverse", "causal_toeplitz_solve"]

LEAF = 16
"""Length up to which a solution is found by substituting forwards."""


@one_operation
def causal_toeplitz_solve(w: Array, y: Array, /, *, backend: str | None = None) -> Array:
    """Return x with `T(w) x = y`, by halving: O(n log^2 n).

    Parameters
    ----------
    w : array, (k,) or (h, k), floating
        Lags of `h` filters, with `w[..., 0]` not zero.
    y : array, (..., n, d), floating, `h` dividing d
        Right-hand sides. With `w` of shape `(k,)` also `(n,)`.
    backend : str, optional
        As for `causal_toeplitz_matmul`.

    Returns
    -------
    array, of y's shape and of the dtype that `w` and `y` promote to

    Raises
    ------
    TypeError, LookupError
        As `causal_toeplitz_matmul`.
    ValueError
        If shapes do not fit, `w` has a kernel axis, or some `w[..., 0]` is zero (NaN or inf in traced code).

    Notes
    -----
    The first half of x comes from the first half of y; its product with `w` then leaves an equation of half the
    length, down to a few times, which are substituted forwards. So it differentiates where products do, and its error
    is theirs times the condition number of `T(w)`. Newton's iteration on the lags would be unstable.

    A solution may leave the range of its dtype: entries that do not depend on those beyond it are as exact as ever. A
    non-finite y at t makes NaN of its channel from t on (at t alone where `w` has one lag), a non-finite lag j of its
    head from j on.

    Examples
    --------
    >>> import numpy as np
    >>> causal_toeplitz_solve(np.asarray([1.0, 10.0]), np.asarray([1.0, 12.0, 23.0]))
    array([1., 2., 3.])
    """
    return _solution(w, y, chosen_backend(backend))


def _solution(w: Array, y: Array, backend: str) -> Array:
    """Return the solution by products of a backend, which is chosen before anything lazy is computed."""
    xp, (w, y) = check_arrays(w=w, y=y)
    if w.ndim == 3:
        raise InputError(
            "w must be (k,) or (h, k), and has a kernel axis: a filter over several channels is not solved here"
        )
    check_filter("w", w, (1, 2))
    check_signal("y", y, vector=w.ndim == 1)
    shape = y.shape
    w = w[None, :] if w.ndim == 1 else w
    y = y[:, None] if y.ndim == 1 else y
    check_heads("w's first axis", w.shape[0], y.shape[-1])
    if 0 not in y.shape and (w.shape[-1] == 0 or surely_any(w[:, 0] == 0)):
        raise InputError("w[..., 0] must not be zero: the matrix has no inverse")
    bridge = bridge_of(library_of(y))
    if isinstance(bridge, LazyBridge):
        return xp.reshape(bridge.row_by_row(functools.partial(_solution, backend=backend), w, y), shape)
    dtype, (w, y) = computed_in(w, y)
    if 0 in shape:
        return xp.reshape(xp.astype(y, dtype, copy=True), shape)
    with quiet():
        x = _solve(xp, *direct.normalised(w, y), backend)
    return xp.reshape(xp.astype(x, dtype, copy=False), shape)


def _solve(xp: ModuleType, w: Array, y: Array, backend: str) -> Array:
    """Return the solution for `w` of shape `(h, k)`, y of shape `(..., n, d)`."""
    n = y.shape[-2]
    if n <= LEAF:
        return direct.solve(w[:, : min(n, w.shape[-1])], y)
    half = LEAF
    while 2 * half < n:
        half *= 2
    first = _solve(xp, w, y[..., :half, :], backend)
    rest = y[..., half:, :]
    known = xp.concat([first, xp.zeros_like(rest)], axis=-2)
    seen = product(xp, w, known, None, backend=backend)[..., half:, :]
    return xp.concat([first, _solve(xp, w, rest - seen, backend)], axis=-2)


@one_operation
def causal_toeplitz_inverse(w: Array, n: int, *, backend: str | None = None) -> Array:
    """Return the first n lags of the inverse: `T(causal_toeplitz_inverse(w, n)) T(w) = 1`.

    Parameters
    ----------
    w : array, (k,) or (h, k), floating
        Lags, with `w[..., 0]` not zero.
    n : int
        Lags of the result; an inverse has infinitely many.
    backend : str, optional
        As for `causal_toeplitz_matmul`.

    Returns
    -------
    array, (n,) or (h, n), of w's dtype

    Raises
    ------
    TypeError, ValueError, LookupError
        As `causal_toeplitz_solve`.

    Notes
    -----
    Solves for the unit vector; cost and error are those of `causal_toeplitz_solve`.

    Examples
    --------
    >>> import numpy as np
    >>> causal_toeplitz_inverse(np.asarray([1.0, -1.0]), 4)
    array([1., 1., 1., 1.])
    """
    n = check_count("n", n, 0)
    xp, (w,) = check_arrays(w=w)
    check_filter("w", w, (1, 2))
    heads = w.shape[0] if w.ndim == 2 else 1
    times = xp.arange(n, device=device_of(w))
    unit = xp.astype(xp.broadcast_to((times == 0)[:, None], (n, heads)), w.dtype)
    v = causal_toeplitz_solve(w, unit, backend=backend)
    return v[:, 0] if w.ndim == 1 else xp.permute_dims(v, (1, 0))
