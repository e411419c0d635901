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
    nan_mask_up_to,
    result_dtype,
    result_dtype_name,
    share,
)

from .blocks import Blocks
from .correlation import correlate
from .operands import ARITHMETIC, Arithmetic, Filters, Signals, aligned_empty
from .product import multiply
from .rescaling import NEVER, RescaledCorrelation, finite_lags, multiply_pieces_rescaled, multiply_rescaled
from .series import Pieces, correlates_series, is_series, multiply_series
from .streaming import NumbaStream
from .target import CONVERTS_HALVES
from .threads import thread_count

__all__ = ["NumbaEngine"]

Array = NDArray[Any]

log = logging.getLogger("tmm_core")

SCALED = "%d of %d %s have numbers not finite, or out of the range of transforms, and are scaled first"


class NumbaEngine:
    """Products of NumPy arrays of real floating dtypes, with any strides.

    What is asked for with `method="direct"` is computed by the definition, in NumPy.
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
        series = is_series(x, w.shape[1], w.shape[2], arithmetic)
        blocks = None if series else _blocks(x, segment_ids, w.shape[1], w.shape[2], arithmetic, sums=w.shape[1] == 1)
        if blocks is None:
            _multiply(y, w, Filters.of(w, arithmetic), x, _signals(x, segment_ids), adjoint)
            return
        n, width = x.shape[-2], x.shape[-1] // len(w)
        w, reached = finite_lags(w, w.dtype)  # counted from the begin of a block, lags would be others
        filters_of = functools.cache(lambda first, last: Filters.of(w[first:last], arithmetic))

        def product(channel: int | None, x: Array, y: Array) -> None:
            heads = (0, len(w)) if channel is None else (channel // width, channel // width + 1)
            _multiply(y, w[slice(*heads)], filters_of(*heads), x, _signals(x, None), adjoint)

        blocks.multiply(product, x, y, adjoint)
        for head in np.flatnonzero(reached < NEVER):
            times = slice(n - reached[head]) if adjoint else slice(reached[head], None)
            y[..., times, head * width : (head + 1) * width] = np.nan

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

        if method == "direct":
            log.debug("direct sums of %s, which were asked for, are computed by NumPy, not by Numba", x.shape)
            defined: Array = definition_correlate(
                x, g, lags=lags, heads=heads, kernel_size=kernel_size, method=method, segment_ids=segment_ids
            )
            return defined
        dtype, arithmetic = result_dtype(x, g), ARITHMETIC[result_dtype_name(x, g)]
        x, g = _in(arithmetic, x), _in(arithmetic, g)
        c = np.zeros((heads, kernel_size, lags))
        if x.size == 0:
            return c.astype(dtype)
        used, width = min(lags, x.shape[-2]), x.shape[-1] // heads
        peaks = np.zeros(heads)

        def parts() -> Iterator[tuple[slice, Array, Array, Signals]]:
            """Yield heads, and signals whose correlations add up to theirs."""
            series = correlates_series(x, kernel_size, used, arithmetic)
            blocks = None if series else _blocks(x, segment_ids, kernel_size, used, arithmetic, sums=False)
            if blocks is None:
                yield slice(None), x, g, _signals(x, segment_ids)
                return
            for channel, x_part, g_part in blocks.pairs(x, g):
                head = slice(None) if channel is None else slice(channel // width, channel // width + 1)
                yield head, x_part, g_part, _signals(x_part, None)

        for head, x_part, g_part, signals in parts():
            peaks[head] += correlate(c[head, :, :used], arithmetic, x_part, g_part, signals, low=arithmetic.lowest)
        undone = (peaks != 0) & ~(peaks >= arithmetic.lowest)  # NaN, too
        if undone.any():
            log.debug(SCALED, undone.sum(), undone.size, "heads")
            rescaled = RescaledCorrelation(heads, kernel_size, used, arithmetic)
            for part in parts():
                rescaled.add(*part)
            c[undone, :, :used] = rescaled.total()[undone]
            if not rescaled.finite:
                from_x, from_g = _reaches(x, g, _signals(x, segment_ids), heads)
                c[nan_mask_up_to(from_x, from_g, lags=lags, kernel_size=kernel_size)] = np.nan
        with np.errstate(over="ignore"):  # what a half cannot hold is infinite, as in products
            return c.astype(dtype)

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
    arithmetic = filters.arithmetic
    if is_series(x, filters.kernel_size, filters.lags, arithmetic):
        pieces = Pieces.of(signals, filters.lags, x.shape[-1], adjoint=adjoint)
        undone = np.ones(len(pieces), bool)
        if not filters.unsafe.any():
            undone = multiply_series(y, filters, x, pieces, adjoint, low=arithmetic.lowest)
        if undone.any():
            log.debug(SCALED, undone.sum(), undone.size, "pieces")
            multiply_pieces_rescaled(y, w, x, pieces[undone], arithmetic, adjoint)
        return
    undone = np.ones(len(signals), bool)
    if not filters.unsafe.all():
        undone = multiply(y, filters, x, signals, adjoint) | filters.unsafe.any()
    if undone.any():
        log.debug(SCALED, undone.sum(), undone.size, "signals")
        multiply_rescaled(y, w, x, signals[undone], arithmetic, adjoint)


def _reaches(x: Array, g: Array, signals: Signals, heads: int) -> Iterator[Array]:
    """Yield, for x and g, the most lags that an entry of a channel reaches which is not finite, -1 for none.

    One of x reaches those up to its distance from the end of its signal, one of g up to that from the start.
    """
    since = np.arange(signals.length.sum(), dtype=np.int32)
    since -= np.repeat(since[np.cumsum(signals.length) - signals.length], signals.length)
    left = np.repeat(signals.length.astype(np.int32) - 1, signals.length) - since
    for a, reach in ((x, left), (g, since)):
        bad = ~np.isfinite(a).reshape(len(reach), -1)
        farthest = np.where(bad, reach[:, None], np.int32(-1)).max(axis=0) if bad.any() else np.full(a.shape[-1], -1)
        yield farthest.reshape(heads, -1)


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
