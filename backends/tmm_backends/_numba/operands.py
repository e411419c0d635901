"""What kernels are given: filters, signals and groups of channels, in the form that they read, and memory."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from .lanes import WIDTHS
from .memory import DTYPE_TAGS

__all__ = ["ARITHMETIC", "Arithmetic", "Filters", "Groups", "Signals", "aligned_empty", "aligned_zeros"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Arithmetic:
    """How signals of a dtype are computed.

    With magnitudes from `lowest` to `highest`, spectra of up to 2^20 times do not overflow, nor do sums of products of
    two spectra over a thousand signals and lanes; and sums of products stay well above the smallest normal number,
    below which rounding errors are no longer relative.
    """

    name: str
    """Name of the dtype of signals and results."""
    compute_dtype: np.dtype[Any]
    """The dtype of buffers and filters: float32 for float16 and bfloat16."""
    lanes: int
    """Numbers that a register holds."""
    lowest: float
    """The smallest peak of a signal, other than zero, that is safe to transform."""
    highest: float
    """The largest peak of a signal that is safe to transform."""
    max_exponent: int
    """The largest binary exponent of a filter that is safe, and how far below it each row of its kernel may be."""

    @property
    def top(self) -> int:
        """The exponent near `highest` to which signals are brought that need the range below it."""
        return math.frexp(self.highest)[1] - 8

    @property
    def spread(self) -> int:
        """How far below signals brought to `top` others may be."""
        return self.top - math.frexp(self.lowest)[1] - 8


def _arithmetic(name: str) -> Arithmetic:
    if name == "float64":
        return Arithmetic(name, np.dtype(np.float64), WIDTHS[types.float64], 2.0**-600, 2.0**400, 400)
    return Arithmetic(name, np.dtype(np.float32), WIDTHS[types.float32], 2.0**-80, 2.0**38, 40)


ARITHMETIC = {name: _arithmetic(name) for name in DTYPE_TAGS}
"""By the name of the dtype."""


@dataclass(frozen=True)
class Filters:
    """Lags divided by exact powers of two, so that the largest magnitude of each head is from a half to one."""

    normalized: NDArray[Any]
    """(h * m, k), the scaled lags, in the dtype of computation."""
    scales: NDArray[Any]
    """(h,), the powers of two that results are multiplied by."""
    heads: int
    kernel_size: int
    unsafe: NDArray[np.bool_]
    """(h,), the heads whose lags are not finite, or out of range; `normalized` is zero there."""
    faint: NDArray[np.bool_]
    """(h,), those of them that have rows of too different sizes."""
    arithmetic: Arithmetic
    spectra: dict[tuple[int, int], NDArray[Any]] = field(default_factory=dict)
    """Those that were made, by the length of the transform and the sign of the imaginary part."""

    @property
    def lags(self) -> int:
        """Lags of each filter."""
        return int(self.normalized.shape[1])

    @classmethod
    def of(cls, w: NDArray[Any], arithmetic: Arithmetic) -> Filters:
        """Normalize the filters `w`, `(h, m, k)`."""
        heads, kernel_size, lags = w.shape
        w = w.astype(arithmetic.compute_dtype, order="C")  # kernels read one filter after the other
        rows = np.max(np.abs(w), axis=2)
        peaks = np.max(rows, axis=1)
        exponents = np.where(np.isfinite(peaks), np.frexp(peaks)[1], 0)
        # A row far smaller than others of its kernel decides the result where the channels of those are zero.
        faint = np.any((rows > 0) & (np.frexp(rows)[1] < exponents[:, None] - arithmetic.max_exponent), axis=1)
        # Far below it, factors of a result might be multiplied to numbers below the normal ones, which are not exact.
        outside = (exponents > arithmetic.max_exponent) | (exponents < -2 * arithmetic.max_exponent)
        unsafe = ~np.isfinite(peaks) | outside | faint
        exponents[unsafe] = 0
        w[unsafe] = 0
        normalized = np.ldexp(w, -exponents[:, None, None]).reshape(heads * kernel_size, lags)
        scales = np.ldexp(np.ones(heads, arithmetic.compute_dtype), exponents)
        return cls(normalized, scales, heads, kernel_size, unsafe, faint, arithmetic)


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring channels, as many as a register holds, whatever their filters."""

    channels: Ints
    """First channel of each group."""
    counts: Ints
    """Channels of each group; 0 for a full register of channels side by side in memory."""
    heads: Ints
    """(groups, lanes), the filter of each lane; lanes after the last channel have that of the last channel."""
    shared: Ints
    """The filter of all lanes of a group, or -1."""

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, d: int, heads: int, lanes: int, *, packed: bool) -> Groups:
        """Return the groups of `d` channels of `heads` filters; `packed` if channels lie side by side in memory."""
        channels = np.arange(0, d, lanes)
        counts = np.minimum(lanes, d - channels)
        lane_heads = np.minimum(channels[:, None] + np.arange(lanes), d - 1) // (d // heads)
        shared = np.where(lane_heads[:, 0] == lane_heads[:, -1], lane_heads[:, 0], -1)
        return cls(channels, np.where((counts == lanes) & packed, 0, counts), lane_heads, shared)

    @property
    def mixed(self) -> bool:
        """Whether a group has several filters."""
        return bool(np.any(self.shared < 0))

    def rows(self, first_stride: int, second_stride: int) -> Ints:
        """Return the rows `groups` of `product_kernels`, for the strides of channels of two arrays, in bytes."""
        columns = (self.channels * first_stride, self.channels * second_stride, self.counts, self.shared)
        return np.ascontiguousarray(np.stack(columns, axis=1))


