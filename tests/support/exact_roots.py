"""Zeros of polynomials in integers of many bits, in discs that are proven to hold them: what indices are tested with.

Aberth's iteration from NumPy's zeros, then the discs of Smith (1970): with n distinct points z_i and the polynomial's
last coefficient c, the discs around z_i of radius `n |p(z_i)| / |c prod_{j != i} (z_i - z_j)|` hold all n zeros, and as
many of them in each connected part as it has discs.
"""

import math

import numpy as np

BITS = 320
ONE = 1 << BITS


def integers(values):
    return np.array([int(math.ldexp(value, BITS)) for value in np.asarray(values).tolist()], dtype=object)


def product(a, b):
    return (a[0] * b[0] - a[1] * b[1]) >> BITS, (a[0] * b[1] + a[1] * b[0]) >> BITS


def values_and_slopes(w, z):
    """Return the polynomial and its derivative at all z, by Horner's rule."""
    zero = 0 * z[0]
    p, slope = (zero, zero), (zero, zero)
    for re, im in zip(*(part[::-1] for part in w), strict=True):
        slope = product(slope, z)
        slope = slope[0] + p[0], slope[1] + p[1]
        p = product(p, z)
        p = p[0] + re, p[1] + im
    return p, slope


def differences(z):
    """Return all `z_i - z_j`, and 1 on the diagonal: from two floats each, since near ones may differ by little."""
    total = np.eye(len(z[0]), dtype=complex)
    for part, unit in zip(z, (1, 1j), strict=True):
        high = (part / ONE).astype(float)
        low = ((part - integers(high)) / ONE).astype(float)
        total += unit * (np.subtract.outer(high, high) + np.subtract.outer(low, low))
    return total


def quotients(a, b):
    return np.array(
        [
            complex((p * r + q * s) / (r * r + s * s), (q * r - p * s) / (r * r + s * s))
            for p, q, r, s in zip(*a, *b, strict=True)
        ]
    )


def discs(w, z, p, apart):
    """Return how far beyond the unit circle the points z are, and radii of discs around them that hold all zeros."""
    n = len(w) - 1
    size = np.hypot(*(part.astype(float) / ONE for part in z))
    rounding = math.log(4 * n * np.sum(np.abs(w))) - (BITS - 2) * math.log(2) + n * np.log(np.maximum(1, size))
    log_p = np.array([math.log(max(1, math.isqrt(a * a + b * b))) for a, b in zip(*p, strict=True)]) - BITS * math.log(
        2
    )
    log_product = np.sum(np.log(np.abs(apart)), axis=1) + math.log(abs(w[-1]))
    beyond = ((z[0] * z[0] + z[1] * z[1] - ONE * ONE) / ONE**2).astype(float) / (size + 1)
    return beyond, n * np.exp(np.logaddexp(log_p, rounding) - log_product)


def zeros_inside(w):
    """Return how many zeros of `sum_j w[j] u^j` lie inside the unit circle, and how far the nearest point is from it.

    The first and the last lag must not be zero, and the largest of moderate size.
    """
    if len(w) == 1:
        return 0, math.inf
    # Moved a little, so that zeros may leave the real line in pairs.
    start = np.roots(w[::-1]) * (1 + 1e-10 * np.exp(1j * np.arange(len(w) - 1)))
    z = integers(start.real), integers(start.imag)
    exact = integers(np.real(w)), integers(np.imag(w))
    for _ in range(60):
        p, slope = values_and_slopes(exact, z)
        apart = differences(z)
        beyond, radius = discs(w, z, p, apart)
        if np.all(np.abs(beyond) > 2 * radius):
            return int(np.sum(beyond < 0)), float(np.min(np.abs(beyond)))
        newton = quotients(p, slope)
        step = newton / (1 - newton * (np.sum(1 / apart, axis=1) - 1))
        z = z[0] - integers(step.real), z[1] - integers(step.imag)
    raise ArithmeticError("a zero is not proven to be off the circle")


def index_by_zeros(w):
    """Return the index that zeros in many digits say, or None where one is not proven to be off the circle."""
    used = np.flatnonzero(w)
    try:
        return -zeros_inside(w[used[0] : used[-1] + 1])[0] - int(used[0])
    except ArithmeticError:
        return None


def from_zeros(zeros):
    """Return real lags with these zeros and their conjugates, as float64 rounds them."""
    zeros = np.asarray(zeros)
    w = np.real(np.poly(np.concatenate((zeros, np.conj(zeros)))))[::-1]
    return w / np.max(np.abs(w))


def on_circle(angles):
    return np.exp(1j * np.asarray(angles))
