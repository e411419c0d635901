"""Exact streaming: the token-mixing layer one token at a time, in O(log^2 n) amortised work a token and channel."""

from __future__ import annotations

import copy
import math
from typing import Any

import array_api_compat as compat

from .._arrays.exchange import Array, is_traced, library_of, namespace_of
from .._arrays.properties import (
    as_integers,
    device_of,
    is_real,
    result_dtype,
    result_dtype_name,
    values_within_reach,
    with_one,
)
from .._arrays.strictness import with_jax_defaults
from .._dispatch import choice
from .._dispatch.checks import (
    check_arrays,
    check_count,
    check_filter,
    check_flag,
    check_heads,
    check_integers,
    check_kind,
    check_rows,
    other_plan,
)
from ..backend import StreamState
from ..errors import InputError, InputTypeError
from ..mixing import check_bias_heads, lags_of, running_sums
from ._plans import StreamPlan

__all__ = [
    "StreamPlan",
    "StreamState",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
]


_ORDER = "the order is (plan, state, tokens)"


@with_jax_defaults
def stream_plan(
    w: Array,
    capacity: int,
    /,
    *,
    bias: Array | None = None,
    softplus: bool = False,
    mean: bool = False,
    backend: str | None = None,
    leaf: int | None = None,
) -> StreamPlan:
    """Prepare to stream a token-mixing layer: what `mix_tokens` returns, one token at a time.

    Parameters
    ----------
    w : array, (h, k), (h, m, k) or (k,)
        Lags of `h` heads, with kernels over `m` channels.
    capacity : int
        Tokens that a stream can hold, its prompt included.
    bias : array, (h, L) or (L,) with a one-dimensional `w`, optional
        Added at each position; a stream ends after L positions.
    softplus, mean : bool
        As in `mix_tokens`.
    backend : str, optional
        Name of the backend that computes; the choice is made here and stays.
    leaf : int, optional
        A power of two: inputs since the last multiple of it are summed directly, older ones by transforms. The engine
        takes the one that is fastest unless given.

    Returns
    -------
    StreamPlan
        A snapshot of the filters, for any number of streams: later changes of `w` do not reach it.

    Raises
    ------
    TypeError, ValueError, LookupError
        As `mix_tokens`; and if `capacity` is no integer of at least 1.

    Notes
    -----
    n tokens cost O(n log^2 n) time a channel, a prompt of p tokens O(n log n) at once, where n is the capacity. A
    stream holds one number a time and channel: the input of a time that has passed, or what earlier inputs contribute
    to one to come. After a prompt of p tokens it holds `(capacity - p) d` numbers a row.

    Error, against exact arithmetic: at most `c * eps * log2(n)^1.5 * ||w||_2 * ||x||_2` a channel with c = 4, before
    mean and bias: an output is the sum of at most log2(n) + 1 products of disjoint parts of x, each with the error of
    `causal_toeplitz_matmul`, and the norms of p parts add up to at most sqrt(p) ||x||_2. An output does not depend on
    later tokens, to the bit. Values that are not finite do what they do in the product. The sums so far must be
    representable, too. Relaxed multiplication, van der Hoeven (2002).

    Examples
    --------
    >>> import numpy as np
    >>> plan = stream_plan(np.asarray([1.0, 10.0, 100.0]), 8)
    >>> state = stream_init(plan, (), 1)
    >>> y, state = stream_prefill(plan, state, np.asarray([[1.0], [2.0]]))
    >>> y[:, 0]
    array([ 1., 12.])
    >>> y, state = stream_step(plan, state, np.asarray([3.0]))
    >>> y
    array([123.])
    """
    capacity = check_count("capacity", capacity, 1)
    softplus, mean = check_flag("softplus", softplus), check_flag("mean", mean)
    if leaf is not None and check_count("leaf", leaf, 1).bit_count() != 1:
        raise InputError(f"leaf must be a power of two, not {leaf}")
    xp, (w, bias) = check_arrays(w=w, bias=bias)
    check_filter("w", w, (1, 2, 3))
    heads, dtype = int(w.shape[0]) if w.ndim > 1 else 1, w.dtype
    if bias is not None:
        check_bias_heads(w, bias)
        bias = _table(xp, xp.reshape(_detached(bias), (heads, bias.shape[-1]))[:, : min(capacity, bias.shape[-1])])
    w = lags_of(xp, _detached(w), softplus=softplus, mean=mean)
    w = with_one(w, *range(w.ndim > 1, w.ndim))  # only now: the softplus of no lag is none
    # Beyond the last lag they stay as they are.
    sums = _table(xp, running_sums(xp, w, heads, min(capacity, w.shape[-1]))) if mean else None
    lags = xp.reshape(w, (heads, w.shape[1] if w.ndim == 3 else 1, w.shape[-1]))
    lags = xp.asarray(lags[..., : min(capacity, w.shape[-1])], copy=True)
    backend = choice.chosen_backend(backend)
    plan = StreamPlan(lags, sums, bias, dtype=dtype, capacity=capacity, backend=backend, leaf=leaf)
    if plan.complex:
        dtype = result_dtype(*(a for a in (lags, bias) if a is not None))
    plan.stepper(dtype)  # made here, outside of programs that use the plan
    return plan


