"""Kernels of streaming: a step of one token, and tiles that carry a block of inputs over to the outputs after it.

A cache is `(rows, length, d)`; entries before `at` hold inputs, those from there on pending outputs. A piece is a row
of numbers: the first channel, full registers of one filter or 0, channels of a register that is not full or 0, where
its lags begin in a table, and whether they are one number for all lanes (0), or one for each (1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import device_function, kernel
from .intrinsics import join_reals
from .lanes import broadcast, load, magnitude, store, width, zeros
from .memory import read, read_partial, write, write_partial
from .passes import convolve, convolve_each, load_signal
from .product_kernels import RUN, gather_lanes, in_range

__all__ = ["ELSEWHERE", "TILE", "add_tile", "step", "step_across_channels"]


@intrinsic
def finite(typingctx: Any, lanes: Any) -> Any:
    """Return whether no lane is infinite or NaN, by its bits."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits, number = lanes.bits, lanes.bits.element
        mask = ir.Constant(bits, [(1 << (number.width - 1)) - 1] * lanes.width)
        vector = builder.and_(builder.bitcast(args[0], bits), mask)
        name = f"llvm.vector.reduce.umax.v{lanes.width}i{number.width}"
        largest = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [bits]), name)
        infinite = builder.bitcast(ir.Constant(lanes.llvm.element, np.inf), number)
        return builder.icmp_unsigned("<", builder.call(largest, [vector]), infinite)

    return types.boolean(lanes), codegen


@device_function
def add_8_rows(dtype_tag, y, size, line, row, back, lags, begin, j):
    """Add to y what the inputs j to j + 7 times before contribute, the latest of which are at `row`."""
    a, b, c, d = (
        broadcast(lags, begin + j),
        broadcast(lags, begin + j + 1),
        broadcast(lags, begin + j + 2),
        broadcast(lags, begin + j + 3),
    )
    e, f, g, h = (
        broadcast(lags, begin + j + 4),
        broadcast(lags, begin + j + 5),
        broadcast(lags, begin + j + 6),
        broadcast(lags, begin + j + 7),
    )
    for i in range(0, size, line):
        at = row + i
        some = a * read(dtype_tag, at) + b * read(dtype_tag, at - back)
        some = some + (c * read(dtype_tag, at - 2 * back) + d * read(dtype_tag, at - 3 * back))
        more = e * read(dtype_tag, at - 4 * back) + f * read(dtype_tag, at - 5 * back)
        more = more + (g * read(dtype_tag, at - 6 * back) + h * read(dtype_tag, at - 7 * back))
        write(dtype_tag, y + i, read(dtype_tag, y + i) + (some + more))


@device_function
def add_4_rows(dtype_tag, y, size, line, row, back, lags, begin, j):
    """Do the same for four inputs."""
    a, b, c, d = (
        broadcast(lags, begin + j),
        broadcast(lags, begin + j + 1),
        broadcast(lags, begin + j + 2),
        broadcast(lags, begin + j + 3),
    )
    for i in range(0, size, line):
        at = row + i
        some = a * read(dtype_tag, at) + b * read(dtype_tag, at - back)
        some = some + (c * read(dtype_tag, at - 2 * back) + d * read(dtype_tag, at - 3 * back))
        write(dtype_tag, y + i, read(dtype_tag, y + i) + some)


@device_function
def advance_many(dtype_tag, cache, back, count, x, y, size, line, lags, begin):
    """Do a step of full registers, `size` bytes from these addresses on; return whether the results are finite."""
    a = broadcast(lags, begin)
    for i in range(0, size, line):
        write(dtype_tag, y + i, read(dtype_tag, cache + i) + a * read(dtype_tag, x + i))
    j = 1
    while j + 7 <= count:
        add_8_rows(dtype_tag, y, size, line, cache - j * back, back, lags, begin, j)
        j += 8
    if j + 3 <= count:
        add_4_rows(dtype_tag, y, size, line, cache - j * back, back, lags, begin, j)
        j += 4
    while j <= count:
        a = broadcast(lags, begin + j)
        for i in range(0, size, line):
            write(dtype_tag, y + i, read(dtype_tag, y + i) + a * read(dtype_tag, cache - j * back + i))
        j += 1
    peak = zeros(lags)
    for i in range(0, size, line):
        peak = magnitude(peak, read(dtype_tag, y + i))
    if not finite(peak):
        return False
    for i in range(0, size, line):
        write(dtype_tag, cache + i, read(dtype_tag, x + i))
    return True


