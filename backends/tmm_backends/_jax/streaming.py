"""Streams of JAX arrays: compiled steps whose positions are arguments, so that no position is a program of its own.

XLA writes into a donated cache in place where all that is read of it is read first; in the bodies of loops and
branches it copies the whole cache. So large caches are changed by programs of their own, a step by one and a tile by
another, and a loop over tokens works on a window of one leaf, aligned with the cache's leaves: a short cache like any.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tmm_core.backend import LayerStream, StreamState, nan_where, tiles, with_jax_defaults

__all__ = ["JaxStream"]

Array = jax.Array


class JaxStream(LayerStream):
    """The streams of one layer; a tree of arrays, so that programs take it as an argument."""

    @with_jax_defaults
    def begin(self, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
        """Return the outputs for a prompt `(b, n, d)`, and a cache of `length` entries for the times after it."""
        pair: tuple[Array, Array] = _begin(self, x, padding, length)
        return pair

    @with_jax_defaults
    def resume(self, cache: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens `(b, n, d)` that follow, and a cache, as long where `at` is traced."""
        y, later = _resume(self, cache, at, position, padding, x)
        known = not isinstance(at, jax.core.Tracer)
        return y, later[:, : cache.shape[1] - int(at) - x.shape[1]] if known else later

    @with_jax_defaults
    def step(self, cache: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output for a token `(b, d)`, and the cache after it; positions may be traced."""
        y, cache = _advance(self, cache, at, position, padding, x)
        return y, self.add_tile(cache, at + 1)

    def tile_after(self, u: int, length: int) -> int:
        """Return the size of the tile that is due after u entries of a cache, 0 for none."""
        if u % self.leaf or u >= length:
            return 0
        return tiles.tile_size(u, self.layer.lags.shape[-1])

    @with_jax_defaults
    def advance(self, cache: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output `(b, d)` of the input x at an entry, and the cache, or window of one, with x in it."""
        lags, length = self.layer.lags, cache.shape[1]
        size = min(self.leaf, length)
        at = jnp.asarray(at, "int32")
        begin = jnp.minimum(at - at % self.leaf, length - size)
        here = at - begin
        x = nan_where(~jnp.isfinite(x), x)
        window = lax.dynamic_slice_in_dim(cache, begin, size, 1)  # (b, size, d)
        entries = jnp.arange(size)
        first = jnp.maximum(here - at % self.leaf, here - lags.shape[-1] + 1)
        read = ((entries >= first) & (entries < here))[:, None]
        recent = jnp.where((entries == here)[:, None], x[:, None], jnp.where(read, window, 0))
        # Entry i has the weight w[here - i]: a slice of the lags in reverse, with zeros on both sides.
        used = lags[..., :size]
        back = jnp.pad(jnp.flip(used, -1), ((0, 0), (0, 0), (size - used.shape[-1], size)))
        weights = lax.dynamic_slice_in_dim(back, size - 1 - here, size, -1)  # (h, m, size)
        weights = jnp.where((entries >= first) & (entries <= here), weights, 0)
        y = lax.dynamic_slice_in_dim(cache, at, 1, 1)[:, 0] + tiles.weighted(jnp.flip(weights, -1), recent)
        cache = lax.dynamic_update_slice_in_dim(cache, x[:, None], _after(y, at), 1)
        return self.finished(y, position, padding), cache

    def with_tile(self, cache: Array, u: Any, size: int) -> Array:
        """Return the cache after the tile at u: the contributions of the last `size` inputs to as many outputs."""
        length = cache.shape[1]
        u = jnp.asarray(u, "int32")
        block = lax.dynamic_slice_in_dim(cache, u - size, size, 1)
        gained = self.layer.product(self.layer.lags[..., : 2 * size], tiles.extended(block, size))[:, size:]
        begin = jnp.minimum(u, length - size)  # a cache may end before the tile does
        gained = lax.dynamic_slice_in_dim(jnp.pad(gained, ((0, 0), (size, 0), (0, 0))), size - (u - begin), size, 1)
        total = lax.dynamic_slice_in_dim(cache, begin, size, 1) + gained
        return lax.dynamic_update_slice_in_dim(cache, total, _after(total, begin), 1)

    @with_jax_defaults
    def add_tile(self, cache: Array, u: Any, /) -> Array:
        """Return the cache, donated, after the tile at u, if there is one; where u is traced it may be copied."""
        length, lags = cache.shape[1], self.layer.lags.shape[-1]
        if not isinstance(u, jax.core.Tracer):
            size = self.tile_after(int(u), length)
            return _add_tile(self, cache, u, size) if size else cache
        sizes = [self.leaf << j for j in range(max(0, (length - 1) // self.leaf).bit_length())]
        for size in sizes:
            last = size == sizes[-1] or tiles.tile_size(2 * size, lags) == size
            due = (u % size == 0) & (u < length) & (last | (u % (2 * size) != 0))
            cache = lax.cond(due, functools.partial(self.with_tile, u=u, size=size), lambda cache: cache, cache)
            if last:
                break
        return cache

    @with_jax_defaults
    def close_leaf(self, cache: Array, window: Array, u: int, /) -> tuple[Array, Array]:
        """Return the cache, donated, after a window's leaf, which ends at u, and the window that follows.

        A cache that ends there is renewed.
        """
        renew = u == cache.shape[1]
        pair: tuple[Array, Array] = _close(self, cache, window, u, self.tile_after(u, cache.shape[1]), renew)
        return pair

    def resumed(self, cache: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens `(b, n, d)` that follow, and a cache, as long, that begins after them."""
        n, length = x.shape[1], cache.shape[1]
        x, at = nan_where(~jnp.isfinite(x), x), jnp.asarray(at, "int32")
        pending = _moved(self._flushed(cache, at), -at)
        y = self.layer.product(self.layer.lags, tiles.extended(x, length))
        total = jnp.pad(pending, ((0, 0), (0, n), (0, 0))) + y  # (b, length + n, d)
        finish = functools.partial(self.finished, padding=padding)
        return jax.vmap(finish, in_axes=(1, 0), out_axes=1)(total[:, :n], position + jnp.arange(n)), total[:, n:]

    def _flushed(self, cache: Array, at: Array) -> Array:
        """Return the cache whose outputs from `at` on have all that the inputs before contribute; see `tiles.flushed`.

        Each binary block that the position may have is multiplied, and counts if it has it.
        """
        length = cache.shape[1]
        entries = jnp.arange(length)
        inputs = jnp.where((entries < at)[:, None], cache, 0)
        total = cache
        for size in [self.leaf << j for j in range((length // self.leaf).bit_length())]:
            begin = at // (2 * size) * (2 * size)
            block = lax.dynamic_slice_in_dim(jnp.pad(inputs, ((0, 0), (0, size), (0, 0))), begin, size, 1)
            total = total + self._reaching(block, begin, begin + 2 * size, (at & size) != 0, length)
        begin = at - at % self.leaf
        block = lax.dynamic_slice_in_dim(jnp.pad(inputs, ((0, 0), (0, self.leaf), (0, 0))), begin, self.leaf, 1)
        return total + self._reaching(block, begin, at, at % self.leaf != 0, length)

    def _reaching(self, block: Array, begin: Array, first: Array, counts: Array, length: int) -> Array:
        """Return what a block of inputs from entry `begin` contributes to outputs from `first` on, if it counts."""
        whole = self.layer.product(self.layer.lags, tiles.extended(block, length))[:, :length]
        return jnp.where((counts & (jnp.arange(length) >= first))[:, None], _moved(whole, begin), 0)


def _moved(a: Array, by: Any) -> Array:
    """Return `(b, n, d)` later by some entries, or earlier, with zeros where nothing comes from."""
    n = a.shape[1]
    wide = jnp.pad(a, ((0, 0), (n, n), (0, 0)))
    return lax.dynamic_slice_in_dim(wide, n - by, n, 1)


def _after(read: Array, at: Array) -> Array:
    """Return `at` as a number that exists only after `read` does.

    What must be read of a cache is then read before it is written to, and XLA copies nothing. Bits of a number without
    its sign are no negative integer, which the compiler does not know.
    """
    bits = lax.bitcast_convert_type(jnp.abs(jnp.real(read).astype("float32").ravel()[:1]), jnp.int32)
    return at + jnp.sum(jnp.minimum(bits, 0))


@functools.partial(jax.jit, static_argnums=3)
def _begin(stream: JaxStream, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
    return LayerStream.begin(stream, x, padding, length)


@jax.jit
def _resume(stream: JaxStream, cache: Array, at: Any, position: Any, padding: Any, x: Array) -> tuple[Array, Array]:
    return stream.resumed(cache, at, position, padding, x)


@functools.partial(jax.jit, donate_argnums=1)
def _advance(stream: JaxStream, cache: Array, at: Any, position: Any, padding: Any, x: Array) -> tuple[Array, Array]:
    return stream.advance(cache, at, position, padding, x)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=1)
def _add_tile(stream: JaxStream, cache: Array, u: Any, size: int) -> Array:
    return stream.with_tile(cache, u, size)


@functools.partial(jax.jit, static_argnums=(4, 5), donate_argnums=1)
def _close(stream: JaxStream, cache: Array, window: Array, u: Any, size: int, renew: bool) -> tuple[Array, Array]:
    u = jnp.asarray(u, "int32")
    leaf = window.shape[1]
    cache = lax.dynamic_update_slice_in_dim(cache, window, u - leaf, 1)
    if renew:
        cache = stream.renewed(cache, cache.shape[1])
        return cache, cache[:, :leaf]
    if size:
        cache = stream.with_tile(cache, u, size)
    return cache, lax.dynamic_slice_in_dim(cache, u, leaf, 1)


# Trees of arrays -----------------------------------------------------------------------------------------------------


def _stream_parts(stream: JaxStream) -> tuple[Any, Any]:
    layer = stream.layer
    rest = replace(layer, lags=None, sums=None, bias=None), stream.leaf, stream.nan_lags
    return (layer.lags, layer.sums, layer.bias), rest


def _stream_of(rest: Any, arrays: Any) -> JaxStream:
    """Return the stream with other arrays; nothing of them is looked at, for they may stand for anything."""
    layer, leaf, nan_lags = rest
    stream = object.__new__(JaxStream)
    lags, sums, bias = arrays
    stream.layer, stream.leaf, stream.nan_lags = replace(layer, lags=lags, sums=sums, bias=bias), leaf, nan_lags
    stream.plain, stream.xp = sums is None and bias is None, jnp
    return stream


def _state_parts(state: StreamState) -> tuple[Any, Any]:
    return (state.cache, state.origin, state.at, state.end, state.padding), (state.plan, state.steps, state.shape)


def _state_of(rest: Any, children: Any) -> StreamState:
    state = object.__new__(StreamState)
    state.cache, state.origin, state.at, state.end, state.padding = children
    state.plan, state.steps, state.shape = rest
    if isinstance(state.cache, Array):
        state.rows = (state.cache.shape[0], state.cache.shape[2])
    return state


jax.tree_util.register_pytree_node(JaxStream, _stream_parts, _stream_of)
jax.tree_util.register_pytree_node(StreamState, _state_parts, _state_of)
