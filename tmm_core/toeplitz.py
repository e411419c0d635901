"""Causal Toeplitz products on arrays of any library: checks, choice of backend, one call."""

from __future__ import annotations

from types import ModuleType

from ._arrays.exchange import Array
from ._arrays.properties import computed_in, conj, device_of, with_one
from ._definition import direct
from ._definition.toeplitz import Method, quiet
from ._dispatch.checks import (
    check_arrays,
    check_count,
    check_filter,
    check_flag,
    check_heads,
    check_method,
    check_segments,
    check_signal,
    warn_of_layout,
    warn_of_swap,
)
from ._dispatch.choice import compute_correlate, compute_matmul
from ._dispatch.compilation import one_operation
from .errors import InputError

__all__ = [
    "causal_toeplitz",
    "causal_toeplitz_correlate",
    "causal_toeplitz_matmul",
    "toeplitz_matmul",
]


@one_operation
def causal_toeplitz(w: Array, n: int) -> Array:
    """Return the lower-triangular Toeplitz matrices with first column `w`.

        T[t, s] = w[t - s] for 0 <= t - s < k, else 0

    Parameters
    ----------
    w : array, (k,), (h, k) or (h, m, k), floating
        Lags; fewer than `n` give a banded matrix, more are unused.
    n : int
        Rows and columns.

    Returns
    -------
    array, (n, n), (h, n, n) or (h, m, n, n), of `w`'s dtype

    Raises
    ------
    TypeError
        If `w` is no floating array.
    ValueError
        If `w` has other axes or `n` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> causal_toeplitz(np.asarray([1.0, 2.0, 3.0]), 3)
    array([[1., 0., 0.],
           [2., 1., 0.],
           [3., 2., 1.]])
    """
    n = check_count("n", n, 0)
    _, (w,) = check_arrays(w=w)
    check_filter("w", w, (1, 2, 3))
    return direct.toeplitz_block(with_one(w, -1), (0, n), (0, n))


@one_operation
def causal_toeplitz_matmul(
    w: Array,
    x: Array,
    /,
    *,
    adjoint: bool = False,
    method: Method = "auto",
    segment_ids: Array | None = None,
    backend: str | None = None,
) -> Array:
    """Multiply by a causal Toeplitz matrix in O(n log n), or by its adjoint.

        y[..., t, c] = sum_{i<m} sum_{j <= min(t, k-1)} w[head(c), i, j] * x[..., t-j, c-(m-1)+i]

    Channels outside the head, and positions in another segment, are read as zero. Written `y = T(w) x`; the adjoint is
    `T(w)^H x`.

    Parameters
    ----------
    w : array, (k,), (h, k) or (h, m, k), floating
        Lags of `h` filters over `m` neighbouring channels; fewer than n mean a banded matrix, more are unused.
    x : array, (..., n, d), floating
        Signals: time on axis -2, channels last, `h` dividing `d`. With `w` of shape `(k,)` also `(n,)`.
    adjoint : bool
        Multiply by the conjugate transpose, which is anti-causal.
    method : {"auto", "direct"}
        With `"direct"`, sum directly: no bit of an output depends on a later input, at a cost of O(n^2).
    segment_ids : array, broadcastable to (..., n), integer, non-decreasing
        Documents packed into one row; they do not see each other, and not one bit passes between them.
    backend : str, optional
        Name of the backend that computes; by default what `use_backend`, `TMM_BACKEND` or `auto` chooses. Never
        changes the meaning.

    Returns
    -------
    array, of x's shape
        In the namespace and on the device of `x`, of the dtype that `w` and `x` promote to.

    Raises
    ------
    TypeError
        If the arrays are no floating arrays of one library, or of a class that may mean more than its numbers.
    ValueError
        If shapes do not fit, the arrays are on different devices, or `segment_ids` decrease (NaN in traced code, and on
        accelerators, which are not made to wait).
    LookupError
        If the backend is unknown or not installed.

    Warns
    -----
    UserWarning
        If `w` has more lags than x has times, and as many as x has channels: time may be on the wrong axis. If it has
        more lags than x has times, and more rows than 16 and than a head has channels: `w` and x may have changed
        places.

    Notes
    -----
    Cost per channel: O(n log n) time, O(n) memory; with segments about four times that. float16 and bfloat16 are
    computed in float32.

    Error per channel, against exact arithmetic: at most `c * eps * log2(n) * ||w||_2 * ||x||_2` with c = 2
    (`tmm_core.testing.ERROR_CONSTANT`), where the norms are those of the filter and of the channels that it reads.

    A non-finite `x` at t makes NaN of its channel and its kernel's neighbours on `[t, t + k)`, a non-finite lag j
    makes NaN of its head from j on; all else is as if the entry were zero.
    Sizes of zero are allowed: no lags, or no rows of a kernel, are the zero operator.
    Finite arrays give finite results where those are representable, and so is what rounding may add: by either method
    up to `eps` times the sum of the terms' magnitudes. With segments, sums of parts must be representable, too.

    Right-angle convolution for reals, arXiv 2605.06683 for the mixer.

    Examples
    --------
    >>> import numpy as np
    >>> causal_toeplitz_matmul(np.asarray([1.0, 10.0]), np.asarray([1.0, 2.0, 3.0]))
    array([ 1., 12., 23.])
    """
    xp, (w, x, segment_ids) = check_arrays(w=w, x=x, segment_ids=segment_ids)
    warn_of_layout(w, x)
    warn_of_swap(w, x)
    return product(xp, w, x, segment_ids, adjoint=adjoint, method=method, backend=backend)