@device_function
def fetch_piece(dtype_tag, address, item, channels):
    """Return a register, or some channels of it, 0 standing for all."""
    if channels == 0:
        return read(dtype_tag, address)
    return read_partial(dtype_tag, address, item, channels)


@device_function
def put_piece(dtype_tag, address, channels, lanes):
    """Write a register, or some channels of it."""
    if channels == 0:
        write(dtype_tag, address, lanes)
    else:
        write_partial(dtype_tag, address, lanes, channels)


@device_function
def factor(lags, at, each, j):
    """Return lag j, of those that begin at `lags[at]`, in every lane, or each lane's own one."""
    if each == 0:
        return broadcast(lags, at + j)
    return load(lags, at + j * width(lags))


@device_function
def advance_one(dtype_tag, cache, back, count, x, y, item, channels, lags, at, each):
    """Do the same for one register, or a part of one."""
    inputs = fetch_piece(dtype_tag, x, item, channels)
    total = factor(lags, at, each, 0) * inputs
    for begin in range(0, count + 1, RUN):
        some = zeros(lags)
        for j in range(begin, min(begin + RUN, count + 1)):  # the first is what was pending
            row = fetch_piece(dtype_tag, cache - j * back, item, channels)
            some = row if j == 0 else some + factor(lags, at, each, j) * row
        total = total + some
    put_piece(dtype_tag, y, channels, total)
    if not finite(total):
        return False
    put_piece(dtype_tag, cache, channels, inputs)
    return True


ELSEWHERE, TILE = -1, 1
"""What a step returns beside 0: nothing is done, for rows are many, or channels others; a tile is due.

Greater numbers are TILE, if one is due, and 2 for each piece that keeps its pending outputs, since its results are not
finite, perhaps in error.
"""


@device_function
def whole(cache, d, most):
    """Return how many rows are done at once: all, or none where there are too many or their channels are others."""
    if cache.shape[2] != d or (cache.shape[0] > most and cache.shape[0] > 1):
        return -1
    return cache.shape[0]


@device_function
def outcome(cache, at, leaf, missed):
    """Return what a step returns."""
    return 2 * missed + ((at + 1) % leaf == 0 and at + 1 < cache.shape[1])


@kernel
def step(dtype_tags, cache, at, x, y, pieces, lags, first, last):
    """Do a step of some rows but for its tile.

    The first piece is none: it has the leaf, the most inputs that are summed beside the last one, the channels,
    and the most rows that are done by one thread, as all are where `last` is -1.
    """
    leaf, most, dtype_tag, missed = pieces[0, 0], pieces[0, 1], dtype_tags[0], 0
    if last < 0:
        last = whole(cache, pieces[0, 2], pieces[0, 3])
        if last < 0:
            return ELSEWHERE
    item = np.int64(cache.itemsize)
    length, back, line = cache.shape[1], cache.shape[2] * item, width(lags) * item
    count = min(at % leaf, most)
    here = np.int64(cache.ctypes.data) + (first * length + at) * back
    x_at, y_at = np.int64(x.ctypes.data) + first * back, np.int64(y.ctypes.data) + first * back
    for _ in range(first, last):
        for p in range(1, pieces.shape[0]):
            channel, registers, channels, begin, each = pieces[p]
            o = channel * item
            if registers > 0:
                done = advance_many(
                    dtype_tag, here + o, back, count, x_at + o, y_at + o, registers * line, line, lags, begin
                )
            else:
                done = advance_one(
                    dtype_tag, here + o, back, count, x_at + o, y_at + o, item, channels, lags, begin, each
                )
            missed += not done
        here, x_at, y_at = here + length * back, x_at + back, y_at + back
    return outcome(cache, at, leaf, missed)


