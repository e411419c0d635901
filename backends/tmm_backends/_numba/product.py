"""The product as calls of kernels: their arguments, threads and memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import channel_kernels, product_kernels
from .blocks import sums_directly
from .memory import DTYPE_TAGS
from .operands import Arithmetic, Filters, Groups, Signals, aligned_empty
from .passes import TILE
from .plans import fast_length, plan
from .threads import parallel_for, thread_count

__all__ = [
    "SignalProduct",
    "filter_spectra",
    "methods",
    "multiply",
    "threads_for",
    "transform_buffers",
    "window_buffer",
]

Array = NDArray[Any]
Ints = NDArray[np.int64]

SMALL = 1 << 15
"""A call with fewer entries is computed by one thread: another one takes about 50 us to wake up."""


def threads_for(entries: int) -> int:
    """Return the number of threads for a call with so many entries."""
    return 1 if entries < SMALL else thread_count()


def transform_buffers(arithmetic: Arithmetic, length: int, count: int) -> tuple[Array, ...]:
    """Return the memory of a thread: `count` buffers for transforms of a length, and a register of scratch."""
    return (
        *(aligned_empty((2 * arithmetic.lanes * length,), arithmetic.compute_dtype) for _ in range(count)),
        aligned_empty((arithmetic.lanes,), arithmetic.compute_dtype),
    )


def filter_spectra(filters: Filters, length: int, sign: int) -> Array:
    """Return the spectra of all filters, `(h * m, 2 * length)`, divided by the length; conjugated for a sign of -1."""
    found = filters.spectra.get((length, sign))
    if found is None:
        found = filters.spectra[length, sign] = _filter_spectra(filters, length, sign)
    return found


def _filter_spectra(filters: Filters, length: int, sign: int) -> Array:
    arithmetic = filters.arithmetic
    dtype = arithmetic.compute_dtype
    tags = (DTYPE_TAGS[dtype.name],)
    steps, out = plan(length, dtype), np.empty((len(filters.normalized), 2 * length), dtype)
    lags = min(filters.lags, length)

    def worker() -> Callable[[int, int], None]:
        buffer, _ = transform_buffers(arithmetic, length, 1)

        def work(first: int, last: int) -> None:
            product_kernels.spectra(
                tags, filters.normalized.ctypes.data, filters.lags, lags, len(out), first, last, sign, steps.constants,
                steps.steps, buffer, out,
            )  # fmt: skip

        return work

    parallel_for(-(-len(out) // arithmetic.lanes), worker, threads=threads_for(len(out) * length))
    return out


def multiply(y: Array, filters: Filters, x: Array, signals: Signals, adjoint: bool) -> Array:
    """Write products to `y`, both `(..., n, d)`; return a mask of the signals that are out of range."""
    undone, lags = np.zeros(len(signals), bool), filters.lags if filters.kernel_size == 1 else None
    for direct, size, which in methods(signals.length, lags):
        call = SignalProduct(x, y, signals[which], filters, adjoint)
        method = call.by_direct_sums if direct else call.by_transforms if lags else call.across_channels
        undone[which] = method(size).any(axis=1)
    return undone


def methods(lengths: Ints, lags: int | None) -> Iterator[tuple[bool, int, Any]]:
    """Yield which signals are done together: directly up to a length, or by transforms of a length.

    `lags` are those of filters that may be summed directly, else None.
    """
    together: dict[int, list[int]] = {}
    for n in set(lengths.tolist()):
        direct = lags is not None and sums_directly(n, lags)
        together.setdefault(0 if direct else fast_length(n), []).append(n)
    for length, members in sorted(together.items()):
        which = slice(None) if len(together) == 1 else np.flatnonzero(np.isin(lengths, members))
        yield length == 0, length or max(members), which


@dataclass(frozen=True)
class SignalProduct:
    """The product, or the adjoint product, of some signals `x`, written to `y`, both `(..., n, d)`.

    Each method is one algorithm, and returns a mask `(signals, h)` of what it left undone, since it was out of range.
    """

    x: Array
    y: Array
    signals: Signals
    filters: Filters
    adjoint: bool

    @property
    def arithmetic(self) -> Arithmetic:
        """How they are computed."""
        return self.filters.arithmetic

    @property
    def dtype_tags(self) -> tuple[Any, Any]:
        """The first argument of a kernel: the dtypes of the arrays."""
        return DTYPE_TAGS[self.x.dtype.name], DTYPE_TAGS[self.y.dtype.name]

    @functools.cached_property
    def groups(self) -> Groups:
        """The groups of channels."""
        packed = self.x.strides[-1] == self.x.itemsize
        return Groups.of(self.x.shape[-1], self.filters.heads, self.arithmetic.lanes, packed=packed)

    def _over_groups(
        self, run: Callable[..., None], memory: Callable[[], tuple[Array, ...]], length: int, by_group: bool
    ) -> Array:
        """Run a kernel over all signals and groups in threads, in the order of groups or of signals."""
        groups = self.groups
        jobs = len(self.signals) * len(groups.channels)
        unsafe = np.zeros(jobs, bool)
        arguments = (
            self.dtype_tags, self.x.ctypes.data, self.x.strides[-2], self.x.strides[-1], self.y.ctypes.data,
            self.y.strides[-2], self.signals.rows(self.x, self.y), groups.rows(self.x.strides[-1], self.y.itemsize),
            groups.heads, by_group,
        )  # fmt: skip

        def worker() -> Callable[[int, int], None]:
            buffers = memory()

            def work(first: int, last: int) -> None:
                run(*arguments, first, last, *buffers, unsafe)

            return work

        parallel_for(jobs, worker, threads=threads_for(jobs * self.arithmetic.lanes * length))
        undone = np.zeros((len(self.signals), self.filters.heads), bool)
        for job in np.flatnonzero(unsafe):
            count = len(self.signals) if by_group else len(groups.channels)
            signal, group = (job % count, job // count) if by_group else (job // count, job % count)
            undone[signal, groups.heads[group]] = True
        return undone

    def by_transforms(self, length: int) -> Array:
        """Multiply by transforms of a length."""
        steps = plan(length, self.arithmetic.compute_dtype)
        spectra = filter_spectra(self.filters, length, -1 if self.adjoint else 1)

        def memory() -> tuple[Array, ...]:
            buffer, scratch = transform_buffers(self.arithmetic, length, 1)
            return buffer, aligned_empty((TILE, 2 * self.arithmetic.lanes), self.arithmetic.compute_dtype), scratch

        def run(*arguments: Any) -> None:
            *most, buffer, tile, scratch, unsafe = arguments
            product_kernels.product(
                *most, spectra, self.filters.scales, steps.constants, steps.steps,
                self.arithmetic.lowest, self.arithmetic.highest, buffer, tile, scratch, unsafe,
            )  # fmt: skip

        return self._over_groups(run, memory, length, by_group=False)

    def by_direct_sums(self, length: int) -> Array:
        """Multiply by direct sums; no signal is longer than `length`."""
        lags = min(self.filters.lags, length)
        rows = product_kernels.BEFORE + lags + product_kernels.AFTER
        padded = np.zeros((self.filters.heads, rows), self.arithmetic.compute_dtype)
        padded[:, product_kernels.BEFORE : product_kernels.BEFORE + lags] = self.filters.normalized[:, :lags]

        def memory() -> tuple[Array, ...]:
            lanes, dtype = self.arithmetic.lanes, self.arithmetic.compute_dtype
            buffer = aligned_empty(((length + product_kernels.OUTPUTS) * lanes,), dtype)
            lane_lags = aligned_empty((rows if self.groups.mixed else 0, lanes), dtype)
            return buffer, lane_lags, aligned_empty((lanes,), dtype)

        def run(*arguments: Any) -> None:
            *most, buffer, lane_lags, scratch, unsafe = arguments
            product_kernels.product_directly(
                *most, padded, lags, self.filters.scales, self.adjoint, self.arithmetic.lowest, self.arithmetic.highest,
                buffer, lane_lags, scratch, unsafe,
            )  # fmt: skip

        return self._over_groups(run, memory, length, by_group=self.groups.mixed)

    def across_channels(self, length: int) -> Array:
        """Multiply by filters that read neighbouring channels (kernel size > 1), by transforms of a length."""
        steps = plan(length, self.arithmetic.compute_dtype)
        spectra = filter_spectra(self.filters, length, -1 if self.adjoint else 1)
        heads = self.filters.heads
        channels = self.x.shape[-1] // heads
        unsafe = np.zeros((len(self.signals), heads), bool)
        signals, packed = self.signals.rows(self.x, self.y), self.x.strides[-1] == self.x.itemsize

        def worker() -> Callable[[int, int], None]:
            buffer, scratch = transform_buffers(self.arithmetic, length, 1)
            window = window_buffer(self.arithmetic, length, self.filters.kernel_size)

            def work(first: int, last: int) -> None:
                channel_kernels.product_across_channels(
                    self.dtype_tags, self.x.ctypes.data, self.x.strides[-2], self.x.strides[-1], self.y.ctypes.data,
                    self.y.strides[-2], self.y.itemsize, signals, heads, channels, first, last,
                    spectra, self.filters.kernel_size, self.filters.scales, self.adjoint, packed, steps.constants,
                    steps.steps, self.arithmetic.lowest, self.arithmetic.highest, buffer, window, scratch,
                    unsafe.reshape(-1),
                )  # fmt: skip

            return work

        parallel_for(unsafe.size, worker, threads=threads_for(unsafe.size * channels * length))
        return unsafe


def window_buffer(arithmetic: Arithmetic, length: int, kernel_size: int) -> Array:
    """Return memory for the spectra of a register of channels and of the neighbours that a filter reads."""
    registers = 1 + -(-(kernel_size - 1) // arithmetic.lanes)
    return aligned_empty((length, 2, registers * arithmetic.lanes), arithmetic.compute_dtype)
