"""Kernels of the product: by transforms, or by direct sums where filters or signals are short.

A job is one signal, a document or a whole row, of one group of channels: as many neighbours as a register holds. Job
`j` is signal `j // groups` of group `j % groups`, or, with `by_group`, the other way round: for direct sums with
different filters in a group, which are then copied lane by lane once a group. A thread computes the jobs from `first`
to `last`, in memory of its own (`buffer`, `tile`, `scratch`).

The first argument of a kernel tells the dtypes of its arrays (`memory.DTYPE_TAGS`). Addresses, offsets and strides are
in bytes: `x_time`, `y_time` are strides of time, `x_lane` that of channels. `signals` has rows of (offset of the input,
offset of the result, length); `groups` has rows of (offset of the input, offset of the result, channels or 0 for a full
register, filter of all its lanes or -1); `heads[group]` is the filter of each lane. Filters are normalized, and
`scales[head]` is what results are multiplied by. Magnitudes from `low` to `high` are safe to transform.
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
    """Return whether each lane of `peak` is zero or from `low` to `high`; `scratch` then holds the lanes."""
    store(scratch, 0, peak)
    for lane in range(width(scratch)):  # noqa: SIM110  (Numba compiles loops faster than generators)
        if not (scratch[lane] == 0 or low <= scratch[lane] <= high):
            return False
    return True


@device_function
def gather_lanes(values, heads, scratch):
    """Return `values[heads[lane]]` in each lane."""
    for lane in range(width(scratch)):
        scratch[lane] = values[heads[lane]]
    return load(scratch, 0)


@kernel
def spectra(dtype_tags, w, spacing, lags, count, first, last, sign, constants, steps, buffer, out):
    """Transform filters: `out[f]` is the spectrum of filter f divided by the length, conjugated for a sign of -1.

    `count` filters begin at the address `w`, `spacing` entries apart; a job is as many as a register has lanes.
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
    """Multiply by transforms; jobs with magnitudes out of range are skipped and marked in `unsafe`."""
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


# Direct sums ---------------------------------------------------------------------------------------------------------

OUTPUTS, INPUTS = 8, 4
"""A tile: the outputs and inputs whose products are added up at once, in registers."""
RUN = 32
"""Inputs whose sum is added to the total at once: one long sum may round in the same direction all along, and break the
error law."""
BEFORE, AFTER = OUTPUTS - 1, OUTPUTS + INPUTS
"""Zeros before the first lag and after the last one, which tiles read."""


@intrinsic
def accumulate_tile(typingctx: Any, sums: Any, signal: Any, at: Any, lags: Any, lag: Any) -> Any:
    """Return `sums[i]` plus `lags[lag + i - l] * signal[at + l]`, summed over l < INPUTS.

    `lags` is one-dimensional, one number for all lanes, or two-dimensional, a row of lanes for each lag.
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
    """Write the `n` outputs of a signal, given as registers with zeros up to a whole tile, for `count` lags."""
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
    lags, count, scales, reverse, low, high, buffer, lane_lags, scratch, unsafe,
):  # fmt: skip
    """Multiply by direct sums; `lags` has zeros around the `count` lags of each filter.

    The adjoint reads and writes time in `reverse`. Jobs with magnitudes out of range are marked in `unsafe`.
    """
    lanes = width(buffer)
    loaded_group = -1
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
                register = load_at(dtype_tags[0], x_from, x_step, t, n, buffer)
            else:
                register = load_partial_at(dtype_tags[0], x_from, x_step, x_lane, channels, t, n, buffer)
            peak = magnitude(peak, register)
            store(buffer, t * lanes, register)
        if not in_range(peak, low, high, scratch):
            unsafe[job] = True
            continue
        scale = gather_lanes(scales, heads[group], scratch)
        if filter >= 0:
            direct_sums(buffer, n, lags[filter], count, dtype_tags[1], y_from, y_step, channels, scale)
        else:
            if group != loaded_group:
                loaded_group = group
                for lane in range(lanes):
                    for j in range(lane_lags.shape[0]):
                        lane_lags[j, lane] = lags[heads[group, lane], j]
            direct_sums(buffer, n, lane_lags, count, dtype_tags[1], y_from, y_step, channels, scale)
