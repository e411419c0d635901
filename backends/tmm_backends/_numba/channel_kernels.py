"""Kernels of product and correlation for filters that read neighbouring channels of their head (kernel size m > 1).

A signal is transformed once, and the m rows of a filter are summed in the frequency domain. A job is one signal of one
head, whose registers of channels are computed one after another: `window`, `(N, 2, channels)`, holds the real and
imaginary parts of the spectra of a register and of the neighbours of its channels that the filter reads. Other
arguments are as in `product_kernels`.
"""

from __future__ import annotations

import numpy as np

from .compile import device_function, kernel
from .lanes import broadcast, load, store, total, width, zeros
from .passes import forward, inverse, load_signal, store_signal
from .product_kernels import in_range

__all__ = ["correlate_across_channels", "product_across_channels"]


@device_function
def shift_window(window, buffer, above):
    """Shift the window by a register: down, with the spectra of a buffer at its upper end, or up, with them below."""
    lanes = width(buffer)
    rest = window.shape[2] - lanes
    flat = window.reshape(-1)
    for i in range(window.shape[0]):
        for half in range(2):
            row = (2 * i + half) * window.shape[2]
            new = load(buffer, (2 * i + half) * lanes)
            if above:
                for at in range(row, row + rest, lanes):
                    store(flat, at, load(flat, at + lanes))
                store(flat, row + rest, new)
            else:
                for at in range(row + rest, row, -lanes):
                    store(flat, at, load(flat, at - lanes))
                store(flat, row, new)


@device_function
def filter_window(window, buffer, filters, first, kernel_size, below):
    """Fill the buffer with the sum over r < m of `filters[first + r]` times the spectra that row r of the filter reads.

    These are the channels m - 1 - r below the output, or as many above it for the adjoint (not `below`).
    """
    lanes, flat = width(buffer), window.reshape(-1)
    for i in range(window.shape[0]):
        re, im = zeros(buffer), zeros(buffer)
        row = 2 * i * window.shape[2]
        for r in range(kernel_size):
            at = row + (window.shape[2] - lanes - (kernel_size - 1 - r) if below else kernel_size - 1 - r)
            f_re, f_im = broadcast(filters[first + r], 2 * i), broadcast(filters[first + r], 2 * i + 1)
            x_re, x_im = load(flat, at), load(flat, at + window.shape[2])
            re = re + (f_re * x_re - f_im * x_im)
            im = im + (f_re * x_im + f_im * x_re)
        store(buffer, 2 * i * lanes, re)
        store(buffer, (2 * i + 1) * lanes, im)


@kernel
def product_across_channels(
    dtype_tags, x, x_time, x_lane, y, y_time, y_lane, signals, heads, channels, first, last,
    filters, kernel_size, scales, adjoint, packed, constants, steps, low, high, buffer, window, scratch, unsafe,
):  # fmt: skip
    """Multiply by transforms; jobs with magnitudes out of range are marked in `unsafe`.

    There are `heads` heads of `channels` channels; `packed` says that channels lie side by side in memory.
    """
    lanes, quarter = width(buffer), filters.shape[1] // 8
    registers = -(-channels // lanes)
    for job in range(first, last):
        signal, head = job // heads, job % heads
        x_at, y_at, n = signals[signal]
        window[:] = 0
        scratch[:] = scales[head]
        scale = load(scratch, 0)
        for step in range(registers):
            register = registers - 1 - step if adjoint else step
            channel = head * channels + register * lanes
            count = min(lanes, channels - register * lanes)
            if packed and count == lanes:
                count = 0
            peak = load_signal(
                dtype_tags[0], x + x_at + channel * x_lane, x_time, x_lane, count, n, buffer, quarter, constants
            )
            if not in_range(peak, low, high, scratch):
                unsafe[job] = True
                break
            forward(buffer, steps, constants)
            shift_window(window, buffer, not adjoint)
            filter_window(window, buffer, filters, head * kernel_size, kernel_size, not adjoint)
            inverse(buffer, steps, constants)
            store_signal(
                dtype_tags[1], y + y_at + channel * y_lane, y_time, count, n, buffer, quarter, constants, scale
            )


@kernel
def correlate_across_channels(
    dtype_tags, x, x_time, x_lane, g, g_time, g_lane, signals, heads, channels, kernel_size, chunks, first, last,
    packed_x, packed_g, constants, steps, low, high, x_buffer, g_buffer, window, totals, scratch, peaks, out,
):  # fmt: skip
    """Sum chunks: rows of (first signal, last signal, head, head + 1, first of the `kernel` rows of `out`).

    `peaks[chunk]` gets the sum of the products of the largest magnitudes; NaN where one is out of range.
    """
    lanes, quarter = width(x_buffer), x_buffer.shape[0] // (8 * width(x_buffer))
    registers, flat = -(-channels // lanes), window.reshape(-1)
    for chunk in range(first, last):
        begin, end, head, _, row = chunks[chunk]
        totals[:] = 0
        for signal in range(begin, end):
            x_at, g_at, n = signals[signal]
            window[:] = 0
            for register in range(registers):
                channel = head * channels + register * lanes
                count = min(lanes, channels - register * lanes)
                full = count == lanes
                x_count, g_count = 0 if full and packed_x else count, 0 if full and packed_g else count
                peak = load_signal(
                    dtype_tags[0], x + x_at + channel * x_lane, x_time, x_lane, x_count, n, x_buffer, quarter, constants
                )
                ok = in_range(peak, low, high, scratch)
                x_peak = scratch.max()
                peak = load_signal(
                    dtype_tags[1], g + g_at + channel * g_lane, g_time, g_lane, g_count, n, g_buffer, quarter, constants
                )
                ok = in_range(peak, low, high, scratch) and ok
                peaks[chunk] += np.float64(x_peak) * scratch.max() if ok else np.nan
                if not ok:
                    break
                forward(x_buffer, steps, constants)
                forward(g_buffer, steps, constants)
                shift_window(window, x_buffer, True)
                for i in range(window.shape[0]):
                    g_re, g_im = load(g_buffer, 2 * i * lanes), load(g_buffer, (2 * i + 1) * lanes)
                    for r in range(kernel_size):
                        at = (2 * i + 1) * window.shape[2] - lanes - (kernel_size - 1 - r)
                        x_re, x_im = load(flat, at), load(flat, at + window.shape[2])
                        place = 2 * i * lanes
                        sums = totals[r]
                        store(sums, place, load(sums, place) + (x_re * g_re + x_im * g_im))
                        store(sums, place + lanes, load(sums, place + lanes) + (x_re * g_im - x_im * g_re))
        for r in range(kernel_size):
            for i in range(window.shape[0]):
                at = 2 * i * lanes
                out[row + r, 2 * i], out[row + r, 2 * i + 1] = (
                    total(load(totals[r], at)),
                    total(load(totals[r], at + lanes)),
                )
