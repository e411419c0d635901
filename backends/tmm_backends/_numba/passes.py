"""Device functions: passes over a buffer of complex vectors, which split, multiply and join polynomials (see `plans`).

The dtype of a signal is told by `dtype_tag`; `address` is that of its first entry, `time_step` and `lane_step` are
strides in bytes. `count` is the number of channels, 0 for a full register of channels side by side in memory.
"""

from __future__ import annotations

from .compile import device_function
from .intrinsics import (
    convolve_leaf,
    correlate_leaf,
    join_by_2,
    join_by_3,
    join_by_4,
    join_by_5,
    join_by_8,
    join_leaf,
    join_reals,
    split_by_2,
    split_by_3,
    split_by_4,
    split_by_5,
    split_by_8,
    split_leaf,
    split_reals,
)
from .lanes import magnitude, subnormal, width, zeros
from .memory import read, read_partial, write, write_partial
from .plans import JOIN, LEAF, LEAVES, SPLIT

__all__ = [
    "TILE",
    "convolve",
    "convolve_each",
    "correlate",
    "forward",
    "inverse",
    "load_at",
    "load_partial_at",
    "load_signal",
    "store_at",
    "store_partial_at",
    "store_signal",
]

# Lanes that lie side by side in memory are read and written at once, others one by one. Each way has its own loop: one
# loop with a branch for each vector took twice the time.


@device_function
def load_at(dtype_tag, address, time_step, t, n, buffer):
    """Return a full register of the signal at time t; zeros if t >= n."""
    if t >= n:
        return zeros(buffer)
    return read(dtype_tag, address + t * time_step)


@device_function
def load_partial_at(dtype_tag, address, time_step, lane_step, count, t, n, buffer):
    """Return `count` channels of the signal at time t, and zeros in the other lanes; all zeros if t >= n."""
    if t >= n:
        return zeros(buffer)
    return read_partial(dtype_tag, address + t * time_step, lane_step, count)


PROBES = 8
"""Times at which a signal is looked at first."""


@device_function
def peak_of(dtype_tag, address, time_step, lane_step, count, n, every, buffer):
    """Return the largest magnitude of each lane, of one time of `every`."""
    peak = zeros(buffer)
    for t in range(0, n, every):
        if count == 0:
            peak = magnitude(peak, read(dtype_tag, address + t * time_step))
        else:
            peak = magnitude(peak, read_partial(dtype_tag, address + t * time_step, lane_step, count))
    return peak


