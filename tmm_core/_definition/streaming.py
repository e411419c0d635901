"""Streams of a token-mixing layer as pure functions of a cache: the definition of `tmm_core.streaming`, and its oracle.

`(cache, at, position, padding, x) -> (y, cache)`: the outputs of the next tokens of a batch, and the cache after them.
`at` is the cache's entry of the next token and `position` its time, which has the padding of each row before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .._arrays.exchange import Array, is_traced, namespace_of
from .._arrays.properties import device_of, nan_where, values_within_reach
from . import tiles
from .toeplitz import quiet

__all__ = ["ExchangedStream", "LayerStream", "StreamLayer", "least_of"]

LEAF = 64
"""Inputs summed directly: on one core in NumPy, (1, 512) float32, a tile of 64 takes as long as some 10 such sums."""


@dataclass(frozen=True)
class StreamLayer:
    """A token-mixing layer in the dtype that its streams are computed in, float32 and above."""

    lags: Array
    """(h, m, k), NaN for all that are not finite."""
    sums: Array | None
    """(k, h, 1), or fewer where there are fewer positions: what a mean divides by, at later positions by the last."""
    bias: Array | None
    """(positions, h, 1)"""
    product: tiles.Product
    """The product of prompts and tiles, by the plan's choice of backend; equal choices compare equal."""
    capacity: int
    leaf: int | None = None
    """A power of two in place of the stream's own choice; see `LayerStream.leaf`."""

    def handed_to(self, receive: Callable[[Array], Array]) -> StreamLayer:
        """Return the layer with its arrays handed over to another library."""
        lags, sums, bias = (None if a is None else receive(a) for a in (self.lags, self.sums, self.bias))
        return replace(self, lags=lags, sums=sums, bias=bias)


