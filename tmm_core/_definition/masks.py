"""What may reach what: documents packed side by side, and non-finite entries; in array-API calls, for any engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import array_api_compat as compat

from .._arrays.exchange import Array, namespace_of
from .._arrays.properties import device_of, shift_channels, surely_all, surely_any
from ..errors import InputError

__all__ = [
    "by_segments",
    "check_ordered",
    "correlate_by_segments",
    "decreasing_rows",
    "nan_mask_of_lags",
    "nan_mask_of_outputs",
    "nan_mask_up_to",
    "numbered",
    "positions",
    "split_finite",
]


# Documents -----------------------------------------------------------------------------------------------------------


def decreasing_rows(segment_ids: Array) -> Array | None:
    """Return, of shape `(...,)`, which rows of `segment_ids` decrease somewhere; None where none is known to."""
    xp = namespace_of(segment_ids)
    before, after = _neighbours(segment_ids)
    wrong = xp.any(after < before, axis=-1)
    return None if surely_all(~wrong) else wrong


def check_ordered(segment_ids: Array) -> bool:
    """Return whether `segment_ids` are known not to decrease; refuse those that are known to."""
    wrong = decreasing_rows(segment_ids)
    if wrong is not None and surely_any(wrong):
        raise InputError("segment_ids must not decrease along time: number documents in their order in the row")
    return wrong is None


def numbered(segment_ids: Array) -> Array:
    """Return `segment_ids`, which do not decrease, as 0, 1, 2, … of 32 bits, which every library has."""
    xp = namespace_of(segment_ids)
    begins = _begins(segment_ids, first=False)
    return xp.cumulative_sum(xp.astype(begins, xp.int32), axis=-1, dtype=xp.int32)


def _neighbours(segment_ids: Array) -> tuple[Array, Array]:
    """Return the numbers of all times but the last, and of all but the first; n may be a symbol, or 0."""
    if segment_ids.shape[-1] == 0:
        return segment_ids, segment_ids
    return segment_ids[..., :-1], segment_ids[..., 1:]


def _begins(segment_ids: Array, *, first: bool) -> Array:
    """Return which times begin a document, where the first time counts as one if `first`."""
    xp = namespace_of(segment_ids)
    before, after = _neighbours(segment_ids)
    if segment_ids.shape[-1] == 0:
        return after != before
    return xp.concat([xp.full_like(segment_ids[..., :1], first, dtype=xp.bool), after != before], axis=-1)


def _running_max(a: Array) -> Array:
    """Return the maximum over this and all earlier times (axis -2), in log2(n) passes: the standard has no scan."""
    xp = namespace_of(a)
    if compat.is_jax_array(a) and not isinstance(a.shape[-2], int):  # a symbol: no number of passes is enough
        return sys.modules["jax"].lax.cummax(a, axis=a.ndim - 2)
    step = 1
    while step < a.shape[-2]:
        a = xp.concat([a[..., :step, :], xp.maximum(a[..., step:, :], a[..., :-step, :])], axis=-2)
        step *= 2
    return a


def positions(like: Array, segment_ids: Array | None, *, from_end: bool = False) -> Array:
    """Return each time's position within its document, counted from the document's start or its end.

    The shape is `(..., n, 1)`, or `(n, 1)` without `segment_ids`, for `like` of shape `(..., n, d)`.
    """
    xp = namespace_of(like)
    times = xp.reshape(xp.arange(like.shape[-2], dtype=xp.int32, device=device_of(like)), (-1, 1))
    if segment_ids is None:
        return xp.flip(times, axis=0) if from_end else times
    if from_end:
        return xp.flip(positions(like, xp.flip(segment_ids, axis=-1)), axis=-2)
    begins = _begins(segment_ids, first=True)[..., None]
    return times - _running_max(xp.where(begins, times, xp.zeros_like(times)))


def by_segments(
    product: Callable[[Array, Array], Array], w: Array, x: Array, segment_ids: Array, *, adjoint: bool
) -> Array:
    """Return the product (or adjoint) in which documents do not see each other, from products that know of none.

    `product(w, x)` is the plain operation, `w` of shape `(h, m, k)` with any `k`, `x` of shape `(..., n, d)`.

    Every pair of times s < t falls, for exactly one block size B = 1, 2, 4, …, into two neighbouring blocks of one
    pair, s into the first and t into the second. Only the document that spans their boundary can pass between them,
    so inputs and outputs are masked to it: zeros stand in for every other document, whatever it holds.
    """
    xp = namespace_of(x, segment_ids)
    n = x.shape[-2]
    y = product(w[..., :1], x[..., None, :])[..., 0, :]  # each time alone: one long transform would leak
    for size, ids in _levels(segment_ids):
        first, second = _spans(ids, size)
        source, target = (second, first) if adjoint else (first, second)
        part = product(w[..., : min(w.shape[-1], 2 * size)], _masked(_blocks(x, size), source))
        part = _masked(part, target)
        y += xp.reshape(part, (*x.shape[:-2], -1, x.shape[-1]))[..., :n, :]
        del part  # before the next level
    return y


def correlate_by_segments(
    correlate: Callable[[Array, Array, int], Array], x: Array, g: Array, segment_ids: Array, *, lags: int
) -> Array:
    """Return the correlation within documents, from plain ones: `correlate(x, g, lags)` of shape `(h, m, lags)`."""
    xp = namespace_of(x, g, segment_ids)

    def padded(c: Array) -> Array:
        rest = xp.zeros((*c.shape[:-1], lags - c.shape[-1]), dtype=c.dtype, device=device_of(c))
        return xp.concat([c, rest], axis=-1)

    total = padded(correlate(x[..., None, :], g[..., None, :], 1))
    for size, ids in _levels(segment_ids):
        first, second = _spans(ids, size)
        sources, targets = _masked(_blocks(x, size), first), _masked(_blocks(g, size), second)
        total = total + padded(correlate(sources, targets, min(lags, 2 * size)))
    return total


def _levels(segment_ids: Array) -> Any:
    """Yield every block size B with the ids as `(..., pairs, 2 B)`."""
    size = 1
    while size < segment_ids.shape[-1]:
        yield size, _blocks(segment_ids[..., None], size)[..., 0]
        size *= 2


def _blocks(a: Array, size: int) -> Array:
    """Return `(..., n, d)` as `(..., pairs, 2 * size, d)`, with zeros after the end."""
    xp = namespace_of(a)
    missing = -a.shape[-2] % (2 * size)
    if missing:
        zeros = xp.zeros((*a.shape[:-2], missing, a.shape[-1]), dtype=a.dtype, device=device_of(a))
        a = xp.concat([a, zeros], axis=-2)
    return xp.reshape(a, (*a.shape[:-2], a.shape[-2] // (2 * size), 2 * size, a.shape[-1]))


def _spans(ids: Array, size: int) -> tuple[Array, Array]:
    """Return the first and the second block's times in the document that spans them, each `(..., pairs, 2 B, 1)`."""
    xp = namespace_of(ids)
    same = ids == ids[..., size - 1 : size]
    before = xp.arange(2 * size, device=device_of(ids)) < size
    return (same & before)[..., None], (same & ~before)[..., None]


