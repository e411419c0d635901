"""The sums of a streamed product, split so that none looks ahead: relaxed multiplication in array-API calls.

A *cache* `(b, length, d)` holds, at each entry, the input of a time that has passed or the pending output of a later
one: the sum of what earlier inputs contribute to it. The two occupy complementary times: one number a time is enough.

An input contributes to the outputs of its own *leaf* of times directly, to later ones by *tiles*: when u tokens have
come, u a multiple of the leaf, and k is the largest power of two that divides u, the last k inputs' contributions are
added to the next k outputs. Each pair of times s < t is in one leaf or meets in exactly one tile: with j the largest
number such that s and t differ in their bits from j on, that at `u = (t >> j) << j`, of size 2^j. An offline product of
length n becomes one of O(n log^2 n) that never looks ahead; van der Hoeven calls it relaxed multiplication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import array_api_compat as compat

from .._arrays.exchange import Array, namespace_of
from .._arrays.properties import device_of, nan_where, shift_channels

__all__ = ["add_tile", "extended", "flushed", "step", "tile_size", "weighted"]

Product = Callable[..., Array]
"""The causal Toeplitz product of lags `(h, m, k)` and signals `(b, n, d)`; with `segment_ids=` that of documents."""


def tile_size(u: int, lags: int) -> int:
    """Return how many inputs and outputs the tile after u tokens joins: no more than the lags reach over.

    >>> tile_size(24, 100), tile_size(24, 3)
    (8, 4)
    """
    return min(u & -u, 1 << max(0, lags - 1).bit_length())


def step(product: Product, w: Array, cache: Array, at: int, x: Array, leaf: int) -> tuple[Array, Array]:
    """Return the output `(b, d)` of the input x at entry `at`, and the cache after it.

    Entries of `w` and `x` that are not finite are NaN, which sums hand on as the law of products says.
    """
    x = nan_where(~namespace_of(x).isfinite(x), x)
    used = min(at % leaf + 1, w.shape[-1])
    recent = x[:, None, :]
    if used > 1:
        recent = namespace_of(x).concat([cache[:, at + 1 - used : at, :], recent], axis=1)
    y = cache[:, at, :] + weighted(w[..., :used], recent)
    cache = _put(cache, at, at + 1, x[:, None, :])
    u = at + 1
    return y, cache if u % leaf else add_tile(product, w, cache, u)


def weighted(w: Array, recent: Array) -> Array:
    """Return `sum_j w[j] recent[last - j]` for `(b, lags, d)`, within heads and over the rows of kernels."""
    xp = namespace_of(w, recent)
    (heads, kernel_size, lags), (rows, _, d) = w.shape, recent.shape
    by_time = xp.permute_dims(xp.flip(w, axis=-1), (1, 2, 0))[..., None]  # (m, lags, h, 1)
    total = None
    for i in range(kernel_size):
        read = shift_channels(recent, kernel_size - 1 - i, heads)
        read = xp.reshape(read, (rows, lags, heads, d // heads))
        part = xp.sum(read * by_time[i, ...], axis=1)
        total = part if total is None else total + part
    return xp.reshape(total, (rows, d))


def add_tile(product: Product, w: Array, cache: Array, u: int) -> Array:
    """Return the cache after the tile at u: the last k inputs' contributions are in the next k outputs."""
    size = tile_size(u, w.shape[-1])
    count = min(size, cache.shape[1] - u)
    if count == 0:
        return cache
    whole = product(w[..., : min(2 * size, w.shape[-1])], extended(cache[:, u - size : u, :], count))
    return _put(cache, u, u + count, cache[:, u : u + count, :] + whole[:, size:, :])


def flushed(product: Product, w: Array, cache: Array, at: int, leaf: int) -> Array:
    """Return the pending outputs `(b, length - at, d)` with all that the inputs before entry `at` contribute.

    Tiles have brought a block of 2^j inputs at a, where a is a multiple of 2^(j+1), up to the output a + 2 * 2^j, and
    the inputs of the current leaf nowhere.
    """
    xp = namespace_of(cache)
    pending = cache[:, at:, :]
    for begin, size in _blocks(at, leaf):
        first = begin + 2 * size if size >= leaf else at
        last = min(cache.shape[1], begin + size + w.shape[-1] - 1)  # lags reach no further
        if first < last:
            whole = product(w, extended(cache[:, begin : begin + size, :], last - begin - size))
            gained = pending[:, first - at : last - at, :] + whole[:, first - begin :, :]
            pending = xp.concat([pending[:, : first - at, :], gained, pending[:, last - at :, :]], axis=1)
    return pending


def _blocks(at: int, leaf: int) -> Iterator[tuple[int, int]]:
    """Yield beginnings and sizes of the binary blocks before `at`, largest first, and last the current leaf's part."""
    begin = 0
    for j in reversed(range(at.bit_length())):
        if at >> j & 1 and 1 << j >= leaf:
            yield begin, 1 << j
            begin += 1 << j
    if begin < at:
        yield begin, at - begin


def extended(x: Array, count: int) -> Array:
    """Return x `(b, n, d)` with as many zeros after it in time."""
    xp = namespace_of(x)
    zeros = xp.zeros((x.shape[0], count, x.shape[2]), dtype=x.dtype, device=device_of(x))
    return xp.concat([x, zeros], axis=1)


def _put(cache: Array, first: int, last: int, values: Array) -> Array:
    """Return the cache with new values at these entries; in its own memory where the library writes to arrays."""
    if compat.is_jax_array(cache):
        return cache.at[:, first:last, :].set(values)
    if 0 not in cache.shape:  # Dask cannot write nothing
        cache[:, first:last, :] = values
    return cache
