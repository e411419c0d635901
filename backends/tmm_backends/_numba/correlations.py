"""Kernels of the correlation: spectra are added over signals and channels, and transformed back once.

Chunks of jobs are fixed by the shapes alone, each is added up by one thread, and chunks in their order: the result is
the same to the bit for any number of threads.
"""

from __future__ import annotations

import numpy as np

from .compile import kernel, part
from .lanes import load, store, width
from .passes import enter, forward, inverse, leave
from .products import safe

__all__ = ["correlate", "lags"]


@part
def add_conjugate_products(total, x, g):
    """Add `conj(x) g`, entry by entry."""
    w = width(total)
    for i in range(0, total.shape[0], 2 * w):
        x_re, x_im, g_re, g_im = load(x, i), load(x, i + w), load(g, i), load(g, i + w)
        store(total, i, load(total, i) + (x_re * g_re + x_im * g_im))
        store(total, i + w, load(total, i + w) + (x_re * g_im - x_im * g_re))


@kernel
def correlate(
    kind, x, x_time, x_lane, g, g_time, g_lane, signals, groups, heads, chunks, first, last,
    constants, steps, high, x_buffer, g_buffer, total, notes, peaks, out,
):  # fmt: skip
    """Add up chunks: rows of (first signal, last signal, group, first row of `out`).

    `out` gets a spectrum for each filter of the group. `peaks[signal, group]` gets, lane by lane, the product of the
    largest magnitudes, or NaN where one is above `high` or not finite, whose signal then is left out.
    """
    quarter = total.shape[0] // (8 * width(total))
    for chunk in range(first, last):
        begin, end, group, row = chunks[chunk]
        x_group, g_group, channels, filter = groups[group]
        total[:] = 0
        for signal in range(begin, end):
            x_at, g_at, n = signals[signal]
            x_peak = enter(kind, x + x_at + x_group, x_time, x_lane, channels, n, x_buffer, quarter, constants)
            ok = safe(x_peak, 0, high, notes)
            peaks[signal, group] = notes
            g_peak = enter(kind, g + g_at + g_group, g_time, g_lane, channels, n, g_buffer, quarter, constants)
            ok = safe(g_peak, 0, high, notes) and ok
            peaks[signal, group] *= notes
            if not ok:
                peaks[signal, group] = np.nan
                continue
            forward(x_buffer, steps, constants)
            forward(g_buffer, steps, constants)
            add_conjugate_products(total, x_buffer, g_buffer)
        gather(total, heads[group], filter, out, row)


@part
def gather(total, heads, filter, out, row):
    """Add up the lanes of each filter, from row `row` on of `out`."""
    lanes = width(total)
    for i in range(out.shape[1] // 2):
        at = 2 * lanes * i
        if filter >= 0:
            re = im = 0 * total[0]
            for lane in range(lanes):
                re += total[at + lane]
                im += total[at + lanes + lane]
            out[row, 2 * i], out[row, 2 * i + 1] = re, im
        else:
            for lane in range(lanes):
                place = row + heads[lane] - heads[0]
                out[place, 2 * i] += total[at + lane]
                out[place, 2 * i + 1] += total[at + lanes + lane]


@kernel
def lags(kind, spectra, first, last, constants, steps, buffer, notes, out):
    """Transform spectra back: `out[j, f]` is lag j of filter f; a job is a register full of filters."""
    lanes, length = width(buffer), spectra.shape[1] // 2
    notes[:] = 1 / length
    scale = load(notes, 0)
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
        leave(kind, address, out.strides[0], some, out.shape[0], buffer, length // 4, constants, scale)