def _detached(a: Array) -> Array:
    """Return an array that no gradients are kept for, and the whole of one that is spread over processes."""
    if not compat.is_torch_array(a):
        return a
    a = a.detach()
    return a.full_tensor() if hasattr(a, "full_tensor") else a  # a DTensor's, which every process asks for


def _table(xp: Any, by_head: Array) -> Array:
    """Return (h, positions) as (positions, h, 1), to meet (..., h, d/h) after one look-up."""
    return xp.asarray(xp.matrix_transpose(by_head), copy=True)[..., None]


@with_jax_defaults
def stream_init(plan: StreamPlan, batch_shape: tuple[int, ...], d: int, /, *, dtype: Any = None) -> StreamState:
    """Begin a stream for a batch of rows.

    Parameters
    ----------
    plan : StreamPlan
        The layer.
    batch_shape : tuple of int
        Rows that are streamed together.
    d : int
        Channels, a multiple of the heads.
    dtype : dtype of the plan's library, optional
        Of the tokens, the dtype of the lags unless given. Halves are summed in float32.

    Returns
    -------
    StreamState
        Consumed by each prefill and step, which may change it in place: go on with the state that they return.

    Raises
    ------
    TypeError
        If the dtype is not floating, or real where lags or bias are complex.
    ValueError
        If the heads do not divide the channels.

    Notes
    -----
    O(rows * capacity * d) memory.

    Examples
    --------
    >>> import numpy as np
    >>> stream_init(stream_plan(np.ones(3), 8), (2,), 4).cache.shape
    (2, 8, 4)
    """
    check_kind("plan", plan, StreamPlan, "the order is (plan, batch_shape, d), and stream_plan makes one")
    d = check_count("d", d, 0)
    if not isinstance(batch_shape, tuple | list):
        raise InputTypeError(f"batch_shape must be a tuple of integers, such as () or (2,), and is {batch_shape!r}")
    batch = tuple(check_count("each size of batch_shape", size, 0) for size in batch_shape)
    check_heads("the plan's heads", plan.heads, d)
    xp = namespace_of(plan.lags)
    try:
        sample = xp.zeros((0,), dtype=plan.dtype if dtype is None else dtype, device=device_of(plan.lags))
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"dtype must be one of {library_of(plan.lags)}'s, and is {dtype!r}") from error
    result_dtype_name(sample)
    if plan.complex and is_real(sample):
        raise InputTypeError("w and bias must be real where x is: make the stream with a complex dtype")
    return plan.stepper(sample.dtype).begin((*batch, d), math.prod(batch))


@with_jax_defaults
def stream_prefill(
    plan: StreamPlan, state: StreamState, x: Array, /, *, padding: Array | None = None
) -> tuple[Array, StreamState]:
    """Take several tokens at once: a prompt, or what follows in a conversation.

    Parameters
    ----------
    plan : StreamPlan
        The layer.
    state : StreamState
        A stream of this plan; consumed.
    x : array, (*batch, p, d)
        Tokens; none leave the stream as it is.
    padding : array of integers, of the batch's shape, optional
        Tokens before each row's first one, fewer than p, which are read as zeros, and whose outputs mean nothing.
        Positions are counted from there. Only for the first tokens of a stream.

    Returns
    -------
    y : array, (*batch, p, d)
        What `mix_tokens` returns for them after all tokens before.
    state : StreamState
        The stream after them.

    Raises
    ------
    TypeError, ValueError
        If x or padding are not as described, the state is another plan's, or the tokens exceed its capacity or the
        position bias. The state is then as before.

    Notes
    -----
    O(n log n) for a first prompt, O(n log^2 n) for a later one, where n = p + the capacity left.

    Examples
    --------
    >>> import numpy as np
    >>> plan = stream_plan(np.asarray([1.0, 10.0]), 8)
    >>> x, padding = np.ones((2, 3, 1)), np.asarray([0, 2])
    >>> y, state = stream_prefill(plan, stream_init(plan, (2,), 1), x, padding=padding)
    >>> y[..., 0]
    array([[ 1., 11., 11.],
           [ 0.,  0.,  1.]])
    """
    _check_pair(plan, state)
    if state.steps.recording():
        raise InputError("a compiled program does not see the place of a stream: take prompts uncompiled")
    batch, d = state.shape[:-1], state.shape[-1]
    n = x.shape[-2] if getattr(x, "ndim", 0) >= 2 else 0
    x = state.steps.received(x, (*batch, n, d))
    if padding is not None:
        padding = _check_padding(state, x, padding)
    if n == 0:
        return namespace_of(x).asarray(x, copy=True), state
    return state.steps.prefill(state, x, padding), state