def product(
    xp: ModuleType,
    w: Array,
    x: Array,
    segment_ids: Array | None,
    *,
    adjoint: bool = False,
    method: Method = "auto",
    backend: str | None = None,
    ordered: bool = False,
) -> Array:
    """Return the product of arrays that `check_arrays` returned; `ordered` ids have been scanned already."""
    check_method(method)
    adjoint = check_flag("adjoint", adjoint)
    check_filter("w", w, (1, 2, 3))
    check_signal("x", x, vector=w.ndim == 1)
    shape = x.shape
    if w.ndim < 3:
        w = w[None, None, :] if w.ndim == 1 else w[:, None, :]
    if x.ndim == 1:
        x = x[:, None]
    check_heads("w's first axis", w.shape[0], x.shape[-1])
    if 0 in w.shape:
        w = with_one(w, -1, -2, -3)
        x = xp.where(xp.zeros_like(x, dtype=xp.bool), x, xp.zeros_like(x))  # is read by no lag, whatever it holds
    if segment_ids is not None:
        segment_ids, ordered = check_segments(xp, segment_ids, x, ordered=ordered)
    y = compute_matmul(
        xp, w, x, adjoint=adjoint, method=method, segment_ids=segment_ids, ordered=ordered, backend=backend
    )
    return y if y.shape == shape else xp.reshape(y, shape)


@one_operation
def causal_toeplitz_correlate(
    x: Array,
    g: Array,
    /,
    *,
    lags: int,
    heads: int = 1,
    kernel_size: int = 1,
    method: Method = "auto",
    segment_ids: Array | None = None,
    backend: str | None = None,
) -> Array:
    """Return the gradient of `<g, T(w) x>` for `w`: the correlation of outputs with inputs.

        c[i, j] = sum_{..., t, c in head} g[..., t, c] * conj(x[..., t-j, c-(m-1)+i])

    Parameters
    ----------
    x : array, (..., n, d) or (n,), floating
        Inputs of the product.
    g : array, of x's shape, floating
        Weights of its outputs.
    lags, heads, kernel_size : int
        The filter's shape; lags beyond the length are zero.
    method, segment_ids, backend
        As for `causal_toeplitz_matmul`.

    Returns
    -------
    array, (heads, lags), (heads, kernel_size, lags) where kernel_size is not 1, or (lags,) for one-dimensional x and g

    Raises
    ------
    TypeError, ValueError, LookupError
        As `causal_toeplitz_matmul`.

    Notes
    -----
    Cost: O(n log n) for each row and channel. Error, against exact arithmetic: at most
    `c * eps * log2(n) * sum ||x||_2 ||g||_2`, the sum over the pairs of rows and channels that meet in an entry,
    with the constant c of the product.

    A non-finite `x` makes NaN of the lags up to its distance from the end (of its document), a non-finite `g` of
    those up to its distance from the start.

    Examples
    --------
    >>> import numpy as np
    >>> causal_toeplitz_correlate(np.asarray([1.0, 2.0]), np.asarray([3.0, 4.0]), lags=3)
    array([11.,  4.,  0.])
    """
    xp, (x, g, segment_ids) = check_arrays(x=x, g=g, segment_ids=segment_ids)
    lags, heads = check_count("lags", lags, 0), check_count("heads", heads, 0)
    kernel_size = check_count("kernel_size", kernel_size, 0)
    check_method(method)
    vector = x.ndim == 1
    check_signal("x", x, vector=True)
    check_signal("g", g, vector=True)
    if x.shape != g.shape:
        raise InputError(f"g must have x's shape {tuple(x.shape)}, and has {tuple(g.shape)}: broadcast it first")
    if vector:
        x, g = x[:, None], g[:, None]
    check_heads("heads", heads, x.shape[-1])
    ordered = False
    if segment_ids is not None:
        segment_ids, ordered = check_segments(xp, segment_ids, x)
    c = compute_correlate(
        xp,
        x,
        g,
        lags=max(lags, 1),
        heads=max(heads, 1),
        kernel_size=max(kernel_size, 1),
        method=method,
        segment_ids=segment_ids,
        ordered=ordered,
        backend=backend,
    )
    if 0 in (lags, heads, kernel_size):
        c = c[:heads, :kernel_size, :lags]
    if vector and kernel_size == 1:
        return xp.reshape(c, (lags,))
    return xp.reshape(c, (heads, lags)) if kernel_size == 1 else c