def _masked(a: Array, keep: Array) -> Array:
    xp = namespace_of(a)
    return xp.where(keep, a, xp.zeros((), dtype=a.dtype, device=device_of(a)))


# Non-finite entries --------------------------------------------------------------------------------------------------


def split_finite(a: Array) -> tuple[Array, Array | None]:
    """Return `a` with zeros for its non-finite entries, and where those were; None where it is known that none were."""
    xp = namespace_of(a)
    finite = xp.isfinite(a)
    if surely_all(finite):
        return a, None
    return _masked(a, finite), ~finite


def nan_mask_of_outputs(
    w: Array, x: Array, bad_w: Array | None, bad_x: Array | None, *, adjoint: bool, segment_ids: Array | None
) -> Array | None:
    """Return which outputs `(..., n, d)` the non-finite entries of `w` and `x` make NaN, or None for none.

    An entry of `x` at time t makes NaN of `[t, t + k)` of its channel and its kernel's neighbours (before t for the
    adjoint), a lag j of its head's channels from j on (up to `n - 1 - j`); each within its document.
    """
    if bad_w is None and bad_x is None:
        return None
    xp = namespace_of(x)
    heads, kernel_size, lags = w.shape
    n, d = x.shape[-2:]
    reach = positions(x, segment_ids, from_end=adjoint)  # how far back (or ahead) its document goes
    nan_mask = xp.zeros(x.shape, dtype=xp.bool, device=device_of(x))
    if bad_w is not None:
        lag = xp.arange(lags, dtype=xp.int32, device=device_of(x))
        never = xp.full_like(lag, n)
        first = xp.min(xp.where(bad_w, lag, never), axis=(-2, -1))
        nan_mask = nan_mask | (reach >= xp.repeat(first, d // heads))
    if bad_x is not None:
        near = bad_x
        for offset in range(1, kernel_size):
            near = near | shift_channels(bad_x, -offset if adjoint else offset, heads)
        times = positions(x, None)
        if adjoint:
            near = xp.flip(near, axis=-2)
        age = times - _running_max(xp.where(near, times, xp.full_like(times, -1)))
        if adjoint:
            age = xp.flip(age, axis=-2)
        nan_mask = nan_mask | (age <= xp.minimum(reach, xp.full_like(reach, lags - 1)))
    return nan_mask


def nan_mask_of_lags(
    x: Array,
    g: Array,
    bad_x: Array | None,
    bad_g: Array | None,
    *,
    lags: int,
    heads: int,
    kernel_size: int,
    segment_ids: Array | None,
) -> Array | None:
    """Return which lags `(h, m, lags)` of a correlation the non-finite entries of `x` and `g` make NaN, or None.

    An entry of `x` makes NaN of the lags up to its distance from its document's end, one of `g` of those up to its
    distance from the document's start, for its head and the kernel offsets at which the two channels meet.
    """
    if bad_x is None and bad_g is None:
        return None
    xp = namespace_of(x, g)

    def farthest(bad: Array | None, reach: Array) -> Array:
        """Return, as `(h, d / h)`, the longest reach of a channel's non-finite entries, -1 for none."""
        if bad is None:
            return xp.full((heads, x.shape[-1] // heads), -1, dtype=xp.int32, device=device_of(x))
        reach = xp.where(bad, reach, xp.full_like(reach, -1))
        return xp.reshape(xp.max(reach, axis=tuple(range(reach.ndim - 1))), (heads, -1))

    from_x = farthest(bad_x, positions(x, segment_ids, from_end=True))
    from_g = farthest(bad_g, positions(g, segment_ids))
    return nan_mask_up_to(from_x, from_g, lags=lags, kernel_size=kernel_size)


def nan_mask_up_to(from_x: Array, from_g: Array, *, lags: int, kernel_size: int) -> Array:
    """Return which lags `(h, m, lags)` are NaN, by each channel's longest reach, `(h, d / h)`, negative for none."""
    xp = namespace_of(from_x, from_g)
    # Kernel entry i pairs channel c of g with channel c - (m - 1) + i of x.
    shifts = (shift_channels(from_x + 1, kernel_size - 1 - i, 1) - 1 for i in range(kernel_size))
    rows = []
    for i, shifted in enumerate(shifts):
        in_head = xp.arange(from_g.shape[-1], device=device_of(from_g)) >= kernel_size - 1 - i
        reach = xp.where(in_head, xp.maximum(shifted, from_g), xp.full_like(from_g, -1))
        rows.append(xp.max(reach, axis=-1))
    reach = xp.stack(rows, axis=-1)[..., None]
    return xp.arange(lags, dtype=xp.int32, device=device_of(from_g)) <= reach
