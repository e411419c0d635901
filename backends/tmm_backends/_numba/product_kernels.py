"""Kernels of the product: by transforms, or directly where filters or signals are short.

A job is one signal, a document or a whole row, of one group of channels: as many neighbours as a register holds. Job
`j` is signal `j // groups` of group `j % groups`, or the other way round where filters differ within groups, which are
then laid out lane by lane. Threads take ranges of jobs, each with memory of its own.

The first argument of a kernel holds numbers that stand for the dtypes of its arrays, as `lanes.DTYPE_TAGS` has them.
`signals` has rows of (offset of the input, offset of the result, length), in bytes; `groups` rows of (offset of the
input, offset of the result, channels or 0 for a full register, filter of all its lanes or -1), `heads` the filter of
each lane of a group.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile import device_function, kernel
from .lanes import Lanes, load, magnitude, splat, store, width, zeros
from .passes import (
    convolve,
    convolve_each,
    forward,
    load_at,
    load_partial_at,
    load_signal,
    store_at,
    store_partial_at,
    store_signal,
)
from .target import FAST

__all__ = ["AFTER", "BEFORE", "gather_lanes", "in_range", "product", "product_directly", "spectra", "unravel_job"]


@device_function
def unravel_job(job, signals, groups, by_group):
    """Return the signal and the group of a job."""
    if by_group:
        return job % signals.shape[0], job // signals.shape[0]
    return job // groups.shape[0], job % groups.shape[0]


@device_function
def in_range(peak, low, high, scratch):
    """Return whether the largest magnitudes of all lanes are zero or between two bounds."""
    store(scratch, 0, peak)
    for lane in range(width(scratch)):  # noqa: SIM110  (Numba compiles loops faster than generators)
        if not (scratch[lane] == 0 or low <= scratch[lane] <= high):
            return False
    return True


@device_function
def gather_lanes(values, heads, scratch):
    """Return, in each lane, the value of its filter."""
    for lane in range(width(scratch)):
        scratch[lane] = values[heads[lane]]
    return load(scratch, 0)


@kernel
def spectra(dtype_tags, w, spacing, lags, count, first, last, sign, constants, steps, buffer, out):
    """Transform filters: `out[f]` is the spectrum of filter f over the length, conjugated for a sign of -1.

    At the address `w` begin `count` filters, each `spacing` entries after the other; a job is a register full of them.
    """
    lanes, length, item = width(buffer), out.shape[1] // 2, buffer.itemsize
    for job in range(first, last):
        row = job * lanes
        some = min(lanes, count - row)
        load_signal(
            dtype_tags[0], w + row * spacing * item, item, spacing * item, some, lags, buffer, length // 4, constants
        )
        forward(buffer, steps, constants)
        for i in range(length):
            for lane in range(some):
                out[row + lane, 2 * i] = buffer[2 * lanes * i + lane] / length
                out[row + lane, 2 * i + 1] = sign * buffer[2 * lanes * i + lanes + lane] / length


@kernel
def product(
    dtype_tags, x, x_time, x_lane, y, y_time, signals, groups, heads, by_group, first, last,
    filters, scales, constants, steps, low, high, buffer, tile, scratch, unsafe,
):  # fmt: skip
    """Multiply by transforms, and note the jobs whose numbers may leave the range of transforms, which stay undone."""
    quarter = filters.shape[1] // 8
    for job in range(first, last):
        signal, group = unravel_job(job, signals, groups, by_group)
        x_at, y_at, n = signals[signal]
        x_group, y_group, count, filter = groups[group]
        peak = load_signal(dtype_tags[0], x + x_at + x_group, x_time, x_lane, count, n, buffer, quarter, constants)
        if not in_range(peak, low, high, scratch):
            unsafe[job] = True
            continue
        if filter >= 0:
            convolve(buffer, steps, constants, filters[filter])
        else:
            convolve_each(buffer, steps, constants, filters, heads[group], tile)
        scale = gather_lanes(scales, heads[group], scratch)
        store_signal(dtype_tags[1], y + y_at + y_group, y_time, count, n, buffer, quarter, constants, scale)


# Directly ------------------------------------------------------------------------------------------------------------

OUTPUTS, INPUTS = 8, 4
"""A tile: so many outputs take in so many inputs at a time, in registers."""
RUN = 32
"""So many inputs are added up on their own: one long sum may round the same way all along, beyond the error law."""
BEFORE, AFTER = OUTPUTS - 1, OUTPUTS + INPUTS
"""Zeros before the first lag and after the last one, which tiles read."""


@intrinsic
def accumulate_tile(typingctx: Any, sums: Any, signal: Any, at: Any, lags: Any, lag: Any) -> Any:
    """Return `sums[i]` plus `lags[lag + i - l] * signal[at + l]`, summed over l < INPUTS.

    `lags` are numbers for all lanes, or rows of one a lane, as those of `signal`.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = Lanes(signal.dtype)

        def entry(array: Any, value: Any, index: Any, repeated: bool) -> Any:
            base = context.make_array(array)(context, builder, value).data
            if repeated:
                return splat(builder, builder.load(builder.gep(base, [index])), lanes.llvm)
            where = builder.gep(base, [builder.mul(index, ir.Constant(index.type, lanes.width))])
            return builder.load(builder.bitcast(where, lanes.llvm.as_pointer()), align=signal.dtype.bitwidth // 8)

        def moved(index: Any, by: int) -> Any:
            return builder.add(index, ir.Constant(index.type, by))

        inputs = [entry(signal, args[1], moved(args[2], i), False) for i in range(INPUTS)]
        offsets = range(1 - INPUTS, OUTPUTS)
        factors = {o: entry(lags, args[3], moved(args[4], o), lags.ndim == 1) for o in offsets}
        totals = [builder.extract_value(args[0], i) for i in range(OUTPUTS)]
        for i in range(OUTPUTS):
            for j, x in enumerate(inputs):
                term = builder.fmul(factors[i - j], x, flags=FAST)
                totals[i] = builder.fadd(totals[i], term, flags=FAST)
        return context.make_tuple(builder, sums, totals)

    return sums(sums, signal, types.intp, lags, types.intp), codegen


@device_function
def direct_sums(signal, n, lags, count, dtype_tag, y, y_time, channels, scale):
    """Write the outputs of a signal in memory, of `n` rows and zeros up to a whole tile, for `count` lags."""
    zero = zeros(signal)
    for t in range(0, n, OUTPUTS):
        a, b, c, d, e, f, g, h = nothing = (zero, zero, zero, zero, zero, zero, zero, zero)
        for begin in range(max(0, t - count + 1) // INPUTS * INPUTS, t + OUTPUTS, RUN):
            total = nothing
            for s in range(begin, min(begin + RUN, t + OUTPUTS), INPUTS):
                total = accumulate_tile(total, signal, s, lags, BEFORE + t - s)
            a, b, c, d = a + total[0], b + total[1], c + total[2], d + total[3]
            e, f, g, h = e + total[4], f + total[5], g + total[6], h + total[7]
        if channels == 0:
            store_at(dtype_tag, y, y_time, t, n, a * scale)
            store_at(dtype_tag, y, y_time, t + 1, n, b * scale)
            store_at(dtype_tag, y, y_time, t + 2, n, c * scale)
            store_at(dtype_tag, y, y_time, t + 3, n, d * scale)
            store_at(dtype_tag, y, y_time, t + 4, n, e * scale)
            store_at(dtype_tag, y, y_time, t + 5, n, f * scale)
            store_at(dtype_tag, y, y_time, t + 6, n, g * scale)
            store_at(dtype_tag, y, y_time, t + 7, n, h * scale)
        else:
            store_partial_at(dtype_tag, y, y_time, channels, t, n, a * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 1, n, b * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 2, n, c * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 3, n, d * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 4, n, e * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 5, n, f * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 6, n, g * scale)
            store_partial_at(dtype_tag, y, y_time, channels, t + 7, n, h * scale)


@kernel
def product_directly(
    dtype_tags, x, x_time, x_lane, y, y_time, signals, groups, heads, by_group, first, last,
    lags, count, scales, reverse, low, high, buffer, own, scratch, unsafe,
):  # fmt: skip
    """Multiply by direct sums; `lags` has zeros around the `count` lags of each filter. In reverse, the adjoint."""
    lanes = width(buffer)
    at_hand = -1
    for job in range(first, last):
        signal, group = unravel_job(job, signals, groups, by_group)
        x_at, y_at, n = signals[signal]
        x_group, y_group, channels, filter = groups[group]
        x_from, y_from, x_step, y_step = x + x_at + x_group, y + y_at + y_group, x_time, y_time
        if reverse:
            x_from, x_step, y_from, y_step = x_from + (n - 1) * x_time, -x_time, y_from + (n - 1) * y_time, -y_time
        peak = zeros(buffer)
        for t in range(-(-n // OUTPUTS) * OUTPUTS):
            if channels == 0:
                lanes_of_t = load_at(dtype_tags[0], x_from, x_step, t, n, buffer)
            else:
                lanes_of_t = load_partial_at(dtype_tags[0], x_from, x_step, x_lane, channels, t, n, buffer)
            peak = magnitude(peak, lanes_of_t)
            store(buffer, t * lanes, lanes_of_t)
        if not in_range(peak, low, high, scratch):
            unsafe[job] = True
            continue
        scale = gather_lanes(scales, heads[group], scratch)
        if filter >= 0:
            direct_sums(buffer, n, lags[filter], count, dtype_tags[1], y_from, y_step, channels, scale)
        else:
            if group != at_hand:
                at_hand = group
                for lane in range(lanes):
                    for j in range(own.shape[0]):
                        own[j, lane] = lags[heads[group, lane], j]
            direct_sums(buffer, n, own, count, dtype_tags[1], y_from, y_step, channels, scale)