@one_operation
def toeplitz_matmul(column: Array, row: Array | None, x: Array, /, *, backend: str | None = None) -> Array:
    """Multiply by a general, rectangular Toeplitz matrix in O(n log n).

        y[..., s, c] = sum_t (column[h, s - t] if s >= t else row[h, t - s]) * x[..., t, c]

    Parameters
    ----------
    column : array, (p,) or (h, p), floating
        First columns of `h` matrices.
    row : array, (q,) or (h, q), floating, or None
        First rows; `row[..., 0]` is ignored. None means `conj(column)`, a Hermitian matrix.
    x : array, (..., q, d), floating
        Signals; head i owns the channels `[i*d/h, (i+1)*d/h)`. With one-dimensional column and row also `(q,)`.
    backend : str, optional
        As for `causal_toeplitz_matmul`.

    Returns
    -------
    array, (..., p, d), or (p,) for one-dimensional x

    Raises
    ------
    TypeError, ValueError, LookupError
        As `causal_toeplitz_matmul`.

    Notes
    -----
    The causal product with `column` plus the adjoint product with `conj(row)`, both of length n = max(p, q); cost and
    error are those of the two, which must be representable. Serves what `scipy.linalg.matmul_toeplitz` does.

    Examples
    --------
    >>> import numpy as np
    >>> toeplitz_matmul(np.asarray([1.0, 2.0]), np.asarray([1.0, 3.0, 4.0]), np.asarray([1.0, 1.0, 1.0]))
    array([8., 6.])
    """
    xp, (column, row, x) = check_arrays(column=column, row=row, x=x)
    check_filter("column", column, (1, 2))
    row = conj(column) if row is None else row
    check_filter("row", row, (1, 2))
    check_signal("x", x, vector=column.ndim == 1)
    if column.shape[:-1] != row.shape[:-1]:
        raise InputError(
            f"column and row must have equally many heads, and are {tuple(column.shape)} and {tuple(row.shape)}"
        )
    dtype, (column, row, x) = computed_in(column, row, x)  # as the sum of both parts
    p, q = column.shape[-1], row.shape[-1]
    time = max(x.ndim - 2, 0)
    if x.shape[time] != q:
        raise InputError(f"x must have as many times as row has entries, {q}, and is {tuple(x.shape)}")
    if p > q:
        rest = xp.zeros((*x.shape[:time], p - q, *x.shape[time + 1 :]), dtype=x.dtype, device=device_of(x))
        x = xp.concat([x, rest], axis=time)
    row = with_one(row, -1)
    above = xp.concat([xp.zeros_like(row[..., :1]), conj(row[..., 1:])], axis=-1)
    y = product(xp, column, x, None, backend=backend)
    with quiet():
        y = y + product(xp, above, x, None, adjoint=True, backend=backend)
        return xp.astype(y[:p] if x.ndim == 1 else y[..., :p, :], dtype, copy=False)