@dataclass(frozen=True)
class Signals:
    """The signals of a batch: documents, or whole rows."""

    row: Ints
    """Row of the flattened batch."""
    start: Ints
    """First time."""
    length: Ints
    """Number of times."""

    @classmethod
    def of(cls, rows: int, n: int, segment_ids: NDArray[Any] | None) -> Signals:
        """Return the runs of equal `segment_ids`, `(rows, n)`; whole rows without them."""
        if segment_ids is None:
            return cls(np.arange(rows), np.zeros(rows, np.int64), np.full(rows, n))
        begins = np.ones((rows, n), bool)
        np.not_equal(segment_ids[:, 1:], segment_ids[:, :-1], out=begins[:, 1:])
        at = np.flatnonzero(begins)
        return cls(at // n, at % n, np.diff(at, append=rows * n))

    def __len__(self) -> int:
        """Return the number of signals."""
        return len(self.row)

    def __getitem__(self, which: Any) -> Signals:
        """Return the signals that an index, a slice or a mask selects."""
        return Signals(self.row[which], self.start[which], self.length[which])

    def offsets(self, array: NDArray[Any]) -> Ints:
        """Return the offset of each signal in an array `(..., n, d)`, in bytes from its first entry."""
        batch = np.zeros((), np.int64)
        for size, stride in zip(array.shape[:-2], array.strides[:-2], strict=True):
            batch = batch[..., None] + np.arange(size) * stride
        return batch.reshape(-1)[self.row] + self.start * array.strides[-2]

    def rows(self, first: NDArray[Any], second: NDArray[Any]) -> Ints:
        """Return the rows `signals` of `product_kernels`, for two arrays."""
        return np.ascontiguousarray(np.stack((self.offsets(first), self.offsets(second), self.length), axis=1))


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialised array that begins at a cache line: vectors across two lines take twice as long."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    memory: NDArray[Any] = raw[start : start + count].view(dtype)
    return memory.reshape(shape)


HUGE = 1 << 22
"""Bytes from which an array gets pages of its own."""


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros that begins at a cache line; a large one takes no memory before it is written.

    Large arrays have huge pages, where the system has them: to touch 8 MiB for the first time took 6 ms with small
    pages, as long as two transforms of it.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = aligned_empty(shape, dtype)
        memory.fill(0)
        return memory
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # private: not shared with forked children
    with contextlib.suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)
