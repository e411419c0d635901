"""Series: signals of a few channels and filters of a few lags, which are summed directly along time.

Signals are cut into pieces that stay in a cache, each with the inputs before its outputs on which they depend, or after
them for the adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import series_kernels
from .blocks import DIRECT_LAGS
from .memory import DTYPE_TAGS
from .operands import Arithmetic, Filters, Signals, aligned_empty
from .series_kernels import AT_ONCE
from .threads import parallel_for, thread_count

__all__ = ["Pieces", "correlate_series", "correlates_series", "is_series", "multiply_series"]

Array = NDArray[Any]
Ints = NDArray[np.int64]

MOST_REGISTERS = 16
"""Lags, as multiples of the lanes of a register, up to which direct sums along time are faster.

Milliseconds of one core, by blocks and along time, least of six turns, as (n, channels) and k lags:
    float32 (1e6, 1)   k = 32: 3.1 and 1.5   k = 128: 5.5 and 4.1   k = 256: 10.7 and 7.4   k = 384: 10.4 and 10.5
            (1e5, 3)   k = 32: 1.5 and 0.6   k = 128: 2.1 and 1.3   k = 256:  2.1 and 2.6   k = 384:  2.3 and 3.5
            (5e4, 8)   k = 32: 1.3 and 0.8   k = 128: 4.4 and 1.6   k = 256:  4.7 and 2.7   k = 384:  5.1 and 3.9
    float64 (1e6, 1)   k = 32: 8.3 and 3.9   k = 128: 10.3 and 8.8  k = 256: 15.4 and 14.5  k = 384: 17.5 and 19.1
            (1e5, 3)   k = 32: 2.3 and 1.1   k = 128: 2.7 and 3.0   k = 256:  2.9 and 5.6   k = 384:  3.1 and 7.5
