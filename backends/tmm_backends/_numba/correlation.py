"""The correlation as calls of kernels: spectra are summed in chunks fixed by the shapes, and transformed back once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import channel_kernels, correlation_kernels
from .memory import DTYPE_TAGS
from .operands import Arithmetic, Groups, Signals, aligned_empty
from .plans import plan
from .product import methods, threads_for, transform_buffers, window_buffer
from .series import correlate_series, correlates_series
from .threads import parallel_for

__all__ = ["correlate"]

Array = NDArray[Any]

CHUNKS, FEWEST, CHUNK = 16, 4, 64
"""A correlation has at least CHUNKS chunks, where there are as many jobs, each run of groups at least FEWEST of them,
and a chunk has at most CHUNK jobs."""


def correlate(c: Array, arithmetic: Arithmetic, x: Array, g: Array, signals: Signals, *, low: float) -> Array:
    """Add the lags of the correlation of some signals, `(..., n, d)`, to `c`, `(h, m, k)` in float64.

    Return, for each head, the sum over signals and channels of the product of the largest magnitudes in x and g. It is
    NaN where one of them is not finite, too large, or below `low`: such signals were skipped, and `c` is not valid for
    that head.
    """
    heads, kernel_size, lags = c.shape
    if correlates_series(x, kernel_size, lags, arithmetic):
        return correlate_series(c, arithmetic, x, g, signals, low=low)
    peaks = np.zeros(heads)
    for _, size, which in methods(signals.length, None):
        call = _SignalCorrelation(arithmetic, x, g, signals[which], heads, kernel_size, lags, low)
        peaks += call.add_to(c, size)
    return peaks


def _cuts(count: int, parts: int) -> list[tuple[int, int]]:
    """Return `parts` nearly equal ranges that cover `count` members, at most one for each member."""
    parts = min(parts, count)
    return [(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


def _scaled_sums(rows: Array, owners: list[int], count: int) -> tuple[Array, list[int]]:
    """Return the sum of each owner's rows divided by a power of two, and the exponents of those powers.

    The sums are then near one and do not overflow in the transform. Rows are added in their order, in float64: the same
    bits for any number of threads.
    """
    sums, exponents, owner_of = np.zeros((count, rows.shape[1]), rows.dtype), [0] * count, np.asarray(owners)
    for owner in range(count):
        total = np.zeros(rows.shape[1])
        for number in np.flatnonzero(owner_of == owner):
            total += rows[number]
        exponents[owner] = int(np.frexp(np.max(np.abs(total), initial=0))[1])
        sums[owner] = np.ldexp(total, -exponents[owner])
    return sums, exponents


@dataclass(frozen=True)
class _SignalCorrelation:
    """The correlation of some signals `x` and `g`, `(..., n, d)`, of one length of transforms."""

    arithmetic: Arithmetic
    x: Array
    g: Array
    signals: Signals
    heads: int
    kernel_size: int
    lags: int
    low: float

    @property
    def dtype_tags(self) -> tuple[Any, Any]:
        """The first argument of a kernel: the dtypes of the arrays."""
        return DTYPE_TAGS[self.x.dtype.name], DTYPE_TAGS[self.g.dtype.name]

    def add_to(self, c: Array, length: int) -> Array:
        """Do as `correlate`, by transforms of a length."""
        partial, owners, peaks = self._over_groups(length) if self.kernel_size == 1 else self._across_channels(length)
        steps = plan(length, self.arithmetic.compute_dtype)
        spectra, exponents = _scaled_sums(partial, owners, self.heads * self.kernel_size)
        del partial
        out = np.empty((min(self.lags, length), len(spectra)), self.arithmetic.compute_dtype)

        def worker() -> Callable[[int, int], None]:
            buffer, scratch = transform_buffers(self.arithmetic, length, 1)

            def work(first: int, last: int) -> None:
                correlation_kernels.inverse_transform(
                    (DTYPE_TAGS[out.dtype.name],), spectra, first, last, steps.constants, steps.steps, buffer, scratch,
                    out,
                )  # fmt: skip

            return work

        parallel_for(-(-len(spectra) // self.arithmetic.lanes), worker, threads=threads_for(len(spectra) * length))
        for number, exponent in enumerate(exponents):
            lags = c[number // self.kernel_size, number % self.kernel_size, : len(out)]
            lags += np.ldexp(out[:, number].astype(float) / length, exponent)
        return peaks

    def _chunks(self, owners: list[tuple[int, ...]]) -> tuple[Array, list[int]]:
        """Return the chunks, rows that kernels read, and the filter of each row that they write.

        A chunk is (first signal, last signal, first group, last group, first row of the result). `owners` has the
        filters of each group; neighbouring groups of the same filter are summed together.
        """
        chunks: list[tuple[int, ...]] = []
        rows: list[int] = []
        runs = [list(run) for _, run in itertools.groupby(range(len(owners)), key=owners.__getitem__)]
        count = len(self.signals)
        for run in runs:
            # A group of several filters writes a row for each of them: fewer chunks then, to bound memory.
            needed = max(-(-FEWEST // len(runs)), -(-CHUNKS // (len(runs) * len(owners[run[0]]))))
            parts = min(count, max(needed, count * len(run) // CHUNK))
            for first, last in _cuts(count, parts):
                for left, right in _cuts(len(run), -(-needed // parts)):
                    chunks.append((first, last, run[left], run[right - 1] + 1, len(rows)))
                    rows.extend(owners[run[0]])
        return np.asarray(chunks), rows

    def _over_groups(self, length: int) -> tuple[Array, list[int], Array]:
        """Sum spectra: return rows of partial sums, the filter of each row, and sums of products of peaks by head."""
        x, g, arithmetic = self.x, self.g, self.arithmetic
        packed = x.strides[-1] == x.itemsize and g.strides[-1] == g.itemsize
        groups = Groups.of(x.shape[-1], self.heads, arithmetic.lanes, packed=packed)
        chunks, owners = self._chunks([tuple(range(lane[0], lane[-1] + 1)) for lane in groups.heads.tolist()])
        out = np.zeros((len(owners), 2 * length), arithmetic.compute_dtype)
        peaks = np.zeros((len(chunks), arithmetic.lanes))
        signals, rows = self.signals.rows(x, g), groups.rows(x.strides[-1], g.strides[-1])
        steps = plan(length, arithmetic.compute_dtype)

        def worker() -> Callable[[int, int], None]:
            *memory, _ = transform_buffers(arithmetic, length, 3)
            scratch = aligned_empty((2 * arithmetic.lanes,), arithmetic.compute_dtype)

            def work(first: int, last: int) -> None:
                correlation_kernels.correlate(
                    self.dtype_tags, x.ctypes.data, x.strides[-2], x.strides[-1], g.ctypes.data, g.strides[-2],
                    g.strides[-1], signals, rows, groups.heads, chunks, first, last,
                    steps.constants, steps.steps, self.low, arithmetic.highest, *memory, scratch, peaks, out,
                )  # fmt: skip

            return work

        parallel_for(len(chunks), worker, threads=threads_for(len(self.signals) * x.shape[-1] * length))
        totals = np.zeros(self.heads)
        np.add.at(totals, groups.heads[chunks[:, 2]], peaks)
        return out, owners, totals

    def _across_channels(self, length: int) -> tuple[Array, list[int], Array]:
        """Do the same for filters that read neighbouring channels."""
        x, g, arithmetic, kernel_size = self.x, self.g, self.arithmetic, self.kernel_size
        channels = x.shape[-1] // self.heads
        chunks, owners = self._chunks([tuple(range(i * kernel_size, (i + 1) * kernel_size)) for i in range(self.heads)])
        out = np.zeros((len(owners), 2 * length), arithmetic.compute_dtype)
        peaks = np.zeros(len(chunks))
        signals = self.signals.rows(x, g)
        steps = plan(length, arithmetic.compute_dtype)

        def worker() -> Callable[[int, int], None]:
            x_buffer, g_buffer, scratch = transform_buffers(arithmetic, length, 2)
            window = window_buffer(arithmetic, length, kernel_size)
            totals = aligned_empty((kernel_size, 2 * arithmetic.lanes * length), arithmetic.compute_dtype)

            def work(first: int, last: int) -> None:
                channel_kernels.correlate_across_channels(
                    self.dtype_tags, x.ctypes.data, x.strides[-2], x.strides[-1], g.ctypes.data, g.strides[-2],
                    g.strides[-1], signals, self.heads, channels, kernel_size, chunks, first, last,
                    x.strides[-1] == x.itemsize, g.strides[-1] == g.itemsize, steps.constants, steps.steps,
                    self.low, arithmetic.highest, x_buffer, g_buffer, window, totals, scratch, peaks, out,
                )  # fmt: skip

            return work

        parallel_for(len(chunks), worker, threads=threads_for(len(self.signals) * x.shape[-1] * length))
        totals = np.zeros(self.heads)
        np.add.at(totals, chunks[:, 2], peaks)
        return out, owners, totals
