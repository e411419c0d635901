"""Streams: what is prepared for the filters of a layer, and a step of one token as calls of kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core.backend import LayerStream, StreamLayer, definition_matmul, shift_channels

from . import steps
from .memory import DTYPE_TAGS
from .operands import ARITHMETIC, Groups, aligned_zeros
from .rescaling import finite_lags
from .threads import parallel_for, thread_count
from .tiles import Tiles, marked_channels

__all__ = ["NumbaStream"]

Array = NDArray[Any]

# Microseconds a token of one core, the least of many streams in turns, for float32, one row of 512 channels:
#     leaf             16     32     64    128   all
#     64 tokens      1.50   1.19   1.28    -    1.28
#     128 tokens     2.40   1.93   1.98   2.38  2.38
#     256 tokens     2.72   2.00   1.95   2.38  3.12
# and of 64 channels, 256 tokens: 0.76, 0.61, 0.56, 0.63, 0.73. Larger batches leave the cache sooner.
LEAF = 32
"""The leaf of streams that are longer than SHORT."""
SHORT = 64
"""Streams of up to so many tokens are one leaf, with no tiles: the product with the history, which then costs less."""
LARGE = 1 << 20
"""Steps of fewer multiplications are left to one thread."""


class NumbaStream(LayerStream):
    """The streams of a layer, whose steps are calls of kernels that write to the cache."""

    def __init__(self, layer: StreamLayer) -> None:
        """Choose the leaf; all else is made when it is needed, for it depends on the channels of a cache."""
        super().__init__(layer, power_from(layer.capacity) if layer.capacity <= SHORT else LEAF)
        self._w = layer.lags[..., : layer.capacity]
        self._empty, self._dtype = np.empty, layer.lags.dtype
        # Beyond the last lag a tile of `leaf` inputs is as good as a smaller one: what it adds is zero.
        self._largest = max(self.leaf, power_from(self._w.shape[-1]))
        self._layouts: dict[int, _Layout] = {}
        self._recent: tuple[Callable[..., int], Any, Any, Any] = _not_yet, None, None, None

    def new_cache(self, rows: int, length: int, channels: int) -> Array:
        """Return a cache of zeros, from the beginning of a cache line on."""
        return aligned_zeros((rows, length, channels), self._w.dtype)

    def begin(self, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
        """Return the outputs for a first prompt, and a cache in the order that kernels read: products have any."""
        y, cache = super().begin(x, padding, length)
        return y, np.ascontiguousarray(cache)

    def resume(self, cache: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens that follow, and such a cache."""
        y, cache = super().resume(cache, at, position, padding, x)
        return y, np.ascontiguousarray(cache)

    def renewed(self, cache: Array, length: int) -> Array:
        """Return such a cache after one that has been used up."""
        return np.ascontiguousarray(super().renewed(cache, length))

    def step(self, cache: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output of a token, and the cache.

        Most steps are a single call of 0.5 us, which also tells whether there is more to do.
        """
        if not x.flags.c_contiguous:
            x = x.copy()
        y = self._empty(x.shape, self._dtype)
        run, dtype_tags, pieces, lags = self._recent
        outcome = run(dtype_tags, cache, at, x, y, pieces, lags, 0, -1)
        if outcome:
            self._finish(outcome, cache, at, x, y)
        return (y if self.plain else self.finished(y, position, padding)), cache

    def finished(self, y: Array, position: int, padding: Array | None) -> Array:
        """Return outputs `(b, d)` at a position, finished in place; the definition would take twice as long."""
        if padding is not None:
            y = super().finished(y, position, padding)
            return y
        by_head, sums = y.reshape(len(y), len(self._w), y.shape[1] // len(self._w)), self.layer.sums
        with np.errstate(all="ignore"):
            if sums is not None:
                by_head /= sums[min(position, len(sums) - 1)]
            if self.layer.bias is not None:
                by_head += self.layer.bias[position]
        return y

    def _finish(self, outcome: int, cache: Array, at: int, x: Array, y: Array) -> None:
        """Do the rest of a step."""
        layout, after = self._layout(cache.shape[2]), at + 1
        if outcome == steps.ELSEWHERE:
            outcome = layout.step(cache, at, x, y)
            self._recent = layout.run, layout.dtype_tags, layout.pieces, layout.lags
        if outcome > steps.TILE:
            layout.define(cache, at, at % self.leaf, x, y)
        if outcome & steps.TILE:
            layout.tiles.add(cache, after, min(after & -after, self._largest))

    def _layout(self, d: int) -> _Layout:
        found = self._layouts.get(d)
        if found is None:  # threads that come at once may each make one: they are alike
            found = self._layouts[d] = _Layout(self._w, d, self.leaf)
        return found


def _not_yet(*arguments: Any) -> int:
    """Stand in for a kernel before the first step."""
    return steps.ELSEWHERE


def power_from(n: int) -> int:
    """Return the first power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


class _Layout:
    """The same for caches of `d` channels."""

    def __init__(self, w: Array, d: int, leaf: int) -> None:
        arithmetic = ARITHMETIC[w.dtype.name]
        self.w, self.d, self.leaf = w, d, leaf
        self.dtype_tags = (DTYPE_TAGS[arithmetic.name],)
        self.tiles = Tiles(w, d, arithmetic)
        _, self.first_bad_lag = finite_lags(w, w.dtype)
        lags = np.array(w[..., :leaf], order="C")  # not read-only, which would be another type to Numba
        self.kernel: Any = steps.step if w.shape[1] == 1 else steps.step_across_channels
        head = leaf, w.shape[-1] - 1, d, LARGE // max(d * leaf, 1), 0
        self.pieces, self.lags = np.asarray([head], np.int64), lags
        if w.shape[1] == 1:
            self.pieces, self.lags = _pieces(head, lags[:, 0], Groups.of(d, len(w), arithmetic.lanes, packed=True))
        self.run: Callable[..., int] = self._first

    def _first(self, dtype_tags: Any, cache: Array, at: int, x: Array, *others: Any) -> int:
        """Run for the first time: compile, and then go around the look-up of types, which takes 0.5 us."""
        arguments = (dtype_tags, cache, at, x.copy(), *others)  # not read-only
        missed: int = self.kernel(*arguments)
        self.run = self.kernel.entry(*arguments)
        return missed

    def step(self, cache: Array, at: int, x: Array, y: Array) -> int:
        """Do a step but for its tile, by threads where it is large; return what is left to do."""
        outcomes: list[int] = []

        def work(first: int, last: int) -> None:
            outcomes.append(self.run(self.dtype_tags, cache, at, x, y, self.pieces, self.lags, first, last))

        few = len(cache) * self.d * self.leaf < LARGE
        parallel_for(len(cache), lambda: work, threads=1 if few else thread_count())
        return max(outcomes, default=0)

    def define(self, cache: Array, at: int, count: int, x: Array, y: Array) -> None:
        """Do what is not finite, the last `count` inputs being those of the step, by the definition if need be."""
        missing = np.isfinite(cache[:, at]) & ~np.isfinite(y)  # what was pending makes the rest NaN, or infinite
        if missing.any():
            past = min(count, self.w.shape[-1] - 1)
            recent = np.concatenate([cache[:, at - past : at], x[:, None]], axis=1)
            reached = self.reached_by_nan(~np.isfinite(recent).all(axis=1), past)
            y[reached] = np.nan
            for row, head, channels in marked_channels(missing & ~reached, self.w):  # they overflow on the way
                inputs = recent[row][:, channels]
                lags = self.w[head : head + 1]
                with np.errstate(all="ignore"):
                    product = definition_matmul(lags, inputs, adjoint=False, method="auto", segment_ids=None)
                    y[row, channels] = cache[row, at, channels] + product[-1]
        cache[:, at] = x

    def reached_by_nan(self, bad: Array, past: int) -> Array:
        """Return which outputs `(rows, d)` are NaN by such inputs of a channel, or by one of `past` + 1 lags."""
        heads, kernel_size, _ = self.w.shape
        near: Array = np.repeat(self.first_bad_lag <= past, self.d // heads) | bad
        for offset in range(1, kernel_size):
            near |= shift_channels(bad, offset, heads)
        return near


def _pieces(head: tuple[int, ...], lags: Array, groups: Groups) -> tuple[Array, Array]:
    """Return the pieces that `steps.step` reads, and its table of lags: a row a filter, then those of each lane."""
    lanes = groups.heads.shape[1]
    rows, table, end = [head], [lags.ravel()], lags.size
    group = 0
    for (filter, count), run in itertools.groupby(zip(groups.shared.tolist(), groups.counts.tolist(), strict=True)):
        several = len(list(run))
        if filter >= 0 and count == 0:
            rows.append((group * lanes, several, 0, filter * lags.shape[1], 0))
        elif filter >= 0:
            rows.append((group * lanes, 0, count, filter * lags.shape[1], 0))
        else:
            for i in range(group, group + several):
                rows.append((i * lanes, 0, count, end, 1))
                table.append(lags[groups.heads[i]].T.ravel())
                end += table[-1].size
        group += several
    return np.asarray(rows, np.int64), np.concatenate(table)