@kernel
def step_across_channels(dtype_tags, cache, at, x, y, pieces, lags, first, last):
    """Do the same with filters `lags`, `(h, m, k)`, that read neighbouring channels; a piece is a head."""
    leaf, most, missed = pieces[0, 0], pieces[0, 1], 0
    if last < 0:
        last = whole(cache, pieces[0, 2], pieces[0, 3])
        if last < 0:
            return ELSEWHERE
    heads, kernel_size, many = lags.shape
    lanes, lags, channels, count = width(lags), lags.reshape(-1), cache.shape[2] // heads, min(at % leaf, most)
    size = channels + -channels % lanes
    total, some = np.empty(size, cache.dtype), np.empty(size, cache.dtype)
    window = np.zeros(kernel_size - 1 + size, cache.dtype)  # a row of a head, zeros before it
    pending = np.empty(channels, cache.dtype)
    for row in range(first, last):
        for head in range(heads):
            low = head * channels
            for c in range(channels):
                pending[c] = cache[row, at, low + c]
                total[c] = pending[c]
                cache[row, at, low + c] = x[row, low + c]
            for begin in range(0, count + 1, RUN):
                some[:] = 0
                for j in range(begin, min(begin + RUN, count + 1)):
                    for c in range(channels):
                        window[kernel_size - 1 + c] = cache[row, at - j, low + c]
                    for r in range(0, size, lanes):
                        sums = load(some, r)
                        for i in range(kernel_size):
                            sums = sums + broadcast(lags, (head * kernel_size + i) * many + j) * load(window, r + i)
                        store(some, r, sums)
                for c in range(channels):
                    total[c] += some[c]
            bad = 0
            for c in range(channels):
                y[row, low + c] = total[c]
                bad += not np.isfinite(total[c])
            if bad > 0:
                missed += 1
                for c in range(channels):
                    cache[row, at, low + c] = pending[c]
    return outcome(cache, at, leaf, missed)


# Tiles ---------------------------------------------------------------------------------------------------------------


@device_function
def add_signal(dtype_tag, address, step, item, channels, n, buffer, quarter, constants, scale):
    """Undo the outermost pass of a transform, and add the real parts times `scale` to n entries."""
    lanes = width(buffer)
    for j in range(quarter):
        a, b, c, d = join_reals(buffer, j, quarter, constants)
        store(buffer, 2 * j * lanes, a)
        store(buffer, 2 * (j + quarter) * lanes, b)
        store(buffer, 2 * (j + 2 * quarter) * lanes, c)
        store(buffer, 2 * (j + 3 * quarter) * lanes, d)
    if channels == 0:
        for t in range(n):
            where = address + t * step
            write(dtype_tag, where, read(dtype_tag, where) + load(buffer, 2 * t * lanes) * scale)
    else:
        for t in range(n):
            where = address + t * step
            total = read_partial(dtype_tag, where, item, channels) + load(buffer, 2 * t * lanes) * scale
            write_partial(dtype_tag, where, total, channels)


@kernel
def add_tile(
    dtype_tags, inputs, begin, cache, at, count, groups, heads, filters, scales, constants, steps, low, high,
    buffer, tile, scratch, undone, first, last,
):  # fmt: skip
    """Add what inputs from an entry on contribute to `count` of the cache from the entry `at` on.

    They are as many as the spectra of tiles, `filters`, are long. A job is one group of channels of one row, and
    `undone[job]` tells whether it may leave the range; return how many do.
    """
    dtype_tag, item, size, d = dtype_tags[0], np.int64(filters.itemsize), filters.shape[1] // 2, cache.shape[2]
    step, missed = d * item, 0
    x, y = np.int64(inputs.ctypes.data) + begin * step, np.int64(cache.ctypes.data) + at * step
    for job in range(first, last):
        row, group = job // groups.shape[0], job % groups.shape[0]
        channel, channels, filter = groups[group]
        here = x + (row * inputs.shape[1] * d + channel) * item
        there = y + (row * cache.shape[1] * d + channel) * item
        peak = load_signal(dtype_tag, here, step, item, channels, size, buffer, size // 4, constants)
        undone[job] = not in_range(peak, low, high, scratch)
        missed += undone[job]
        if undone[job]:
            continue
        if filter >= 0:
            convolve(buffer, steps, constants, filters[filter])
        else:
            convolve_each(buffer, steps, constants, filters, heads[group], tile)
        scale = gather_lanes(scales, heads[group], scratch)
        add_signal(dtype_tag, there, step, item, channels, count, buffer, size // 4, constants, scale)
    return missed
