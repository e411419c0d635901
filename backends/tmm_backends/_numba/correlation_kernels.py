"""Kernels of the correlation: spectra are summed over signals and channels, and transformed back once.

Chunks depend on the shapes alone, each is summed by one thread, and chunks are summed in their order: the result is the
same to the bit for any number of threads. Arguments are as in `product_kernels`.
"""

from __future__ import annotations

import numpy as np

from . import passes
from .compile import device_function, kernel
from .lanes import load, total, width
from .passes import inverse, load_signal, store_signal
from .product_kernels import in_range

__all__ = ["correlate", "inverse_transform"]


@kernel
def correlate(
    dtype_tags, x, x_time, x_lane, g, g_time, g_lane, signals, groups, heads, chunks, first, last,
    constants, steps, low, high, x_buffer, g_buffer, sums, scratch, peaks, out,
):  # fmt: skip
    """Sum chunks: rows of (first signal, last signal, first group, last group, first row of `out`).

    A chunk has groups of one filter, or one group of several filters; `out` gets a spectrum for each filter.
    `peaks[chunk]` gets, lane by lane, the sum of the products of the largest magnitudes; NaN where one is out of range,
    or their sum begins below `low`, and the rest is skipped. `scratch` has two registers.
    """
    lanes, quarter = width(sums), sums.shape[0] // (8 * width(sums))
    for chunk in range(first, last):
        begin, end, first_group, last_group, row = chunks[chunk]
        sums[:] = 0
        for other in range(chunk):  # what is not valid needs no more terms
            if heads[chunks[other, 2], 0] == heads[first_group, 0] and np.isnan(peaks[other, 0]):
                peaks[chunk] = np.nan
        for signal in range(begin, end):
            x_at, g_at, n = signals[signal]
            for group in range(first_group, last_group):
                if np.isnan(peaks[chunk, 0]):
                    break
                x_group, g_group, channels, _ = groups[group]
                x_peak = load_signal(
                    dtype_tags[0], x + x_at + x_group, x_time, x_lane, channels, n, x_buffer, quarter, constants
                )
                if not in_range(x_peak, low, high, scratch[lanes:]):
                    peaks[chunk] = np.nan
                    break
                g_peak = load_signal(
                    dtype_tags[1], g + g_at + g_group, g_time, g_lane, channels, n, g_buffer, quarter, constants
                )
                if in_range(g_peak, low, high, scratch):
                    passes.correlate(sums, x_buffer, g_buffer, steps, constants)
                    for lane in range(lanes):
                        peaks[chunk, lane] += np.float64(scratch[lane]) * scratch[lanes + lane]
                    if 0 < peaks[chunk].max() < low:  # as the others will most likely be
                        peaks[chunk] = np.nan
                else:
                    peaks[chunk] = np.nan
        reduce_lanes(sums, heads[first_group], groups[first_group, 3], out, row)


@device_function
def reduce_lanes(sums, heads, filter, out, row):
    """Sum the lanes of each filter, into the rows of `out` from `row` on."""
    lanes = width(sums)
    for i in range(out.shape[1] // 2):
        at = 2 * lanes * i
        if filter >= 0:
            out[row, 2 * i], out[row, 2 * i + 1] = total(load(sums, at)), total(load(sums, at + lanes))
        else:
            for lane in range(lanes):
                place = row + heads[lane] - heads[0]
                out[place, 2 * i] += sums[at + lane]
                out[place, 2 * i + 1] += sums[at + lanes + lane]


@kernel
def inverse_transform(dtype_tags, spectra, first, last, constants, steps, buffer, scratch, out):
    """Transform spectra back: `out[j, f]` is lag j of filter f times the length; a job is a register of filters."""
    lanes, length = width(buffer), spectra.shape[1] // 2
    scratch[:] = 1
    scale = load(scratch, 0)
    for job in range(first, last):
        row = job * lanes
        some = min(lanes, spectra.shape[0] - row)
        buffer[:] = 0
        for i in range(length):
            for lane in range(some):
                buffer[2 * lanes * i + lane] = spectra[row + lane, 2 * i]
                buffer[2 * lanes * i + lanes + lane] = spectra[row + lane, 2 * i + 1]
        inverse(buffer, steps, constants)
        address = out.ctypes.data + row * out.itemsize
        store_signal(dtype_tags[0], address, out.strides[0], some, out.shape[0], buffer, length // 4, constants, scale)