def _check_padding(state: StreamState, x: Array, padding: Array) -> Array:
    """Return the padding as (b,) integers."""
    n = x.shape[-2]
    xp, (padding, _) = check_arrays(padding=padding, x=x)
    check_integers("padding", padding, "tokens before each row's first one")
    if tuple(padding.shape) != state.shape[:-1]:
        raise InputError(f"padding must have the batch's shape {state.shape[:-1]}, and has {tuple(padding.shape)}")
    later = state.position > 0
    if is_traced(later):
        raise InputError(
            "padding comes before a stream's first token, and whether one has come is not known in traced code: "
            "take padded prompts outside of it, or begin the stream inside"
        )
    if later:
        raise InputError(f"padding comes before a stream's first token, and {state.position} have come: pass none")
    padding = as_integers(xp.reshape(padding, (-1,)))
    outside = xp.any((padding < 0) | (padding >= n))
    if values_within_reach(outside) and bool(outside):
        raise InputError(
            f"padding must be at least 0 and less than the {n} tokens of x, and goes from {int(xp.min(padding))} to "
            f"{int(xp.max(padding))}: leave out rows without tokens"
        )
    return padding


def stream_step(plan: StreamPlan, state: StreamState, x_t: Array, /) -> tuple[Array, StreamState]:
    """Take the next token of each row.

    Parameters
    ----------
    plan : StreamPlan
        The layer.
    state : StreamState
        A stream of this plan; consumed.
    x_t : array, (*batch, d)
        The token.

    Returns
    -------
    y_t : array, (*batch, d)
        What `mix_tokens` returns at this position.
    state : StreamState
        The stream after it.

    Raises
    ------
    TypeError, ValueError
        If x_t is not as described, the state is another plan's, or there is no place for a token. The state is then as
        before.

    Notes
    -----
    O(log^2 n) a channel on average; a step after 2^j tokens costs one transform of that length.

    Examples
    --------
    >>> import numpy as np
    >>> plan = stream_plan(np.asarray([0.0, 1.0]), 8)  # hands on the token before
    >>> y, state = stream_step(plan, stream_init(plan, (), 1), np.asarray([5.0]))
    >>> y, state = stream_step(plan, state, np.asarray([7.0]))
    >>> y
    array([5.])
    """
    _check_pair(plan, state)
    return state.steps.step(state, x_t), state


def _check_pair(plan: StreamPlan, state: StreamState) -> None:
    """Refuse a state that is none of this plan's."""
    if isinstance(state, StreamState):
        if state.plan is plan:
            return
        check_kind("plan", plan, StreamPlan, _ORDER)
        raise other_plan()
    check_kind("state", state, StreamState, _ORDER)


def stream_copy(state: StreamState) -> StreamState:
    """Return a stream that goes on by itself from where this one is; the plan is shared.

    >>> import numpy as np
    >>> plan = stream_plan(np.ones(3), 8)
    >>> _, state = stream_step(plan, stream_init(plan, (), 1), np.ones(1))
    >>> stream_copy(state).position
    1
    """
    check_kind("state", state, StreamState, "stream_init, stream_prefill and stream_step return one")
    return copy.copy(state)


@with_jax_defaults
def stream_reorder(state: StreamState, indices: Array) -> StreamState:
    """Return a stream of other rows of this one, as beam search wants them: copied, dropped, in any order.

    Parameters
    ----------
    state : StreamState
        A stream, which stays as it is.
    indices : array of integers, (*other_batch), of any library
        Rows of the flattened batch.

    Returns
    -------
    StreamState
        Of the batch shape `other_batch`; the plan is shared.

    Raises
    ------
    TypeError
        If indices are no array of integers.
    ValueError
        If there is no such row.

    Examples
    --------
    >>> import numpy as np
    >>> state = stream_init(stream_plan(np.ones(3), 8), (2,), 4)
    >>> stream_reorder(state, np.asarray([1, 1, 0])).shape
    (3, 4)
    """
    check_kind("state", state, StreamState, "the order is (state, indices)")
    indices = check_rows(indices, state.rows[0])
    flat = namespace_of(indices).reshape(indices, (-1,))
    return state.steps.select(state, flat, (*indices.shape, state.shape[-1]))
