"""Products and correlations of numbers that are out of the range of transforms, or not finite.

Each channel of a signal is multiplied by the power of two that brings its largest magnitude near one, computed as any
other, and the result multiplied by its inverse: exact, but where it leaves the range of the dtype. Entries that are not
finite count as zeros; what they reach is made NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core.backend import error_factor, shift_channels

from . import rescaling_kernels
from .correlation import correlate
from .memory import DTYPE_TAGS
from .operands import Arithmetic, Filters, Signals
from .product import multiply, threads_for
from .series import Pieces, is_series, multiply_series
from .threads import parallel_for

__all__ = [
    "NEVER",
    "RescaledCorrelation",
    "Scaled",
    "finite_lags",
    "halves_of",
    "multiply_pieces_rescaled",
    "multiply_rescaled",
    "normalized_filters",
]

Array = NDArray[Any]
Ints = NDArray[np.int64]

NOTHING = -(1 << 20)
"""The exponent of zero."""
AT_ONCE = 1 << 20
"""Entries of pieces that are scaled at once."""
NEVER = 1 << 60
"""The first time that is reached by none."""


def over_signals(kernel: Callable[..., None], array: Array, signals: Ints, *arguments: Any) -> None:
    """Run a kernel of this module over all signals, in threads."""
    tags = (DTYPE_TAGS[array.dtype.name],)

    def work(first: int, last: int) -> None:
        kernel(tags, array, signals, first, last, *arguments)

    parallel_for(len(signals), lambda: work, threads=threads_for(array.size))


def restore(y: Array, signals: Ints, halves: Array, noise: Array) -> None:
    """Multiply by factors, in place."""
    over_signals(rescaling_kernels.restore, y, signals, y.view(f"i{y.itemsize}"), halves, noise)


def exponents_of(peaks: Array) -> Ints:
    """Return e such that peaks are from a half to one times 2^e, NOTHING for zeros."""
    return np.where(peaks > 0, np.frexp(peaks)[1], NOTHING)


def halves_of(exponents: Ints, dtype: np.dtype[Any]) -> Array:
    """Return two factors `(2, ...)` whose product is a power of two, but where that is far out of any range."""
    bound = int(np.finfo(dtype).maxexp) - 2
    exponents = np.clip(exponents, -2 * bound, 2 * bound)
    halves: Array = np.ldexp(dtype.type(1), np.stack((exponents // 2, exponents - exponents // 2)))
    return halves


def finite_lags(w: Array, dtype: np.dtype[Any]) -> tuple[Array, Ints]:
    """Return filters `(h, m, k)` with zeros for what is not finite, and the first such lag of each head, or NEVER."""
    finite = np.isfinite(w)
    whole = np.min(finite, axis=1)  # over the rows of a kernel
    return np.where(finite, w, 0).astype(dtype), np.where(np.min(whole, axis=1), NEVER, np.argmin(whole, axis=1))


class Scaled:
    """Signals `(rows, n, d)` in the dtype of computation, and what is known of their magnitudes."""

    def __init__(self, x: Array, signals: Signals, arithmetic: Arithmetic) -> None:
        """Measure some signals of x, in C order."""
        self.x, self.arithmetic = x, arithmetic
        self.rows = np.stack((signals.row, signals.start, signals.length), axis=1)
        shape = len(signals), x.shape[2]
        self.peaks, self.bad = np.empty(shape, x.dtype), np.empty(shape, np.int32)
        over_signals(rescaling_kernels.measure, x, self.rows, self.peaks, self.bad)
        self.exponents = exponents_of(self.peaks)

    @property
    def finite(self) -> bool:
        """Whether all entries are."""
        return not np.any(self.bad)

    def near(self, heads: int) -> bool:
        """Return whether channels of a head are so near that one factor brings all into the range."""
        own = self.exponents.reshape(len(self.rows), heads, -1)
        return bool(np.all((own == NOTHING) | (own >= own.max(axis=2, keepdims=True) - self.arithmetic.spread)))

    def shared(self, heads: int) -> Ints:
        """Return the exponents of one factor for the channels of each head, by which the largest is brought far up."""
        most = self.exponents.reshape(len(self.rows), heads, -1).max(axis=2)
        return np.repeat(
            np.where(most > NOTHING, most - self.arithmetic.top, NOTHING), self.x.shape[2] // heads, axis=1
        )

    def divided(self, exponents: Ints) -> tuple[Array, Array]:
        """Return the signals divided by powers of two, or zeros for NOTHING, and the squares of their norms.

        What is not finite is zero, too.
        """
        out, squares = np.empty_like(self.x), np.empty(self.exponents.shape, self.x.dtype)
        halves = np.where(exponents > NOTHING, halves_of(-exponents, self.x.dtype), 0)
        bits = self.x.view(f"i{self.x.itemsize}")
        over_signals(rescaling_kernels.normalize, self.x, self.rows, bits, self.bad, self.peaks, halves, out, squares)
        return out, squares


def multiply_rescaled(y: Array, w: Array, x: Array, signals: Signals, arithmetic: Arithmetic, adjoint: bool) -> None:
    """Write to y, of any dtype, the products of some signals of `x`, both `(..., n, d)`."""
    rows, place = np.unique(signals.row, return_inverse=True)
    x, results = (a.reshape(-1, *a.shape[-2:]) for a in (x, y))
    some = slice(None) if len(rows) == len(x) else rows
    inputs, outputs = (np.ascontiguousarray(a[some], arithmetic.compute_dtype) for a in (x, results))
    signals = Signals(place, signals.start, signals.length)
    _multiply(outputs, w, Scaled(inputs, signals, arithmetic), signals, adjoint)
    if not np.may_share_memory(outputs, results):
        with np.errstate(over="ignore"):  # what a half cannot hold is infinite
            results[some] = outputs


def multiply_pieces_rescaled(
    y: Array, w: Array, x: Array, pieces: Pieces, arithmetic: Arithmetic, adjoint: bool
) -> None:
    """Write to y, of any dtype, the products of some pieces of `x`, both `(..., n, d)`, each scaled for itself."""
    x, y = (a.reshape(-1, *a.shape[-2:]) for a in (x, y))
    longest = int(pieces.inputs.length.max())
    at_once = max(1, AT_ONCE // (longest * x.shape[2]))
    for some in (pieces[first : first + at_once] for first in range(0, len(pieces), at_once)):
        inputs = np.zeros((len(some), longest, x.shape[2]), arithmetic.compute_dtype)
        outputs, signals = np.empty_like(inputs), some.inputs
        for i, (row, start, n) in enumerate(zip(signals.row, signals.start, signals.length, strict=True)):
            inputs[i, :n] = x[row, start : start + n]
        of_pieces = Signals(np.arange(len(some)), np.zeros(len(some), np.int64), signals.length)
        multiply_rescaled(outputs, w, inputs, of_pieces, arithmetic, adjoint)
        kept = zip(signals.row, signals.start, some.skipped, some.outputs, strict=True)
        with np.errstate(over="ignore"):  # what a half cannot hold is infinite
            for i, (row, start, skipped, n) in enumerate(kept):
                y[row, start + skipped : start + skipped + n] = outputs[i, skipped : skipped + n]


def _multiply(y: Array, w: Array, x: Scaled, signals: Signals, adjoint: bool) -> None:
    """Write the products to `y`, like `x.x`."""
    heads, kernel_size, lags = w.shape
    width = y.shape[2] // heads
    w, reached = finite_lags(w, y.dtype)
    offsets = [(i + 1 - kernel_size) if adjoint else (kernel_size - 1 - i) for i in range(kernel_size)]
    together = kernel_size == 1 or (x.near(heads) and not np.any(Filters.of(w, x.arithmetic).faint))
    exponents = x.shared(heads) if together and kernel_size > 1 else x.exponents
    values, squares = x.divided(exponents)
    results: list[Array] = []
    scales, noises = [], []
    # Where rows of a kernel, or channels of a head, are too far apart, each row is a filter of its own.
    for rows in [slice(None)] if together else [slice(i, i + 1) for i in range(kernel_size)]:
        shift = functools.partial(shift_channels, by=0 if together else offsets[rows.start], heads=heads)
        filters, exponent = normalized_filters(w[:, rows])
        result = np.empty_like(y) if results else y
        scaled = Filters.of(filters, x.arithmetic)
        if is_series(x.x, kernel_size, lags, x.arithmetic):  # parts of a signal may be far fainter than all of it
            pieces = Pieces.of(signals, lags, x.x.shape[2], adjoint=adjoint)
            multiply_series(result, scaled, values, pieces, adjoint, low=0)
        else:
            multiply(result, scaled, shift(values), signals, adjoint)
        near = sum(shift_channels(squares, offset, heads) for offset in offsets[rows])
        norms = np.sqrt(near * np.repeat(np.sum(filters**2, axis=(1, 2)), width))
        results.append(result)
        scales.append(shift(exponents - NOTHING) + NOTHING + np.repeat(exponent, width))
        noises.append(error_factor(y.shape[1], y.dtype.name) * norms)
    scale, noise = scales[0], noises[0]
    if not together:
        scale, noise = np.max(scales, axis=0), np.zeros_like(noise)
        for result, own, errors in zip(results, scales, noises, strict=True):
            halves = halves_of(own - scale, y.dtype)
            if np.any(own != scale):
                restore(result, x.rows, halves, np.zeros_like(errors))
            if result is not y:
                y += result
            noise += errors * halves[0] * halves[1]
    restore(y, x.rows, halves_of(scale, y.dtype), noise)
    if not x.finite or np.any(reached < NEVER):
        over_signals(
            rescaling_kernels.mark_nan, x.x, x.rows, heads, kernel_size, lags, adjoint,
            reached, x.bad, y,
        )  # fmt: skip


def normalized_filters(filters: Array) -> tuple[Array, Ints]:
    """Return filters `(h, m, k)` divided by a power of two for each head, and its exponent."""
    exponents = exponents_of(np.abs(filters).max(axis=(1, 2)))
    return np.ldexp(filters, np.where(exponents > NOTHING, -exponents, 0)[:, None, None]), exponents


class RescaledCorrelation:
    """The correlation of some signals, and then others, each scaled: a sum of numbers of any size.

    Only what is far below the largest pair of channels of a head and row of the kernel is left out.
    """

    def __init__(self, heads: int, kernel_size: int, lags: int, arithmetic: Arithmetic) -> None:
        """Begin with zero."""
        self.arithmetic, self.finite = arithmetic, True
        self.sums = np.zeros((heads, kernel_size, lags))
        self.noise = np.zeros((heads, kernel_size, 1))
        self.exponents = np.full((heads, kernel_size, 1), NOTHING)

    def add(self, head: slice, x: Array, g: Array, signals: Signals) -> None:
        """Add the correlation of signals of some heads, both `(..., n, d)`."""
        heads, kernel_size, _ = self.sums[head].shape
        x, g = (np.ascontiguousarray(a, self.arithmetic.compute_dtype).reshape(-1, *a.shape[-2:]) for a in (x, g))
        scaled_x, scaled_g = (Scaled(a, signals, self.arithmetic) for a in (x, g))
        self.finite = self.finite and scaled_x.finite and scaled_g.finite
        values_x, squares_x = scaled_x.divided(scaled_x.exponents)
        for i, offset in enumerate(
            reversed(range(kernel_size))
        ):  # a row of a kernel is a filter of its own: its pairs may be far fainter
            shift = functools.partial(shift_channels, by=offset, heads=heads)
            sizes = shift(scaled_x.exponents - NOTHING) + NOTHING
            pairs = np.where((sizes > NOTHING) & (scaled_g.exponents > NOTHING), sizes + scaled_g.exponents, NOTHING)
            largest = pairs.reshape(len(signals), heads, -1).max(axis=(0, 2))
            most = np.repeat(largest, x.shape[2] // heads)
            kept = (pairs > NOTHING) & (pairs > most + math.frexp(self.arithmetic.lowest)[1])
            values_g, squares_g = scaled_g.divided(np.where(kept, most - sizes, NOTHING))
            sums = np.zeros((heads, 1, self.sums.shape[2]))
            correlate(sums, self.arithmetic, shift(values_x), values_g, signals, low=0)
            norms = np.sqrt(shift(squares_x) * squares_g).reshape(len(signals), heads, -1).sum(axis=(0, 2))
            noise = error_factor(x.shape[1], x.dtype.name) * norms[:, None, None]
            self._sum((head, slice(i, i + 1)), sums, noise, largest[:, None, None])

    def _sum(self, at: tuple[slice, slice], sums: Array, noise: Array, exponents: Ints) -> None:
        """Add what is times a power of two to what is times another."""
        most = np.maximum(exponents, self.exponents[at])
        for total, term in ((self.sums, sums), (self.noise, noise)):
            total[at] = np.ldexp(total[at], self.exponents[at] - most) + np.ldexp(term, exponents - most)
        self.exponents[at] = most

    def total(self) -> Array:
        """Return the sum, `(h, m, k)` in float64; errors let nothing overflow that else would not."""
        largest = np.finfo(self.arithmetic.compute_dtype).max
        with np.errstate(over="ignore"):
            sums: Array = np.ldexp(self.sums, self.exponents)
            least = np.ldexp(np.maximum(np.abs(self.sums) - self.noise, 0), self.exponents)
        overflows = (np.abs(sums) > largest) & (least <= largest)
        sums[overflows] = np.copysign(largest, sums[overflows])
        return sums
