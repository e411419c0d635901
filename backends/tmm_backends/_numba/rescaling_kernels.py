"""Kernels that bring signals into the range of transforms, by powers of two, and results back.

Arrays are `(rows, n, d)`, in C order, in the dtype of computation. A job is one signal: rows of `signals` are (row,
first time, number of times). Arguments `(signals, d)` are those of each channel of a signal. A factor is given by two
halves, one multiplied after the other, since their product may be out of range.
"""

from __future__ import annotations

import numpy as np

from .compile import exact_device_function, exact_kernel

__all__ = ["mark_nan", "measure", "normalize", "restore"]


WIDE = 64
"""Entries that are computed at once, of as many times as they hold, so that few channels fill registers, too."""


@exact_device_function
def wide(x):
    """Return how many entries of x are computed at once: whole times."""
    return max(WIDE // x.shape[2], 1) * x.shape[2]


@exact_device_function
def entries(x, signal):
    """Return the first entry of a signal in all of x, and the one after its last."""
    row, start, n = signal
    begin = (row * x.shape[1] + start) * x.shape[2]
    return begin, begin + n * x.shape[2]


@exact_device_function
def repeat(values, out):
    """Fill `out` with the values of each channel, again and again."""
    for i in range(len(out)):
        out[i] = values[i % len(values)]


@exact_kernel
def measure(dtype_tags, x, signals, first, last, peaks, bad):
    """Find the largest finite magnitude of each channel, and how many of its entries are not finite."""
    largest, d = np.finfo(x.dtype).max, x.shape[2]
    flat, most, count = x.reshape(-1), np.empty(wide(x), x.dtype), np.empty(wide(x), bad.dtype)
    for job in range(first, last):
        begin, end = entries(x, signals[job])
        most[:], count[:] = 0, 0
        for at in range(begin, end, len(most)):
            some = flat[at : min(at + len(most), end)]
            for i in range(len(some)):
                size = abs(some[i])
                finite = size <= largest
                count[i] += not finite
                most[i] = max(most[i], size if finite else 0)
        peaks[job], bad[job] = 0, 0
        for i in range(len(most)):
            peaks[job, i % d] = max(peaks[job, i % d], most[i])
            bad[job, i % d] += count[i]


@exact_kernel
def normalize(dtype_tags, x, signals, first, last, bits, bad, peaks, halves, out, squares):
    """Multiply what is finite by factors, all else by zero, and sum the squares of each channel.

    Numbers below the normal ones, whose `bits` are multiples of the smallest, are read as integers: arithmetic with
    them takes a hundred times as long.
    """
    largest, tiny = np.finfo(x.dtype).max, np.finfo(x.dtype).tiny
    smallest = tiny * np.finfo(x.dtype).eps
    sign = bits.dtype.type(np.iinfo(bits.dtype).min)
    near, far, sums = np.empty(wide(x), x.dtype), np.empty(wide(x), x.dtype), np.empty(wide(x), x.dtype)
    inputs, results, raw = x.reshape(-1), out.reshape(-1), bits.reshape(-1)
    for job in range(first, last):
        begin, end = entries(x, signals[job])
        subnormal = peaks[job].max() < tiny and bad[job].max() == 0
        repeat(halves[0, job], near)
        repeat(halves[1, job], far)
        sums[:] = 0
        if subnormal:
            near[:] *= smallest
        for at in range(begin, end, len(near)):
            stop = min(at + len(near), end)
            some, result, word = inputs[at:stop], results[at:stop], raw[at:stop]
            for i in range(len(some)):
                if subnormal:
                    result[i] = word[i] & ~sign
                    value = -result[i] if word[i] & sign else result[i]
                else:
                    value = some[i] if abs(some[i]) <= largest else 0
                value = value * near[i] * far[i]
                result[i] = value
                sums[i] += value * value
        squares[job] = 0
        for i in range(len(sums)):
            squares[job, i % x.shape[2]] += sums[i]


@exact_kernel
def restore(dtype_tags, y, signals, first, last, bits, halves, noise):
    """Multiply by factors, in place; errors of up to `noise` let nothing overflow that else would not.

    Signals of results below the normal numbers are written as integers, their `bits`: see `normalize`.
    """
    largest, tiny = np.finfo(y.dtype).max, np.finfo(y.dtype).tiny
    smallest, sign = tiny * np.finfo(y.dtype).eps, bits.dtype.type(np.iinfo(bits.dtype).min)
    peaks, errors = np.empty(wide(y), y.dtype), np.empty(wide(y), noise.dtype)
    near, far = np.empty(wide(y), y.dtype), np.empty(wide(y), y.dtype)
    results, raw = y.reshape(-1), bits.reshape(-1)
    for job in range(first, last):
        begin, end = entries(y, signals[job])
        repeat(halves[0, job], near)
        repeat(halves[1, job], far)
        repeat(noise[job], errors)
        peaks[:] = 0
        for at in range(begin, end, len(peaks)):
            some = results[at : min(at + len(peaks), end)]
            for i in range(len(some)):
                peaks[i] = max(peaks[i], abs(some[i]))
        if near.max() <= 1 and (peaks * near * far).max() < tiny:
            near[:] /= smallest
            for at in range(begin, end, len(near)):
                some, word = results[at : min(at + len(near), end)], raw[at : min(at + len(near), end)]
                for i in range(len(some)):
                    size = np.rint(abs(some[i]) * near[i] * far[i])
                    word[i] = word[i] & sign | bits.dtype.type(size)
            continue
        for at in range(begin, end, len(near)):
            some = results[at : min(at + len(near), end)]
            for i in range(len(some)):
                value = some[i]
                result = value * near[i] * far[i]
                if not abs(result) <= largest:
                    least = max(abs(value) - errors[i], 0) * near[i] * far[i]
                    result = np.copysign(largest if least <= largest else np.inf, value)
                some[i] = result


@exact_kernel
def mark_nan(dtype_tags, x, signals, first, last, heads, kernel_size, lags, adjoint, reached, counts, y):
    """Make NaN of the outputs that entries of x reach which are not finite, and lags that are not.

    Those of a head reach what is from `reached[head]` on; `counts` is what `measure` found.
    """
    d, width = x.shape[2], x.shape[2] // heads
    bad, left = np.zeros(d, np.uint8), np.empty(d, np.int64)
    for job in range(first, last):
        row, start, n = signals[job]
        if counts[job].max() == 0 and reached.min() >= n:
            continue
        left[:] = 0
        for i in range(n):
            t = start + (n - 1 - i if adjoint else i)
            for c in range(d):
                bad[c] = not np.isfinite(x[row, t, c])
                left[c] = lags if bad[c] else max(left[c] - 1, 0)
            for near in range(1, kernel_size):
                for c in range(near, d):
                    reader, entry = (c - near, c) if adjoint else (c, c - near)
                    if bad[entry] and reader // width == entry // width:
                        left[reader] = lags
            for c in range(d):
                y[row, t, c] = np.nan if left[c] > 0 or i >= reached[c // width] else y[row, t, c]
