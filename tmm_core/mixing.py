"""Token mixing: a causal Toeplitz product with what the language models put around it."""

from __future__ import annotations

import math
from types import ModuleType

import array_api_compat as compat

from . import toeplitz
from ._arrays.exchange import Array, dtype_name
from ._arrays.properties import device_of, is_real, result_dtype_name, values_known, with_one
from ._definition import masks
from ._definition.toeplitz import Method, quiet
from ._dispatch.checks import check_arrays, check_flag, check_integers, check_segments, warn_of_swap
from ._dispatch.compilation import one_operation
from .errors import InputError, InputTypeError

__all__ = ["document_positions", "mix_tokens"]


@one_operation
def mix_tokens(
    w: Array,
    x: Array,
    bias: Array | None = None,
    /,
    *,
    softplus: bool = False,
    mean: bool = False,
    segment_ids: Array | None = None,
    positions: Array | None = None,
    method: Method = "auto",
    backend: str | None = None,
) -> Array:
    """Mix the tokens of each sequence causally, one filter a head, and add a bias for each head and position.

    With `l = softplus(w)` or `l = w`, and `p(t)` the position of `t` within its document:

        y[..., t, :] = (T(l) x)[..., t, :] / sum_{j <= p(t)} l[head, j] + bias[head, p(t)]

    where the division is part of the formula with `mean` only.

    Parameters
    ----------
    w : array, (h, k), (h, m, k) or (k,)
        Lags of `h` heads, with kernels over `m` channels; their `softplus` is used with `softplus`.
    x : array, (..., n, d), or (n,) with a one-dimensional `w`
        Channels of tokens; `h` divides `d`.
    bias : array, (h, L) or (L,) with a one-dimensional `w`; L at least the length of each document
        Added at each position.
    softplus : bool
        Take `log(1 + exp(w))` as the lags, which makes them positive.
    mean : bool
        Divide by the running sum of the lags, which makes each output a weighted mean of the inputs so far.
    segment_ids : array of integers, broadcastable to (..., n), optional
        Non-decreasing numbers of the documents packed into each row; nothing passes between documents.
    positions : array of integers, of the shape of `segment_ids`, optional
        What `document_positions(segment_ids)` returns, where several layers share it; made anew unless given.
    method : {"auto", "direct"}
        As for `causal_toeplitz_matmul`.
    backend : str, optional
        Name of the backend that computes the product; see `tmm_core.use_backend`.

    Returns
    -------
    array, of the shape and dtype of `x`
        Whatever the dtype of the lags: float32 lags serve bfloat16 activations without loss.

    Raises
    ------
    TypeError
        If an argument is no array, the libraries differ, or a dtype is not floating.
    ValueError
        If shapes do not fit, `mean` meets a kernel, or the bias has fewer positions than the sequence, or than one of
        its documents (in traced code, NaN beyond the last position of the bias).

    Warns
    -----
    UserWarning
        If `w` and x may have changed places, as `causal_toeplitz_matmul` warns.

    Notes
    -----
    The cost and the rounding error are those of `causal_toeplitz_matmul`, and O(n d) more; with `mean`, what is divided
    must be representable, too. Beyond the last lag the
    running sum stays at its last value, for the matrix is then banded. Source: arXiv 2605.06683.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[2.0], [4.0], [9.0]])
    >>> mix_tokens(np.zeros((1, 3)), x, softplus=True, mean=True)[:, 0]  # equal lags: the running mean
    array([2., 3., 5.])
    """
    xp, (w, x, bias, segment_ids, positions) = check_arrays(
        w=w, x=x, bias=bias, segment_ids=segment_ids, positions=positions
    )
    softplus, mean = check_flag("softplus", softplus), check_flag("mean", mean)
    warn_of_swap(w, x)
    promoted = result_dtype_name(x, w, w if bias is None else bias)
    if promoted.startswith("complex") and not dtype_name(x.dtype).startswith("complex"):
        raise InputTypeError("w and bias must be real where x is: the result has x's dtype; convert x to complex first")
    _check_bias(w, x, bias, packed=segment_ids is not None)
    if positions is not None:
        _check_positions(positions, segment_ids, x)
    if softplus or mean:
        w = lags_of(xp, w, softplus=softplus, mean=mean)
    ordered = positions is not None
    y = toeplitz.product(xp, w, x, segment_ids, method=method, backend=backend, ordered=ordered)
    if (mean or bias is not None) and 0 not in y.shape:
        heads, (n, d) = _heads(w), x.shape[-2:] if x.ndim > 1 else (*x.shape, 1)
        if segment_ids is None:
            positions = None
        elif positions is None:
            positions = document_positions(xp.broadcast_to(segment_ids, (*segment_ids.shape[:-1], n)))
        by_head = xp.reshape(y, (*x.shape[:-2], n, heads, d // heads))  # (..., n, h, d/h)
        with quiet():
            if mean:
                lags = with_one(w, *range(w.ndim > 1, w.ndim))  # only now: the softplus of no lag is none
                by_head = by_head / _at(xp, running_sums(xp, lags, heads, n), positions, n)
            if bias is not None:
                by_head = by_head + _at(xp, *_within(xp, xp.reshape(bias, (heads, bias.shape[-1])), positions, n), n)
        y = xp.reshape(by_head, x.shape)
    if y.dtype == x.dtype:
        return y
    with quiet():  # only now: in float16 the sums that a mean divides by may be too large
        return xp.astype(y, x.dtype)


@one_operation
def document_positions(segment_ids: Array) -> Array:
    """Return the position of each token within its document.

    Layers that share documents take it by `mix_tokens(..., segment_ids=ids, positions=document_positions(ids))`, which
    then neither scan the numbers for their order nor count anew.

    Parameters
    ----------
    segment_ids : array of integers, (..., n)
        Non-decreasing numbers of the documents packed into each row.

    Returns
    -------
    array of int32, (..., n)

    Raises
    ------
    TypeError, ValueError
        If the numbers are no integers, or decrease (in traced code nothing is refused).

    Examples
    --------
    >>> import numpy as np
    >>> document_positions(np.asarray([1, 1, 1, 2, 2]))
    array([0, 1, 2, 0, 1], dtype=int32)
    """
    xp, (segment_ids,) = check_arrays(segment_ids=segment_ids)
    if segment_ids.ndim == 0:
        raise InputError("segment_ids must be (..., n), one a position, and are a single number")
    segment_ids, _ = check_segments(xp, segment_ids, segment_ids[..., None])
    return masks.positions(segment_ids[..., None], segment_ids)[..., 0]


def lags_of(xp: ModuleType, w: Array, *, softplus: bool, mean: bool) -> Array:
    """Return the lags that a layer multiplies by, checked for what it does with them."""
    if softplus and not is_real(w):
        raise InputTypeError("softplus=True expects real lags, and w is complex: positive lags are real")
    if mean and w.ndim == 3 and w.shape[1] > 1:
        raise InputError(
            f"mean=True expects one row of lags a head, got w of shape {tuple(w.shape)}: "
            "rows of a kernel have no common sum; pass w as (h, k), or mean=False"
        )
    if softplus or mean:
        w = float32_at_least(xp, w)
    if softplus:
        w = _softplus(xp, w)
    return w


def _heads(w: Array) -> int:
    return int(w.shape[0]) if w.ndim > 1 else 1


def _check_bias(w: Array, x: Array, bias: Array | None, *, packed: bool) -> None:
    """Refuse a bias that lacks a head or a position; the product checks its own arguments."""
    if bias is None or not 1 <= w.ndim <= 3 or x.ndim == 0:
        return
    check_bias_heads(w, bias)
    n = x.shape[0 if x.ndim == 1 else -2]
    if bias.shape[-1] < n and not packed:
        raise InputError(_too_long("sequence", n, bias.shape[-1]))


def _check_positions(positions: Array, segment_ids: Array | None, x: Array) -> None:
    """Refuse positions that are not one for each token of the documents."""
    check_integers("positions", positions, "what document_positions returns")
    n = x.shape[0 if x.ndim == 1 else -2] if x.ndim else 0
    if segment_ids is None or positions.shape != segment_ids.shape or positions.shape[-1:] != (n,):
        ids = "None" if segment_ids is None else tuple(segment_ids.shape)
        raise InputError(
            f"positions must be those of the {n} times of x, as document_positions(segment_ids) returns them, and have "
            f"the shape {tuple(positions.shape)} where that of segment_ids is {ids}: pass both or none"
        )


def check_bias_heads(w: Array, bias: Array) -> None:
    """Refuse a bias that has not one row for each head."""
    expected = (_heads(w),) if w.ndim > 1 else ()
    if tuple(bias.shape[:-1]) != expected or bias.ndim == 0:
        raise InputError(
            f"bias must have the shape {(*expected, 'L')}, a row for each head of w, and has {tuple(bias.shape)}"
        )


def _too_long(what: str, n: int, limit: int) -> str:
    return (
        f"the {what} has {n} positions and the position bias only max_len={limit}: "
        f"pass a shorter {what}, or use a model without position bias (position_bias=False), which runs on"
    )


def float32_at_least(xp: ModuleType, a: Array) -> Array:
    """Return half-precision values as float32, others as they are."""
    return xp.astype(a, xp.float32) if result_dtype_name(a) in ("float16", "bfloat16") else a


def _softplus(xp: ModuleType, a: Array) -> Array:
    """Return `log(1 + exp(a))`, which no `a` overflows, with the gradient `1 / (1 + exp(-a))` everywhere."""
    return xp.logaddexp(a, xp.zeros_like(a))


def running_sums(xp: ModuleType, w: Array, heads: int, n: int) -> Array:
    """Return `sum_{j <= t} w[head, j]`, of shape (h, n); lags that a short filter lacks are zeros."""
    sums = xp.cumulative_sum(xp.reshape(w, (heads, w.shape[-1])), axis=1)
    times = xp.arange(n, device=device_of(w))
    return xp.take(sums, xp.where(times < w.shape[-1], times, w.shape[-1] - 1), axis=1)


def _within(xp: ModuleType, bias: Array, positions: Array | None, n: int) -> tuple[Array, Array | None]:
    """Return a bias and positions that it has; those of longer documents, in traced code, at an added NaN."""
    limit = bias.shape[-1]
    if positions is None or limit >= n:
        return bias, positions
    longest = xp.max(positions)
    if values_known(longest):
        if longest >= limit:
            raise InputError(_too_long("longest document", 1 + int(longest), limit))
        return bias, positions
    bias = xp.concat([bias, xp.full_like(bias[:, :1], math.nan)], axis=1)
    return bias, xp.minimum(positions, xp.full_like(positions, limit))


def _at(xp: ModuleType, table: Array, positions: Array | None, n: int) -> Array:
    """Return `table`, of shape (h, L), at each position, as (..., n, h, 1), to meet (..., n, h, d/h)."""
    if positions is None:
        return xp.matrix_transpose(table[:, :n])[..., None]
    if compat.is_dask_array(table):
        table = table.rechunk(-1)  # type: ignore[no-untyped-call]  # or each chunk of positions would be taken from each chunk of the table
    taken = xp.take(table, xp.reshape(positions, (-1,)), axis=1)
    return xp.reshape(xp.matrix_transpose(taken), (*positions.shape, table.shape[0], 1))
