"""Tiles: what the last inputs of a stream contribute to as many outputs after them.

They are a middle product: entries k to 2k - 1 of x w, for k inputs x. Products here are modulo z^k - i: their imaginary
part is what would be wrapped around. With w = low + z^k high for 2k lags, the middle is Im(x low) + Re(x high) =
Re(x (high - i low)): one transform of length k each way and nothing padded, as for any product, with the spectrum of
`high - i low` in place of a filter's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core.backend import shift_channels

from . import channel_kernels, steps
from .memory import DTYPE_TAGS
from .operands import Arithmetic, Filters, Groups, Signals, aligned_empty
from .passes import TILE
from .plans import SHORTEST, plan
from .product import filter_spectra, transform_buffers, window_buffer
from .rescaling import NEVER, Scaled, finite_lags, halves_of, multiply_rescaled, normalized_filters
from .threads import parallel_for, thread_count

__all__ = ["Tiles", "marked_channels"]

Array = NDArray[Any]

LARGE = 1 << 19
"""Tiles of fewer entries are left to one thread: another one takes as long to wake up as it would spare.

Microseconds by one thread and by two, of 512 channels: 340 and 400 for 512 inputs, 770 and 670 for 1024, 4010 and 2900
for 4096.
"""

KEPT = 512
"""Memory for tiles of up to so many inputs is kept: to make it took as long as a tile."""


def marked_channels(marks: Array, w: Array) -> Iterator[tuple[int, int, Array]]:
    """Yield (row, head, channels) of what is marked in `(rows, d)`; of kernels, all channels of a head that has any."""
    heads, kernel_size, _ = w.shape
    marks = marks.reshape(len(marks), heads, -1)
    for row, head in np.argwhere(marks.any(axis=2)).tolist():
        its = marks[row, head] if kernel_size == 1 else np.ones_like(marks[row, head])
        yield row, head, np.flatnonzero(its) + head * marks.shape[2]


class Tiles:
    """Tiles of the filters `w`, `(h, m, k)`, for caches of `d` channels."""

    def __init__(self, w: Array, d: int, arithmetic: Arithmetic) -> None:
        """Scale the filters; spectra are made when they are first needed."""
        self.w, self.arithmetic = w, arithmetic
        self.filters = Filters.of(w, arithmetic)
        self._unsafe = bool(self.filters.unsafe.any())
        self._first_bad_lag, self._exponents = np.full(len(w), NEVER), np.zeros(len(w), np.int64)
        if self._unsafe:  # all tiles are scaled, and the filters once
            finite, self._first_bad_lag = finite_lags(w, w.dtype)
            normalized, self._exponents = normalized_filters(finite)
            self.filters = Filters.of(normalized, arithmetic)
        self.groups = Groups.of(d, len(w), arithmetic.lanes, packed=True)
        groups = self.groups
        self.pieces = np.ascontiguousarray(np.stack((groups.channels, groups.counts, groups.shared), axis=1))
        self.widths = np.diff(groups.channels, append=d) if w.shape[1] == 1 else np.full(len(w), d // len(w))
        self.dtype_tags = (DTYPE_TAGS[arithmetic.name],)
        self._spectra: dict[int, Array] = {}
        self._constants: dict[int, tuple[Any, ...]] = {}
        self._run: Callable[..., int] = self._first
        self._free: list[tuple[Array, Array, Array]] = []  # memory that no call is using: two streams may step at once

    def add(self, cache: Array, at: int, size: int) -> None:
        """Add to `cache[:, at : at + size]` what the inputs in `cache[:, at - size : at]` contribute."""
        if not cache.size:
            return
        inputs, begin = cache, at - size
        if size < SHORTEST:  # a shorter transform there is not: zeros come before
            inputs, begin = np.zeros((cache.shape[0], SHORTEST, cache.shape[2]), cache.dtype), 0
            inputs[:, SHORTEST - size :] = cache[:, at - size : at]
        count = min(size, cache.shape[1] - at)
        if self._unsafe:
            self._rescale(inputs[:, begin : begin + max(size, SHORTEST)], size, cache, at, count, None)
            return
        missed, undone = self._products(inputs, begin, cache, at, count, max(size, SHORTEST))
        if missed:
            channels = np.repeat(undone.reshape(len(cache), -1), self.widths, axis=1)
            self._rescale(inputs[:, begin : begin + max(size, SHORTEST)], size, cache, at, count, channels)

    def _products(self, inputs: Array, begin: int, cache: Array, at: int, count: int, size: int) -> tuple[int, Array]:
        """Add what is safe; return which rows and groups, or heads, are not, and how many."""
        add = self._over_groups if self.w.shape[1] == 1 else self._across_channels
        return add(inputs, begin, cache, at, count, size)

    def _over_groups(
        self, inputs: Array, begin: int, cache: Array, at: int, count: int, size: int
    ) -> tuple[int, Array]:
        """Do it by groups of channels."""
        filters = self._constants.get(size) or self._constants_of(size)
        jobs = cache.shape[0] * len(self.pieces)
        undone = np.empty(jobs, bool)
        arguments = self.dtype_tags, inputs, begin, cache, at, count, *filters
        entries = cache.shape[0] * cache.shape[2] * size
        if entries < LARGE and size <= KEPT:  # as most tiles are
            try:
                memory = self._free.pop()
            except IndexError:  # asked for in this way, since another thread may take the last one
                memory = self._memory(KEPT)
            missed = self._run(*arguments, *memory, undone, 0, jobs)
            self._free.append(memory)
            return missed, undone
        counts: list[int] = []

        def worker() -> Callable[[int, int], None]:
            memory = self._memory(size)
            return lambda first, last: counts.append(self._run(*arguments, *memory, undone, first, last))

        parallel_for(jobs, worker, threads=1 if entries < LARGE else thread_count())
        return sum(counts), undone

    def _constants_of(self, size: int) -> tuple[Any, ...]:
        """Return what the kernel is given for tiles of a size."""
        a = self.arithmetic
        passes = plan(size, a.compute_dtype)
        found = (
            self.pieces, self.groups.heads, self._spectra_of(size), self.filters.scales, passes.constants,
            passes.steps, a.lowest, a.highest,
        )  # fmt: skip
        self._constants[size] = found
        return found

    def _first(self, *arguments: Any) -> int:
        """Run for the first time; see `streaming._Layout`."""
        missed: int = steps.add_tile(*arguments)
        self._run = steps.add_tile.entry(*arguments)
        return missed

    def _memory(self, size: int) -> tuple[Array, Array, Array]:
        """Return what one thread needs beside the cache."""
        a = self.arithmetic
        buffer, scratch = transform_buffers(a, size, 1)
        return buffer, aligned_empty((TILE, 2 * a.lanes), a.compute_dtype), scratch

    def _across_channels(
        self, inputs: Array, begin: int, cache: Array, at: int, count: int, size: int
    ) -> tuple[int, Array]:
        """Do the same for filters that read neighbouring channels, by a product beside the cache."""
        a, spectra = self.arithmetic, self._spectra_of(size)
        passes = plan(size, a.compute_dtype)
        heads, kernel_size, _ = self.w.shape
        inputs, outputs, d = inputs[:, begin : begin + size], cache[:, at : at + count], cache.shape[2]
        products = np.empty((len(inputs), size, d), a.compute_dtype)
        undone = np.zeros(len(inputs) * heads, bool)
        signals = Signals.of(len(inputs), size, None).rows(inputs, products)

        def worker() -> Callable[[int, int], None]:
            buffer, scratch = transform_buffers(a, size, 1)
            window = window_buffer(a, size, kernel_size)

            def work(first: int, last: int) -> None:
                channel_kernels.product_across_channels(
                    self.dtype_tags * 2, inputs.ctypes.data, inputs.strides[1], inputs.itemsize, products.ctypes.data,
                    products.strides[1], products.itemsize, signals, heads, d // heads, first, last, spectra,
                    kernel_size, self.filters.scales, False, True, passes.constants, passes.steps, a.lowest, a.highest,
                    buffer, window, scratch, undone,
                )  # fmt: skip

            return work

        if len(undone):
            parallel_for(len(undone), worker, threads=1 if inputs.size < LARGE else thread_count())
        left_out = np.repeat(undone.reshape(-1, heads), d // heads, axis=1)
        outputs += np.where(left_out[:, None], 0, products[:, :count])
        return int(undone.sum()), undone

    def _spectra_of(self, size: int) -> Array:
        """Return the spectra of the first lags for tiles of a size, `(h * m, 2 size)`."""
        found = self._spectra.get(size)
        if found is None:
            halves = [self.filters.normalized[:, :size], self.filters.normalized[:, size : 2 * size]]
            low, *rest = [
                filter_spectra(replace(self.filters, normalized=np.ascontiguousarray(half), spectra={}), size, 1)
                for half in halves
                if half.shape[1]
            ]
            found = np.empty_like(low)
            found[:, ::2], found[:, 1::2] = low[:, 1::2], -low[:, ::2]  # -i low
            for high in rest:
                found += high
            self._spectra[size] = found
        return found

    def _rescale(self, x: Array, size: int, cache: Array, at: int, count: int, channels: Array | None) -> None:
        """Add the tile of inputs, the last of x `(rows, n, d)`, for channels `(rows, d)`, or all, by scaling.

        Channels of a head that are too far apart, or rows of its kernel, are computed as a product.
        """
        (rows, n, d), heads = x.shape, len(self.w)
        signals = Signals.of(rows, n, None)
        scaled = Scaled(np.ascontiguousarray(x), signals, self.arithmetic)
        if self.w.shape[1] > 1 and (self.filters.unsafe.any() or not scaled.near(heads)):
            padded = np.concatenate([x[:, n - size :], np.zeros((rows, count, d), x.dtype)], axis=1)
            products, signals = np.empty_like(padded), Signals.of(rows, size + count, None)
            multiply_rescaled(products, self.w[..., : 2 * size], padded, signals, self.arithmetic, adjoint=False)
            products = products[:, size:]
        else:
            exponents = scaled.exponents if self.w.shape[1] == 1 else scaled.shared(heads)
            products = np.zeros((rows, count, d), x.dtype)
            self._products(scaled.divided(exponents)[0], 0, products, 0, count, n)
            halves = halves_of(exponents + np.repeat(self._exponents, d // heads), x.dtype)
            with np.errstate(over="ignore"):
                products = products * halves[0, :, None] * halves[1, :, None]
            products[self._reached(x, size, count)] = np.nan
        with np.errstate(over="ignore", invalid="ignore"):
            cache[:, at : at + count] += products if channels is None else np.where(channels[:, None], products, 0)

    def _reached(self, x: Array, size: int, count: int) -> Array:
        """Return which outputs `(rows, count, d)` are NaN by inputs or lags that are not finite."""
        (rows, _, d), (heads, kernel_size, lags) = x.shape, self.w.shape
        times = np.arange(count)[:, None]
        reached: Array = np.broadcast_to(times >= np.repeat(self._first_bad_lag - size, d // heads), (rows, count, d))
        bad = ~np.isfinite(x)
        if not bad.any():
            return reached
        near = functools.reduce(np.logical_or, (shift_channels(bad, offset, heads) for offset in range(kernel_size)))
        after = np.where(near.any(axis=1), np.argmax(near[:, ::-1], axis=1) + 1, lags)  # from the last one on
        reached = reached | (times < (lags - after)[:, None])
        return reached
