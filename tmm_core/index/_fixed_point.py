"""Numbers with 256 binary places, as integers of any size: what float64 cannot tell from zero; behind `tmm_core.index`.

Complex numbers are pairs; arrays hold Python's integers. Products err by a unit of the last place.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["BITS", "cis", "from_floats", "powers"]

BITS = 256

Integers = npt.NDArray[np.object_]


def from_floats(values: npt.NDArray[np.float64]) -> Integers:
    """Return floats below 1 in magnitude, without what is below the last place."""
    return np.array([int(math.ldexp(value, BITS)) for value in values.tolist()], dtype=object)


def cis(numerator: int, log_denominator: int) -> tuple[int, int]:
    """Return `exp(i pi numerator / 2^log_denominator)`."""
    angle = (numerator * _pi()) >> log_denominator
    term, order = 1 << BITS, 0
    sums = [0, 0]
    while term not in (0, -1):  # -1 is what becomes of a negative number that is shifted
        sums[order % 2] += term if order % 4 < 2 else -term
        order += 1
        term = ((term * angle) >> BITS) // order
    return sums[0], sums[1]


def powers(z: tuple[int, int], count: int) -> tuple[Integers, Integers]:
    """Return the first powers of z, doubling their number step by step."""
    re, im = np.array([1 << BITS], dtype=object), np.array([0], dtype=object)
    x, y = z
    while len(re) < count:
        re, im = np.append(re, (re * x - im * y) >> BITS), np.append(im, (re * y + im * x) >> BITS)
        x, y = (x * x - y * y) >> BITS, (2 * x * y) >> BITS
    return re[:count], im[:count]


@cache
def _pi() -> int:
    """Return pi by Machin's formula, 16 arctan(1/5) - 4 arctan(1/239)."""
    guard = 16
    pi = 0
    for factor, inverse in ((16, 5), (-4, 239)):
        term, order = (factor << (BITS + guard)) // inverse, 1
        while term not in (0, -1):
            pi += term // order if order % 4 == 1 else -(term // order)
            term //= inverse * inverse
            order += 2
    return pi >> guard
