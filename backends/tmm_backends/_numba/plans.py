"""Plans of transforms: for a length, the passes, their order and their constants.

A causal product is the real part of a product of polynomials modulo z^N - i: what wraps around is multiplied by i, so
it is imaginary. The modulus z^(rm) - c^r is the product of the r moduli z^m - c w^k, w = exp(2 pi i / r). So a
polynomial of N coefficients is split by one radix after another until its values at the N roots are there; products of
values are joined in the opposite order. All coefficients of a block have the same constants c, c^2, …, and nothing is
reordered: values stay in the order in which splitting leaves them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["JOIN", "LEAF", "LEAVES", "SHORTEST", "SPLIT", "TransformPlan", "fast_length", "plan"]

Ints = NDArray[np.int64]

LEAF = 8
"""Coefficients of a leaf, a block that is split, multiplied and joined in registers."""

SHORTEST = 4 * LEAF
"""The shortest length of a transform: an outermost pass of radix 4, and leaves."""

SPLIT, LEAVES, JOIN = 0, 1, 2
"""Kinds of step: split a block into parts, multiply a run of leaves, join the parts of a block."""


@dataclass(frozen=True)
class TransformPlan:
    """The steps of a transform of one length, in a buffer of `length` complex vectors."""

    length: int
    steps: NDArray[np.int64]
    """Rows of: kind, radix (or number of leaves), first entry, entries of a part, first constant."""
    constants: NDArray[np.floating]
    """Complex numbers as pairs of reals. The first three belong to the outermost pass, of radix 4, which is no step: it
    reads the signal and writes the result."""


def fast_length(n: int) -> int:
    """Return the smallest length >= n of the form 2^a, 2^a 3, 2^a 5, 2^a 9 or 2^a 15 that can be transformed.

    >>> [fast_length(n) for n in (1, 1021, 1025, 1153, 1500)]
    [32, 1024, 1152, 1280, 1536]
    """
    power = max(SHORTEST, 1 << (n - 1).bit_length())  # and of it 9, 10, 12 and 15 sixteenths may be long enough
    for sixteenths in (9, 10, 12, 15):
        length = power * sixteenths // 16
        if length >= n and length % SHORTEST == 0:
            return length
    return power


def plan(length: int, dtype: np.dtype[Any]) -> TransformPlan:
    """Return the plan for a fast length, with constants of `dtype`: 8 to 16 bytes a coefficient, cached."""
    return (_short_plan if length <= 1 << 14 else _long_plan)(length, dtype)


def _plan(length: int, dtype: np.dtype[Any]) -> TransformPlan:
    radices = _radices(length // 4)
    turn = 4 * length  # phases are integers: parts of a turn
    phases = np.asarray([length])  # of i, in z^N - i: a quarter of a turn
    constants, starts = [], [0]
    for radix in (4, *radices, LEAF):
        constants.append(_constants(phases, radix, turn))
        phases = _parts(phases, radix, turn)
        starts.append(starts[-1] + constants[-1].size)
    starts = starts[1:-1]
    rows: list[tuple[int, int, int, int, int]] = []

    def walk(level: int, block: int, first: int, size: int) -> None:
        """Append the steps of one block, depth first, so that what a pass wrote is still in the cache."""
        radix = radices[level]
        part = size // radix
        row = (radix, first, part, starts[level] + block * (radix - 1))
        rows.append((SPLIT, *row))
        if level + 1 == len(radices):
            rows.append((LEAVES, radix, first, LEAF, starts[-1] + block * radix * (LEAF - 1)))
        else:
            for k in range(radix):
                walk(level + 1, block * radix + k, first + k * part, part)
        rows.append((JOIN, *row))

    quarter = length // 4
    if radices:
        for k in range(4):
            walk(0, k, k * quarter, quarter)
    else:
        rows.append((LEAVES, 4, 0, LEAF, starts[-1]))
    numbers = _unit(np.concatenate([c.ravel() for c in constants]), turn)
    return TransformPlan(length, np.asarray(rows, np.int64), numbers.astype(dtype))


_short_plan, _long_plan = functools.lru_cache(maxsize=64)(_plan), functools.lru_cache(maxsize=4)(_plan)


def _radices(quarter: int) -> list[int]:
    """Return the radices of the passes between the outermost one and the leaves.

    The larger radices come first. Radix 16, and leaves of 16, need more registers than there are: radices 8 and 4 took
    0.8 to 0.9 of their time at n = 512 to 8192.
    """
    radices = []
    for odd in (3, 5):
        while quarter % odd == 0:
            radices.append(odd)
            quarter //= odd
    bits = (quarter // LEAF).bit_length() - 1
    if bits == 1:
        return [*radices, 2]
    fours = -bits % 3
    return radices + [8] * ((bits - 2 * fours) // 3) + [4] * fours


def _parts(phases: Ints, radix: int, turn: int) -> Ints:
    """Return the phases of the moduli that a pass splits those of `phases` into, in the order of the parts."""
    if radix == 8:
        return _parts(_parts(phases, 2, turn), 4, turn)
    return ((phases[:, None] + turn * np.arange(radix)) // radix).ravel()


def _constants(phases: Ints, radix: int, turn: int) -> Ints:
    """Return, for each block, the phases of c, c^2, …, c^(radix - 1); radix 8 is radix 2 of radix 4."""
    if radix != 8:
        return phases[:, None] // radix * np.arange(1, radix)
    inner = _constants(_parts(phases, 2, turn), 4, turn).reshape(len(phases), 6)
    return np.concatenate([_constants(phases, 2, turn), inner], axis=1)


def _unit(phases: Ints, turn: int) -> NDArray[np.float64]:
    """Return exp(2 pi i phases / turn) as pairs, correct to a unit in the last place.

    Each is a power of i times exp(i a), where a is at most an eighth of a turn.
    """
    quarters = (8 * phases + turn) // (2 * turn)
    angle = 2 * np.pi * ((4 * phases - quarters * turn) / (4 * turn))
    z = np.exp(1j * angle) * np.asarray([1, 1j, -1, -1j])[quarters % 4]
    pairs: NDArray[np.float64] = z.view(np.float64)
    return pairs