class LayerStream:
    """The streams of one layer as pure functions, by the definition in the arrays' own namespace.

    Engines and bridges override what they do better: all functions at once, or `step` and `new_cache` alone. Arrays
    are in the layer's dtype, tokens `(b, d)` or `(b, n, d)`. A cache that is given is consumed: it may be written to.
    """

    leaf: int
    """A power of two: inputs since the last multiple of it are summed directly, older ones are in tiles."""

    def __init__(self, layer: StreamLayer, leaf: int | None = None) -> None:
        """Prepare for the streams of a layer, with this leaf unless the layer has its own."""
        self.layer = layer
        self.leaf = layer.leaf or leaf or LEAF
        self.plain = layer.sums is None and layer.bias is None
        self.xp = namespace_of(layer.lags)
        nan = self.xp.any(self.xp.isnan(layer.lags))
        self.nan_lags = not values_within_reach(nan) or bool(nan)  # or may be

    def new_cache(self, rows: int, length: int, channels: int) -> Array:
        """Return a cache without inputs."""
        lags = self.layer.lags
        return self.xp.zeros((rows, length, channels), dtype=lags.dtype, device=device_of(lags))

    def begin(self, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
        """Return the outputs for a first prompt `(b, n, d)`, and a cache of `length` entries for the times after it.

        What the padding holds does not matter, and outputs there are zeros.
        """
        xp, n, lags = self.xp, x.shape[1], self.layer.lags
        reach = n + min(length, lags.shape[-1] - 1)
        ids = None
        if padding is not None:
            token = _after(padding, n)[..., None]
            x = xp.where(token, x, xp.zeros_like(x))
            if self.nan_lags:  # makes NaN from a document's first token on, not from its padding's
                ids = xp.astype(_after(padding, reach), padding.dtype)
        whole = self.layer.product(lags, tiles.extended(x, reach - n), segment_ids=ids)  # (b, reach, d)
        y = self._finished_all(whole[:, :n, :], 0, padding)
        cache = tiles.extended(whole[:, n:, :], n + length - reach)
        if padding is not None:
            y = xp.where(token, y, xp.zeros_like(y))
            wrong = ((padding < 0) | (padding >= n))[:, None, None]
            if not values_within_reach(wrong):
                y, cache = nan_where(wrong, y), nan_where(wrong, cache)
        return y, cache

    def resume(self, cache: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens `(b, n, d)` that follow, and a cache that begins after them."""
        xp, n, lags = self.xp, x.shape[1], self.layer.lags
        reach = min(cache.shape[1] - at, n + lags.shape[-1] - 1)
        y = self.layer.product(lags, tiles.extended(x, reach - n))  # (b, reach, d)
        pending = tiles.flushed(self.layer.product, lags, cache, at, self.leaf)
        y = y + pending[:, :reach, :]
        later = xp.concat([y[:, n:, :], pending[:, reach:, :]], axis=1)
        return self._finished_all(y[:, :n, :], position, padding), later

    def renewed(self, cache: Array, length: int) -> Array:
        """Return a cache of `length` entries after one that has been used up, and is as long as the lags reach back."""
        lags = self.layer.lags
        before, after = min(cache.shape[1], lags.shape[-1] - 1), min(length, lags.shape[-1] - 1)
        whole = self.layer.product(lags, tiles.extended(cache[:, cache.shape[1] - before :, :], after))
        return tiles.extended(whole[:, before:, :], length - after)

    def step(self, cache: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output for a token `(b, d)`, and the cache after it."""
        with quiet():
            y, cache = tiles.step(self.layer.product, self.layer.lags, cache, at, x, self.leaf)
        return self.finished(y, position, padding), cache

    def finished(self, y: Array, position: int, padding: Array | None) -> Array:
        """Return outputs `(b, d)` at a position, divided by the sums and with the bias added; y may be written to."""
        if self.plain:
            return y
        xp, heads, shape = self.xp, self.layer.lags.shape[0], y.shape
        y = xp.reshape(y, (shape[0], heads, shape[1] // heads))
        with quiet():
            if self.layer.sums is not None:
                y /= _row_at(self.layer.sums, position, padding)
            if self.layer.bias is not None:
                y += _row_at(self.layer.bias, position, padding)
        return xp.reshape(y, shape)

    def _finished_all(self, y: Array, begin: int, padding: Array | None) -> Array:
        """Return outputs `(b, n, d)` from position `begin` on, finished as those of single tokens."""
        if self.plain:
            return y
        xp, shape, heads = self.xp, y.shape, self.layer.lags.shape[0]
        y = xp.reshape(y, (*shape[:2], heads, shape[2] // heads))
        times = xp.arange(begin, begin + shape[1], device=device_of(y))
        if padding is not None:
            times = xp.astype(times, padding.dtype) - padding[:, None]
            times = xp.where(times < 0, xp.zeros_like(times), times)
        with quiet():
            if self.layer.sums is not None:
                y = y / _rows_at(self.layer.sums, times)
            if self.layer.bias is not None:
                y = y + _rows_at(self.layer.bias, times)
        return xp.reshape(y, shape)


class ExchangedStream(LayerStream):
    """Streams by another library, which has the caches: tokens are handed over and outputs back."""

    def __init__(
        self, layer: StreamLayer, inner: LayerStream, enter: Callable[[Array], Array], leave: Callable[[Array], Array]
    ) -> None:
        """Let `enter` hand over tokens to the inner streams of the layer, and `leave` outputs."""
        self.layer, self.leaf, self.new_cache = layer, inner.leaf, inner.new_cache  # type: ignore[method-assign]
        self._inner, self._step, self._enter, self._leave = inner, inner.step, enter, leave

    def begin(self, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
        """Return the outputs for a first prompt, and a cache for the times after it."""
        y, cache = self._inner.begin(self._enter(x), padding, length)
        return self._leave(y), cache

    def resume(self, cache: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens that follow, and a cache that begins after them."""
        y, cache = self._inner.resume(cache, at, position, padding, self._enter(x))
        return self._leave(y), cache

    def renewed(self, cache: Array, length: int) -> Array:
        """Return a cache after one that has been used up."""
        return self._inner.renewed(cache, length)

    def step(self, cache: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output for a token, and the cache after it."""
        y, cache = self._step(cache, at, position, padding, self._enter(x))
        return self._leave(y), cache


def _row_at(table: Array, position: int, padding: Array | None) -> Array:
    """Return, (h, 1), or (b, h, 1) after padding, a table at one position of each row, which may be beyond its end."""
    if padding is not None:
        return _rows_at(table, position - padding)
    last = table.shape[0] - 1
    return table[namespace_of(table).minimum(position, last) if is_traced(position) else min(position, last), ...]


def _rows_at(table: Array, times: Array) -> Array:
    """Return, (..., h, 1), a table at times that may be beyond its end."""
    xp = namespace_of(table)
    at = xp.minimum(times, xp.full_like(times, table.shape[0] - 1))
    return xp.reshape(xp.take(table, xp.reshape(at, (-1,)), axis=0), (*times.shape, *table.shape[1:]))


def _after(padding: Array, n: int) -> Array:
    """Return, (b, n), which times come after each row's padding."""
    xp = namespace_of(padding)
    return xp.arange(n, dtype=padding.dtype, device=device_of(padding)) >= padding[:, None]


def least_of(padding: Array | None) -> int:
    """Return how much longer than the position bias a stream may be: 0 where that cannot be known."""
    if padding is None or padding.shape[0] == 0:
        return 0
    least = namespace_of(padding).min(padding)
    return int(least) if values_within_reach(least) else 0
