"""Long signals cut into blocks: overlap-save, for filters that are short beside them, and for few channels.

A block's outputs depend on its own inputs and on the k - 1 before it (after it, for the adjoint): a window, of which
the product keeps the block. So a transform is as long as suits the filter, and blocks are many signals where there was
one: with few channels, what lies side by side in a register are blocks of one channel, or rows of the batch.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from .plans import fast_length

__all__ = ["DIRECT_LAGS", "Blocks", "sums_directly"]

Array = NDArray[Any]

# Direct sums are faster up to this length, or for as few lags. Microseconds of one core, directly and by transforms,
# medians of nine in turns, for float32 as (batch, n, channels) and k lags:
#     (8, 64, 512)   k = 64:   441 and 470        (2, 2048, 256)  k = 32:  1289 and 1691
#     (8, 80, 512)   k = 80:   560 and 570        (2, 2048, 256)  k = 48:  1522 and 1611
#     (8, 96, 512)   k = 96:   700 and 583        (2, 2048, 256)  k = 64:  1804 and 1573
#     (8, 128, 512)  k = 128: 1032 and 721        (1, 65536, 32)  k = 96:  7820 and 7904
DIRECT_LENGTH = 80
DIRECT_LAGS = 48

SHORTEST, FACTOR = 512, 16
"""The shortest window, and how many times as long as it, or as the filter, the longest may be."""
AT_ONCE = 1 << 20
"""Entries of the windows that are computed at once, and then copied while they are in a cache."""
COPIES, CALL = 1, 20_000
"""What blocks cost besides, for each entry and each call, in units of `_work`, of about 3 ns."""


def sums_directly(n: int, lags: int) -> bool:
    """Return whether products of a length are direct sums, where both are possible."""
    return n <= DIRECT_LENGTH or lags <= DIRECT_LAGS


Lanes = Literal["channels", "blocks", "rows"]


@dataclass(frozen=True)
class Blocks:
    """How signals `(rows, n, d)` are cut."""

    size: int
    """Times of a block."""
    overlap: int
    """Times that its window has more: a lag less than the filter has."""
    lanes: Lanes
    """What lies side by side in a register."""

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(
        cls, shape: tuple[int, ...], kernel_size: int, lags: int, lanes: int, threads: int, *, sums: bool
    ) -> Blocks | None:
        """Return how signals `(rows, n, d)` are cut so that they are done sooner than whole, or None.

        A register has so many `lanes`; `sums` tells whether few lags may be summed directly.
        """
        rows, n, d = shape
        best = None

        def cost(signals: int, side_by_side: int, length: int) -> float:
            return -(-signals * -(-side_by_side // lanes) // threads) * _work(length, lags if sums else None)

        least = cost(rows, d, n)
        extra = COPIES * rows * n * d + CALL
        if least < extra:
            return None
        longest = FACTOR * max(SHORTEST, lags)
        for window in [n, *itertools.takewhile(min(n, longest).__gt__, _lengths_from(max(SHORTEST, lags)))]:
            overlap = lags - 1 if window < n else 0
            size = min(window, n) - overlap
            count = -(-n // size)
            ways: dict[Lanes, tuple[int, int]] = {
                "channels": (rows * count, d),
                "blocks": (d * rows, count),
                "rows": (d * count, rows),
            }
            for way, (signals, side_by_side) in ways.items():
                if (way == "channels" or kernel_size == 1) and (count > 1 or way == "rows"):
                    total = cost(signals, side_by_side, size + overlap) + extra
                    if total < least:
                        least, best = total, cls(size, overlap, way)
        return best

    def multiply(self, product: Callable[[int | None, Array, Array], None], x: Array, y: Array, adjoint: bool) -> None:
        """Write to y, `(..., n, d)`, what `product(channel, x, y)` writes for windows of a channel, or of all."""
        x, y = (a.reshape(-1, *a.shape[-2:]) for a in (x, y))
        n, before = x.shape[1], 0 if adjoint else self.overlap
        for rows, first, last in self._parts(*x.shape):
            windows = self._windows(x[rows], first, last, before)
            for channel, channels in self._channels(x.shape[2]):
                inputs = self._arranged(windows[..., channels])
                outputs = np.empty(inputs.shape, y.dtype)
                product(channel, inputs, outputs)
                kept = self._arranged(outputs)[:, :, before : before + self.size]
                whole = min(last, n // self.size)
                its = y[rows, :, channels]
                blocks = its[:, first * self.size : whole * self.size]
                blocks.reshape(len(its), -1, self.size, blocks.shape[-1])[:] = kept[:, : whole - first]
                if whole < last:
                    its[:, whole * self.size :] = kept[:, -1, : n - whole * self.size]

    def pairs(self, x: Array, g: Array) -> Iterator[tuple[int | None, Array, Array]]:
        """Yield windows of a channel of x and g, or of all (None), whose correlations add up to that of x and g."""
        x, g = (a.reshape(-1, *a.shape[-2:]) for a in (x, g))
        for rows, first, last in self._parts(*x.shape):
            x_windows, g_windows = (self._windows(a[rows], first, last, self.overlap) for a in (x, g))
            g_windows = g_windows.copy()
            g_windows[:, :, : self.overlap] = 0  # counted with the block before
            for channel, channels in self._channels(x.shape[2]):
                yield channel, self._arranged(x_windows[..., channels]), self._arranged(g_windows[..., channels])

    def _channels(self, d: int) -> list[tuple[int | None, slice]]:
        """Return which channels are computed at once."""
        if self.lanes == "channels":
            return [(None, slice(None))]
        return [(c, slice(c, c + 1)) for c in range(d)]

    def _parts(self, rows: int, n: int, d: int) -> Iterator[tuple[slice, int, int]]:
        """Yield rows, and the first and last block, of what is computed at once."""
        count, window = -(-n // self.size), (self.size + self.overlap) * (d if self.lanes == "channels" else 1)
        blocks = min(count, max(64, AT_ONCE // window))
        together = max(1, AT_ONCE // (window * blocks))
        for row, first in itertools.product(range(0, rows, together), range(0, count, blocks)):
            yield slice(row, row + together), first, min(first + blocks, count)

    def _windows(self, a: Array, first: int, last: int, before: int) -> Array:
        """Return the windows of some blocks, `(rows, blocks, times, d)`, zeros beyond the ends."""
        rows, n, d = a.shape
        begin, end = first * self.size - before, last * self.size + self.overlap - before
        if begin < 0 or end > n:
            padded = np.zeros((rows, end - begin, d), a.dtype)
            padded[:, max(0, -begin) : n - begin] = a[:, max(0, begin) : end]
            a, begin = padded, 0
        row, time, channel = a.strides
        shape = rows, last - first, self.size + self.overlap, d
        return as_strided(a[:, begin:], shape, (row, self.size * time, time, channel))

    def _arranged(self, windows: Array) -> Array:
        """Return `(rows, blocks, times, d)` with what lies side by side last; or the same back again."""
        if self.lanes == "channels":
            return windows
        return windows.swapaxes(3, 1 if self.lanes == "blocks" else 0)


def _lengths_from(n: int) -> Iterator[int]:
    """Yield the fast lengths that are not below n."""
    while True:
        n = fast_length(n)
        yield n
        n += 1


def _work(n: int, lags: int | None) -> float:
    """Return about how long a register of signals of a length takes; `lags` are None where they are transformed."""
    if lags is not None and sums_directly(n, lags):
        return n * min(n, lags) / 5
    length = fast_length(n)
    return length * math.log2(length)
