"""Kernels that bring signals into the range of transforms, by powers of two, and results back.

Arrays are `(rows, n, d)`, in C order, in the dtype of computation. A job is one signal: rows of `signals` are (row,
first time, number of times). Arguments `(signals, d)` are those of each channel of a signal. A factor is given by two
halves, one multiplied after the other, since their product may be out of range.
"""

from __future__ import annotations

import numpy as np

from .compile import exact_kernel

__all__ = ["mark_nan", "measure", "normalize", "restore"]


@exact_kernel
def measure(dtype_tags, x, signals, first, last, peaks, bad):
    """Find the largest finite magnitude of each channel, and how many of its entries are not finite."""
    largest = np.finfo(x.dtype).max
    for job in range(first, last):
        row, start, n = signals[job]
        peaks[job], bad[job] = 0, 0
        for t in range(start, start + n):
            for c in range(x.shape[2]):
                size = abs(x[row, t, c])
                finite = size <= largest
                bad[job, c] += not finite
                peaks[job, c] = max(peaks[job, c], size if finite else 0)


@exact_kernel
def normalize(dtype_tags, x, signals, first, last, bits, bad, peaks, halves, out, squares):
    """Multiply what is finite by factors, all else by zero, and sum the squares of each channel.

    Numbers below the normal ones, whose `bits` are multiples of the smallest, are read as integers: arithmetic with
    them takes a hundred times as long.
    """
    largest, tiny = np.finfo(x.dtype).max, np.finfo(x.dtype).tiny
    smallest = tiny * np.finfo(x.dtype).eps
    sign = bits.dtype.type(np.iinfo(bits.dtype).min)
    near = np.empty(x.shape[2], x.dtype)
    for job in range(first, last):
        row, start, n = signals[job]
        squares[job] = 0
        subnormal = peaks[job].max() < tiny and bad[job].max() == 0
        near[:] = halves[0, job]
        if subnormal:
            near[:] *= smallest
        for t in range(start, start + n):
            for c in range(x.shape[2]):
                if subnormal:
                    out[row, t, c] = bits[row, t, c] & ~sign
                    value = -out[row, t, c] if bits[row, t, c] & sign else out[row, t, c]
                else:
                    value = x[row, t, c] if abs(x[row, t, c]) <= largest else 0
                value = value * near[c] * halves[1, job, c]
                out[row, t, c] = value
                squares[job, c] += value * value


@exact_kernel
def restore(dtype_tags, y, signals, first, last, bits, halves, noise):
    """Multiply by factors, in place; errors of up to `noise` let nothing overflow that else would not.

    Signals of results below the normal numbers are written as integers, their `bits`: see `normalize`.
    """
    largest, tiny = np.finfo(y.dtype).max, np.finfo(y.dtype).tiny
    smallest, sign = tiny * np.finfo(y.dtype).eps, bits.dtype.type(np.iinfo(bits.dtype).min)
    peaks, factors = np.empty(y.shape[2], y.dtype), np.empty(y.shape[2], y.dtype)
    for job in range(first, last):
        row, start, n = signals[job]
        peaks[:] = 0
        for t in range(start, start + n):
            for c in range(y.shape[2]):
                peaks[c] = max(peaks[c], abs(y[row, t, c]))
        if halves[0, job].max() <= 1 and (peaks * halves[0, job] * halves[1, job]).max() < tiny:
            factors[:] = halves[0, job] / smallest
            for t in range(start, start + n):
                for c in range(y.shape[2]):
                    size = np.rint(abs(y[row, t, c]) * factors[c] * halves[1, job, c])
                    bits[row, t, c] = bits[row, t, c] & sign | bits.dtype.type(size)
            continue
        for t in range(start, start + n):
            for c in range(y.shape[2]):
                value, near, far = y[row, t, c], halves[0, job, c], halves[1, job, c]
                result = value * near * far
                if not abs(result) <= largest:
                    least = max(abs(value) - noise[job, c], 0) * near * far
                    result = np.copysign(largest if least <= largest else np.inf, value)
                y[row, t, c] = result


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
