"""Kernels of series: direct sums with few lags, where a register holds successive times of a few channels.

Times of `d` channels that lie side by side in memory are read as they are: lane l of a register that begins at a time
is channel `l % d`, of one of the `lanes // d` times that fit whole. What is read at other offsets is other lags' input,
so nothing is moved from lane to lane. Rows of `pieces` are (offset of the input, offset of the other array, inputs,
skipped, outputs), in bytes and times: pieces of signals, of whose products the outputs are kept that come after the
skipped ones. Other arguments are as in `product_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import device_function, kernel
from .lanes import Lanes, load, magnitude, store, width, zeros
from .memory import read, read_partial, write, write_partial
from .product_kernels import RUN
from .target import FAST

__all__ = ["AT_ONCE", "correlate_along_time", "product_along_time"]

AT_ONCE = 8
"""Sums that are added up at once, in registers."""


@intrinsic
def accumulate(typingctx: Any, sums: Any, values: Any, at: Any, step: Any, factors: Any, place: Any) -> Any:
    """Return `sums[i]` plus the registers at `factors[place]` times that at `values[at + i * step]`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = Lanes(values.dtype)

        def entry(array: Any, value: Any, index: Any) -> Any:
            where = builder.gep(context.make_array(array)(context, builder, value).data, [index])
            return builder.load(builder.bitcast(where, lanes.llvm.as_pointer()), align=values.dtype.bitwidth // 8)

        factor = entry(factors, args[4], args[5])
        totals = []
        for i in range(AT_ONCE):
            index = builder.add(args[2], builder.mul(args[3], ir.Constant(args[3].type, i)))
            term = builder.fmul(factor, entry(values, args[1], index), flags=FAST)
            totals.append(builder.fadd(builder.extract_value(args[0], i), term, flags=FAST))
        return context.make_tuple(builder, sums, totals)

    return sums(sums, values, types.intp, types.intp, factors, types.intp), codegen


@device_function
def add_tile(totals, at, sums):
    """Add sums to the registers from `totals[at]` on."""
    step = width(totals)
    a, b, c, d, e, f, g, h = sums
    store(totals, at, load(totals, at) + a)
    store(totals, at + step, load(totals, at + step) + b)
    store(totals, at + 2 * step, load(totals, at + 2 * step) + c)
    store(totals, at + 3 * step, load(totals, at + 3 * step) + d)
    store(totals, at + 4 * step, load(totals, at + 4 * step) + e)
    store(totals, at + 5 * step, load(totals, at + 5 * step) + f)
    store(totals, at + 6 * step, load(totals, at + 6 * step) + g)
    store(totals, at + 7 * step, load(totals, at + 7 * step) + h)


@device_function
def load_piece(dtype_tag, address, item, count, span, buffer, front, after):
    """Read `count` entries to the buffer from `front` on, and zeros to `after` more; return the largest magnitudes."""
    lanes = width(buffer)
    peak, at = zeros(buffer), 0
    while at + lanes <= count:
        register = read(dtype_tag, address + at * item)
        peak = magnitude(peak, register)
        store(buffer, front + at, register)
        at += span
    if at < count:
        register = read_partial(dtype_tag, address + at * item, item, count - at)
        peak = magnitude(peak, register)
        store(buffer, front + at, register)
    for i in range(front + count, front + count + after, lanes):
        store(buffer, i, zeros(buffer))
    return peak


@device_function
def channels_in_range(peak, d, low, high, scratch):
    """Return whether each of `d` channels is zero or from `low` to `high`; `scratch` then begins with their peaks."""
    store(scratch, 0, peak)
    for lane in range(width(scratch)):
        if not scratch[lane] <= high:
            return False
        scratch[lane % d] = max(scratch[lane % d], scratch[lane])
    for channel in range(d):  # noqa: SIM110  (Numba compiles loops faster than generators)
        if 0 < scratch[channel] < low:
            return False
    return True


@kernel
def product_along_time(
    dtype_tags, x, x_item, y, y_item, pieces, first, last, d, lags, scales, adjoint, low, high,
    buffer, sums, scratch, unsafe,
):  # fmt: skip
    """Multiply pieces; those with magnitudes out of range are skipped and marked. `lags` has a register for each."""
    lanes = width(buffer)
    span, count, factors = lanes // d * d, lags.shape[0], lags.reshape(-1)
    front, tile, step = (count - 1) * d, AT_ONCE * span + lanes, d if adjoint else -d
    zero, scale = zeros(buffer), load(scales, 0)
    nothing = (zero, zero, zero, zero, zero, zero, zero, zero)
    buffer[:front] = 0
    for piece in range(first, last):
        x_at, y_at, inputs, skipped, outputs = pieces[piece]
        peak = load_piece(dtype_tags[0], x + x_at, x_item, inputs * d, span, buffer, front, front + tile)
        if not channels_in_range(peak, d, low, high, scratch):
            unsafe[piece] = True
            continue
        used, begin, total = min(count, inputs), front + skipped * d, outputs * d
        registers = -(-total // span)
        sums[: (registers + AT_ONCE) * lanes] = 0
        for run in range(0, used, RUN):
            for r in range(0, registers, AT_ONCE):
                some = nothing
                for j in range(run, min(run + RUN, used)):
                    some = accumulate(some, buffer, begin + r * span + j * step, span, factors, j * lanes)
                add_tile(sums, r * lanes, some)
        for r in range(registers):
            address, left = y + y_at + r * span * y_item, total - r * span
            if left >= lanes:
                write(dtype_tags[1], address, load(sums, r * lanes) * scale)
            else:
                write_partial(dtype_tags[1], address, load(sums, r * lanes) * scale, left)


@kernel
def correlate_along_time(
    dtype_tags, x, x_item, g, g_item, pieces, chunks, d, count, first, last, low, high,
    x_buffer, g_buffer, sums, scratch, peaks, out,
):  # fmt: skip
    """Sum chunks, rows of (first piece, last piece), of which `out[chunk, j]` gets lag j of each lane.

    `peaks[chunk]` gets the sums of the products of the largest magnitudes of each channel; NaN where one is out of
    range.
    """
    lanes = width(sums)
    span = lanes // d * d
    front, zero = (sums.shape[0] // lanes - 1) * d, zeros(sums)
    nothing = (zero, zero, zero, zero, zero, zero, zero, zero)
    x_buffer[:front] = 0
    for chunk in range(first, last):
        for piece in range(chunks[chunk, 0], chunks[chunk, 1]):
            x_at, g_at, inputs, skipped, outputs = pieces[piece]
            peak = load_piece(dtype_tags[0], x + x_at, x_item, inputs * d, span, x_buffer, front, lanes)
            if not channels_in_range(peak, d, low, high, scratch[lanes:]):
                peaks[chunk] = np.nan
                break
            peak = load_piece(dtype_tags[1], g + g_at, g_item, outputs * d, span, g_buffer, 0, lanes)
            if not channels_in_range(peak, d, low, high, scratch):
                peaks[chunk] = np.nan
                break
            for channel in range(d):
                peaks[chunk, channel] += np.float64(scratch[channel]) * scratch[lanes + channel]
            begin, total, used = front + skipped * d, outputs * d, min(count, inputs)
            sums[:] = 0
            for j in range(0, used, AT_ONCE):
                for run in range(0, total, RUN * span):
                    some = nothing
                    for at in range(run, min(run + RUN * span, total), span):
                        some = accumulate(some, x_buffer, begin + at - j * d, -d, g_buffer, at)
                    add_tile(sums, j * lanes, some)
            for j in range(used):
                for lane in range(span):
                    out[chunk, j, lane] += sums[j * lanes + lane]