@device_function
def load_signal(dtype_tag, address, time_step, lane_step, count, n, buffer, quarter, constants):
    """Load a signal of n times, do the outermost pass, and return the largest magnitude of each lane.

    Nothing is done where a lane is below the normal numbers: arithmetic with those takes a hundred times as long.
    """
    peak = zeros(buffer)
    if subnormal(peak_of(dtype_tag, address, time_step, lane_step, count, n, n // PROBES + 1, buffer)):
        whole = peak_of(dtype_tag, address, time_step, lane_step, count, n, 1, buffer)
        if subnormal(whole):
            return whole
    if count == 0:
        for j in range(quarter):
            a = load_at(dtype_tag, address, time_step, j, n, buffer)
            b = load_at(dtype_tag, address, time_step, j + quarter, n, buffer)
            c = load_at(dtype_tag, address, time_step, j + 2 * quarter, n, buffer)
            d = load_at(dtype_tag, address, time_step, j + 3 * quarter, n, buffer)
            peak = magnitude(magnitude(magnitude(magnitude(peak, a), b), c), d)
            split_reals(buffer, j, quarter, constants, (a, b, c, d))
    else:
        for j in range(quarter):
            a = load_partial_at(dtype_tag, address, time_step, lane_step, count, j, n, buffer)
            b = load_partial_at(dtype_tag, address, time_step, lane_step, count, j + quarter, n, buffer)
            c = load_partial_at(dtype_tag, address, time_step, lane_step, count, j + 2 * quarter, n, buffer)
            d = load_partial_at(dtype_tag, address, time_step, lane_step, count, j + 3 * quarter, n, buffer)
            peak = magnitude(magnitude(magnitude(magnitude(peak, a), b), c), d)
            split_reals(buffer, j, quarter, constants, (a, b, c, d))
    return peak


@device_function
def store_at(dtype_tag, address, time_step, t, n, lanes):
    """Write a full register of the result at time t, if t < n."""
    if t < n:
        write(dtype_tag, address + t * time_step, lanes)


@device_function
def store_partial_at(dtype_tag, address, time_step, count, t, n, lanes):
    """Write `count` channels of the result at time t, if t < n."""
    if t < n:
        write_partial(dtype_tag, address + t * time_step, lanes, count)


@device_function
def store_signal(dtype_tag, address, time_step, count, n, buffer, quarter, constants, scale):
    """Undo the outermost pass, and store n times of the real parts, times `scale`."""
    if count == 0:
        for j in range(quarter):
            a, b, c, d = join_reals(buffer, j, quarter, constants)
            store_at(dtype_tag, address, time_step, j, n, a * scale)
            store_at(dtype_tag, address, time_step, j + quarter, n, b * scale)
            store_at(dtype_tag, address, time_step, j + 2 * quarter, n, c * scale)
            store_at(dtype_tag, address, time_step, j + 3 * quarter, n, d * scale)
    else:
        for j in range(quarter):
            a, b, c, d = join_reals(buffer, j, quarter, constants)
            store_partial_at(dtype_tag, address, time_step, count, j, n, a * scale)
            store_partial_at(dtype_tag, address, time_step, count, j + quarter, n, b * scale)
            store_partial_at(dtype_tag, address, time_step, count, j + 2 * quarter, n, c * scale)
            store_partial_at(dtype_tag, address, time_step, count, j + 3 * quarter, n, d * scale)


TILE = 8 * LEAF
"""Entries of the longest run of leaves: radix 8 is the largest."""


# Written out twice: closures of one factory would have one name in machine code that several processes cache.


@device_function
def split_block(radix, buffer, first, size, constants, at):
    """Split the `radix * size` entries from `first` on into `radix` parts; `at` is the first constant."""
    if radix == 8:
        for j in range(first, first + size):
            split_by_8(buffer, j, size, constants, at)
    elif radix == 4:
        for j in range(first, first + size):
            split_by_4(buffer, j, size, constants, at)
    elif radix == 2:
        for j in range(first, first + size):
            split_by_2(buffer, j, size, constants, at)
    elif radix == 3:
        for j in range(first, first + size):
            split_by_3(buffer, j, size, constants, at)
    else:
        for j in range(first, first + size):
            split_by_5(buffer, j, size, constants, at)


@device_function
def join_block(radix, buffer, first, size, constants, at):
    """Join the `radix * size` entries from `first` on, the inverse of `split_block` times `radix`."""
    if radix == 8:
        for j in range(first, first + size):
            join_by_8(buffer, j, size, constants, at)
    elif radix == 4:
        for j in range(first, first + size):
            join_by_4(buffer, j, size, constants, at)
    elif radix == 2:
        for j in range(first, first + size):
            join_by_2(buffer, j, size, constants, at)
    elif radix == 3:
        for j in range(first, first + size):
            join_by_3(buffer, j, size, constants, at)
    else:
        for j in range(first, first + size):
            join_by_5(buffer, j, size, constants, at)


@device_function
def convolve(buffer, steps, constants, filter):
    """Multiply the polynomials in the buffer by one filter for all lanes, given by its values."""
    for s in range(steps.shape[0]):
        kind, radix, first, size, at = steps[s]
        if kind == SPLIT:
            split_block(radix, buffer, first, size, constants, at)
        elif kind == JOIN:
            join_block(radix, buffer, first, size, constants, at)
        else:
            for i in range(radix):
                place = first + LEAF * i
                convolve_leaf(buffer, place, constants, at + (LEAF - 1) * i, filter, place)


@device_function
def convolve_each(buffer, steps, constants, filters, heads, tile):
    """Multiply by a filter for each lane, `filters[heads[lane]]`, given by its values.

    Those of a run of leaves at a time are copied into `tile`, lane by lane: a whole spectrum would not stay in the
    cache, and take as much memory as the buffer.
    """
    lanes = width(buffer)
    for s in range(steps.shape[0]):
        kind, radix, first, size, at = steps[s]
        if kind == SPLIT:
            split_block(radix, buffer, first, size, constants, at)
        elif kind == JOIN:
            join_block(radix, buffer, first, size, constants, at)
        else:
            for lane in range(lanes):
                filter = filters[heads[lane]]
                for i in range(radix * LEAF):
                    tile[i, lane] = filter[2 * (first + i)]
                    tile[i, lanes + lane] = filter[2 * (first + i) + 1]
            for i in range(radix):
                convolve_leaf(buffer, first + LEAF * i, constants, at + (LEAF - 1) * i, tile, LEAF * i)


@device_function
def correlate(total, x_buffer, g_buffer, steps, constants):
    """Add the values of `conj(x) g` to `total`, for the polynomials in two buffers, which are overwritten."""
    for s in range(steps.shape[0]):
        kind, radix, first, size, at = steps[s]
        if kind == SPLIT:
            split_block(radix, x_buffer, first, size, constants, at)
            split_block(radix, g_buffer, first, size, constants, at)
        elif kind == LEAVES:
            for i in range(radix):
                correlate_leaf(total, x_buffer, g_buffer, first + LEAF * i, constants, at + (LEAF - 1) * i)


@device_function
def forward(buffer, steps, constants):
    """Replace coefficients by values, after the outermost pass."""
    for s in range(steps.shape[0]):
        kind, radix, first, size, at = steps[s]
        if kind == SPLIT:
            split_block(radix, buffer, first, size, constants, at)
        elif kind == LEAVES:
            for i in range(radix):
                split_leaf(buffer, first + LEAF * i, constants, at + (LEAF - 1) * i, buffer, 0)


@device_function
def inverse(buffer, steps, constants):
    """Replace values by coefficients times a quarter of the length; the outermost pass multiplies by 4."""
    for s in range(steps.shape[0]):
        kind, radix, first, size, at = steps[s]
        if kind == JOIN:
            join_block(radix, buffer, first, size, constants, at)
        elif kind == LEAVES:
            for i in range(radix):
                join_leaf(buffer, first + LEAF * i, constants, at + (LEAF - 1) * i, buffer, 0)
