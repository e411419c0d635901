"""The engine for CPUs: products of NumPy arrays in compiled kernels, as many channels at a time as a register holds."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from tmm_core.backend import (
    Method,
    Request,
    StreamLayer,
    definition_correlate,
    definition_matmul,
    result_dtype,
    result_dtype_name,
    share,
)

from .blocks import Blocks, sums_directly
from .correlation import SignalCorrelation
from .operands import ARITHMETIC, Arithmetic, Filters, Signals, aligned_empty
from .plans import fast_length
from .product import SignalProduct
from .streaming import NumbaStream
from .target import CONVERTS_HALVES
from .threads import thread_count

__all__ = ["NumbaEngine"]

Array = NDArray[Any]

log = logging.getLogger("tmm_core")


class NumbaEngine:
    """Products of NumPy arrays of real floating dtypes, with any strides.

    Signals and filters whose numbers might leave the range of transforms, or are not finite, are computed by the
    definition, in NumPy; so is what is asked for with `method="direct"`.
    """

    name = "numba"
    devices = ("cpu",)

    def owns(self, array: Any) -> bool:
        """Return whether `array` is a NumPy array in this machine's byte order."""
        return isinstance(array, np.ndarray) and array.dtype.isnative

    def receive(self, array: Any) -> Array:
        """Return `array` as a NumPy array, on the same memory where that is possible."""
        shared: Array = share(array, np)
        return shared

    def unsupported(self, request: Request) -> str | None:
        """Return why a device or a dtype is not served."""
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
            return "Numba is told not to compile: unset the environment variable NUMBA_DISABLE_JIT"
        if request.device == "traced":
            return "the arrays are being traced and have no values that Numba could compute on"
        if request.device != "cpu":
            return f"Numba's engine computes on the CPU, and the arrays are on {request.device!r}"
        if request.dtype == "float16" and not CONVERTS_HALVES:
            return "this processor has no instructions for float16"
        if request.dtype.startswith("complex"):
            return f"Numba's engine computes with real numbers, and the result would be {request.dtype}"
        return None

    def matmul(self, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
        """Return the product; see `tmm_core.causal_toeplitz_matmul`."""
        if method == "direct":
            log.debug("direct sums of %s, which were asked for, are computed by NumPy, not by Numba", x.shape)
            y: Array = definition_matmul(w, x, adjoint=adjoint, method="direct", segment_ids=segment_ids)
            return y
        y = aligned_empty(x.shape, result_dtype(w, x))
        self.matmul_into(y, w, x, adjoint=adjoint, segment_ids=segment_ids)
        return y

    def matmul_into(self, y: Array, w: Array, x: Array, /, *, adjoint: bool, segment_ids: Array | None) -> None:
        """Write the product into `y`, of its shape and dtype, in C order."""
        arithmetic = ARITHMETIC[result_dtype_name(w, x)]
        x = _in(arithmetic, x)
        if x.size == 0:
            return
        w = w[..., : x.shape[-2]]
        blocks = _blocks(x, segment_ids, w.shape[1], w.shape[2], arithmetic, sums=w.shape[1] == 1)
        if blocks is None:
            _multiply(y, w, Filters.of(w, arithmetic), x, _signals(x, segment_ids), adjoint)
            return
        width = x.shape[-1] // len(w)
        filters_of = functools.cache(lambda first, last: Filters.of(w[first:last], arithmetic))

        def product(channel: int | None, x: Array, y: Array) -> None:
            heads = (0, len(w)) if channel is None else (channel // width, channel // width + 1)
            _multiply(y, w[slice(*heads)], filters_of(*heads), x, _signals(x, None), adjoint)

        blocks.multiply(product, x, y, adjoint)

    def correlate(
        self,
        x: Array,
        g: Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Array | None,
    ) -> Array:
        """Return the correlation; see `tmm_core.causal_toeplitz_correlate`."""

        def define(x: Array, g: Array, heads: int) -> Array:
            c: Array = definition_correlate(
                x, g, lags=lags, heads=heads, kernel_size=kernel_size, method=method, segment_ids=segment_ids
            )
            return c

        if method == "direct":
            log.debug("direct sums of %s, which were asked for, are computed by NumPy, not by Numba", x.shape)
            return define(x, g, heads)
        dtype, arithmetic = result_dtype(x, g), ARITHMETIC[result_dtype_name(x, g)]
        x, g = _in(arithmetic, x), _in(arithmetic, g)
        c = np.zeros((heads, kernel_size, lags))
        if x.size == 0:
            return c.astype(dtype)
        used, width = min(lags, x.shape[-2]), x.shape[-1] // heads
        peaks = np.zeros(heads)

        def add(its: slice, x: Array, g: Array, signals: Signals) -> None:
            """Add to the correlations of some heads."""
            for _, size, which in _methods(signals.length, None):
                call = SignalCorrelation(arithmetic, x, g, signals[which], len(c[its]), kernel_size, used)
                peaks[its] += call.add_to(c[its], size)

        blocks = _blocks(x, segment_ids, kernel_size, used, arithmetic, sums=False)
        if blocks is None:
            add(slice(None), x, g, _signals(x, segment_ids))
        else:
            for channel, x_part, g_part in blocks.pairs(x, g):
                its = slice(None) if channel is None else slice(channel // width, channel // width + 1)
                add(its, x_part, g_part, _signals(x_part, None))
        with np.errstate(over="ignore"):  # what a half cannot hold is infinite, as in products
            c = c.astype(dtype)
        undone = np.flatnonzero((peaks != 0) & ~(peaks >= arithmetic.lowest))  # NaN, too
        if undone.size:
            log.debug(
                "%d of %d heads have numbers not finite, or out of the range of transforms: NumPy computes their "
                "correlations, not Numba",
                undone.size,
                heads,
            )
        for head in undone:
            its = slice(head * width, (head + 1) * width)
            c[head] = define(x[..., its], g[..., its], 1)[0]
        return c

    def stream(self, layer: StreamLayer) -> NumbaStream:
        """Return the streams of a layer."""
        return NumbaStream(layer)


def _in(arithmetic: Arithmetic, a: Array) -> Array:
    """Return an array in a dtype that kernels read: one that is computed in the dtype that the result is."""
    if a.dtype.name == "float16" and not CONVERTS_HALVES:
        a = a.astype(np.float32)
    return a if ARITHMETIC[a.dtype.name].compute_dtype == arithmetic.compute_dtype else a.astype(arithmetic.name)


def _multiply(y: Array, w: Array, filters: Filters, x: Array, signals: Signals, adjoint: bool) -> None:
    """Write the product to `y`; `filters` are those of `w`."""
    undone = np.zeros((len(signals), filters.heads), bool)
    if not filters.unsafe.all():
        for direct, size, which in _methods(signals.length, filters.lags if filters.kernel_size == 1 else None):
            call = SignalProduct(x, y, signals[which], filters, adjoint)
            across = filters.kernel_size > 1
            method = call.by_direct_sums if direct else call.across_channels if across else call.by_transforms
            undone[which] = method(size)
    undone |= filters.unsafe
    if undone.any():
        log.debug(
            "%d of %d filters of signals have numbers not finite, or out of the range of transforms: NumPy, not "
            "Numba, computes these",
            undone.sum(),
            undone.size,
        )
        _define_products(w, x, y, signals, undone, adjoint)


def _signals(x: Array, segment_ids: Array | None) -> Signals:
    """Return the documents of `x`, `(..., n, d)`, or its rows."""
    rows, n = math.prod(x.shape[:-2]), x.shape[-2]
    if segment_ids is not None:
        segment_ids = np.broadcast_to(segment_ids, x.shape[:-1]).reshape(rows, n)
    return Signals.of(rows, n, segment_ids)


def _blocks(
    x: Array, segment_ids: Array | None, kernel_size: int, lags: int, arithmetic: Arithmetic, *, sums: bool
) -> Blocks | None:
    """Return how to cut long signals, or None: documents are computed whole."""
    if segment_ids is not None:
        return None
    shape = math.prod(x.shape[:-2]), *x.shape[-2:]
    found: Blocks | None = Blocks.of(shape, kernel_size, lags, arithmetic.lanes, thread_count(), sums=sums)
    return found


def _methods(lengths: NDArray[np.int64], lags: int | None) -> Iterator[tuple[bool, int, Any]]:
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


def _define_products(w: Array, x: Array, y: Array, signals: Signals, undone: NDArray[np.bool_], adjoint: bool) -> None:
    """Compute the heads marked in `undone`, `(signals, h)`, by the definition; signals that lack the same, together."""
    heads, n = w.shape[0], x.shape[-2]
    rows, results = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, *y.shape[-2:])
    whole = bool(np.all(signals.length == n))
    patterns, which = np.unique(undone, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if not pattern.any():
            continue
        channels = np.repeat(pattern, x.shape[-1] // heads)
        for members in [np.flatnonzero(which == number)] if whole else np.flatnonzero(which == number)[:, None]:
            start = signals.start[members[0]]
            at = np.ix_(signals.row[members], np.arange(start, start + signals.length[members[0]]), channels)
            results[at] = definition_matmul(w[pattern], rows[at], adjoint=adjoint, method="auto", segment_ids=None)