"""
SIZE = 1 << 13
"""Entries of a piece, but for many lags."""
SMALL = 1 << 15
"""Registers that are multiplied and added by one thread: another one takes about 50 us to wake up."""
LONG, MOST_CHANNELS = 1 << 13, 4
"""Correlations of signals so long, and of so many registers of channels, are still series, with few lags: (20000, 32)
with 20 lags takes 2.0 ms of one core so, and 4.4 ms by transforms, but (8, 2048, 512) takes 45 ms and 18 ms."""
CHUNKS = 32
"""Parts of a correlation that are summed for themselves, whatever the number of threads."""


def is_series(x: Array, kernel_size: int, lags: int, arithmetic: Arithmetic) -> bool:
    """Return whether signals `(..., n, d)` have so few channels and lags that sums along time are fastest."""
    few = min(lags, x.shape[-2]) <= MOST_REGISTERS * arithmetic.lanes
    return kernel_size == 1 and few and x.shape[-1] <= arithmetic.lanes


def correlates_series(x: Array, kernel_size: int, lags: int, arithmetic: Arithmetic) -> bool:
    """Return the same for correlations, where a long signal may have some registers of channels."""
    n, d = x.shape[-2:]
    some = kernel_size == 1 and lags <= DIRECT_LAGS and n >= LONG and d <= MOST_CHANNELS * arithmetic.lanes
    return some or is_series(x, kernel_size, lags, arithmetic)


@dataclass(frozen=True)
class Pieces:
    """Pieces of signals: of the product of their inputs, those outputs are kept that come after the skipped ones."""

    inputs: Signals
    skipped: Ints
    outputs: Ints

    @classmethod
    def of(cls, signals: Signals, lags: int, d: int, *, adjoint: bool) -> Pieces:
        """Cut signals of `d` channels."""
        overlap = lags - 1
        counts = np.maximum(1, -(-(signals.length - overlap) // max(SIZE // d, 2 * overlap)))
        which = np.repeat(np.arange(len(signals)), counts)
        number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        length = signals.length[which]
        begin, end = (i * length // counts[which] for i in (number, number + 1))
        first, last = (begin, np.minimum(end + overlap, length)) if adjoint else (np.maximum(begin - overlap, 0), end)
        inputs = Signals(signals.row[which], signals.start[which] + first, last - first)
        return cls(inputs, begin - first, end - begin)

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.outputs)

    def __getitem__(self, which: Any) -> Pieces:
        """Return the pieces that an index, a slice or a mask selects."""
        return Pieces(self.inputs[which], self.skipped[which], self.outputs[which])

    def rows(self, first: Array, second: Array) -> Ints:
        """Return the rows `pieces` of `series_kernels`: inputs are those of the first array."""
        inputs = self.inputs
        kept = Signals(inputs.row, inputs.start + self.skipped, self.outputs)
        columns = inputs.offsets(first), kept.offsets(second), inputs.length, self.skipped, self.outputs
        return np.ascontiguousarray(np.stack(columns, axis=1))


def _packed(a: Array) -> Array:
    """Return an array whose times and channels lie side by side."""
    d = a.shape[-1]
    return a if a.strides[-2:] == (d * a.itemsize, a.itemsize) else np.ascontiguousarray(a)


def _threads_for(entries: int, lags: int, arithmetic: Arithmetic) -> int:
    return 1 if entries * lags < SMALL * arithmetic.lanes else thread_count()


def multiply_series(y: Array, filters: Filters, x: Array, pieces: Pieces, adjoint: bool, *, low: float) -> Array:
    """Write products of pieces to `y`, both `(..., n, d)`; return a mask of what is below `low` or too large."""
    arithmetic, d = filters.arithmetic, x.shape[-1]
    dtype, lanes = arithmetic.compute_dtype, arithmetic.lanes
    x = _packed(x)
    longest = int(pieces.inputs.length.max())
    heads = np.arange(lanes) % d // (d // filters.heads)
    lags = np.ascontiguousarray(filters.normalized[heads, : min(filters.lags, longest)].T)
    unsafe = np.zeros(len(pieces), bool)
    arguments = (
        (DTYPE_TAGS[x.dtype.name], DTYPE_TAGS[y.dtype.name]), x.ctypes.data, x.itemsize, y.ctypes.data, y.itemsize,
        pieces.rows(x, y),
    )  # fmt: skip
    scales, tile = filters.scales[heads], (AT_ONCE + 1) * lanes

    def worker() -> Callable[[int, int], None]:
        buffer = aligned_empty(((longest + 2 * len(lags)) * d + 2 * tile,), dtype)
        registers = -(-longest // (lanes // d)) + AT_ONCE
        sums, scratch = aligned_empty((registers * lanes,), dtype), aligned_empty((lanes,), dtype)

        def work(first: int, last: int) -> None:
            series_kernels.product_along_time(
                *arguments, first, last, d, lags, scales, adjoint, low, arithmetic.highest, buffer, sums, scratch,
                unsafe,
            )  # fmt: skip

        return work

    entries = int(pieces.outputs.sum()) * d
    parallel_for(len(pieces), worker, threads=_threads_for(entries, len(lags), arithmetic))
    return unsafe


def correlate_series(c: Array, arithmetic: Arithmetic, x: Array, g: Array, signals: Signals, *, low: float) -> Array:
    """Add the lags to `c`, `(h, 1, k)` in float64; return peaks as `correlate` does.

    Channels are computed as many at a time as a register holds.
    """
    heads, d = len(c), x.shape[-1]
    totals = np.zeros(heads)
    for first in range(0, d, arithmetic.lanes):
        some = slice(first, min(first + arithmetic.lanes, d))
        sums, peaks = _correlate_channels(
            arithmetic, _packed(x[..., some]), _packed(g[..., some]), signals, c.shape[2], low
        )
        head = np.arange(some.start, some.stop) // (d // heads)
        np.add.at(c[:, 0, : len(sums)], head, sums.T)
        np.add.at(totals, head, peaks)
    return totals


def _correlate_channels(
    arithmetic: Arithmetic, x: Array, g: Array, signals: Signals, lags: int, low: float
) -> tuple[Array, Array]:
    """Return the lags `(k, d)` of each channel, and the sums of products of its peaks."""
    dtype, lanes, d = arithmetic.compute_dtype, arithmetic.lanes, x.shape[-1]
    pieces = Pieces.of(signals, lags, d, adjoint=False)
    longest = int(pieces.inputs.length.max())
    lags = min(lags, longest)
    parts = min(CHUNKS, len(pieces))
    cuts = np.arange(parts + 1) * len(pieces) // parts
    chunks = np.stack((cuts[:-1], cuts[1:]), axis=1)
    peaks, out = np.zeros((parts, lanes)), np.zeros((parts, lags, lanes))
    registers = -(-lags // AT_ONCE) * AT_ONCE
    arguments = (
        (DTYPE_TAGS[x.dtype.name], DTYPE_TAGS[g.dtype.name]), x.ctypes.data, x.itemsize, g.ctypes.data, g.itemsize,
        pieces.rows(x, g), chunks, d, lags,
    )  # fmt: skip

    def worker() -> Callable[[int, int], None]:
        sizes = (longest + registers) * d + 2 * lanes, longest * d + 2 * lanes, registers * lanes, 2 * lanes
        memory = [aligned_empty((size,), dtype) for size in sizes]

        def work(first: int, last: int) -> None:
            series_kernels.correlate_along_time(*arguments, first, last, low, arithmetic.highest, *memory, peaks, out)

        return work

    entries = int(pieces.outputs.sum()) * d
    parallel_for(parts, worker, threads=_threads_for(entries, lags, arithmetic))
    times = lanes // d  # of a register
    return out.sum(axis=0)[:, : times * d].reshape(lags, times, d).sum(axis=1), peaks[:, :d].sum(axis=0)
