"""Symbols of filters in float64, and filters whose symbol certainly has a zero; behind `tmm_core.index`.

NumPy is imported here, and this module where it is needed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EPS", "Complex", "Numbers", "at_angles", "normalised", "on_grid", "scaled", "zero_on_circle"]

Numbers = npt.NDArray[Any]
"""Real or complex, in double precision."""
Complex = npt.NDArray[np.complex128]

EPS = 2.0**-52
PHASES = 1 << 18
"""Phases made together where a symbol is summed at given angles."""


def normalised(w: Numbers) -> tuple[Numbers, int]:
    """Return w over a power of two, the largest part of an entry being in [1/2, 1), and that power."""
    parts = w.view(np.float64)
    _, exponent = math.frexp(float(np.max(np.abs(parts))))
    return np.ldexp(parts, -exponent).view(w.dtype), exponent


def scaled(values: Complex, exponent: int) -> Complex:
    """Return values times a power of two; what float64 cannot hold is infinite."""
    with np.errstate(over="ignore"):
        return np.ldexp(values.view(np.float64), exponent).view(np.complex128)


def on_grid(w: Numbers, points: int) -> Complex:
    """Return `sum_j w[j] exp(-i j t)` for t = 2 pi l / points."""
    turns = -(-w.shape[-1] // points)  # lags that lie a turn apart meet the same phases
    padded = np.zeros((*w.shape[:-1], turns * points), w.dtype)
    padded[..., : w.shape[-1]] = w
    return np.fft.fft(np.sum(padded.reshape(*w.shape[:-1], turns, points), axis=-2))


def at_angles(w: Numbers, angles: npt.NDArray[np.float64]) -> Complex:
    """Return `sum_j w[j] exp(-i j t)` for each of the angles t, on a last axis."""
    high = angles.astype(np.float32).astype(np.float64)  # of so few digits that its product with a lag is exact
    total = np.zeros((*w.shape[:-1], len(angles)), np.complex128)
    step = max(1, PHASES // max(1, len(angles)))
    for start in range(0, w.shape[-1], step):
        block = w[..., start : start + step]
        lags = np.arange(start, start + block.shape[-1])[:, None]
        total += block @ (np.exp(-1j * (lags * high)) * np.exp(-1j * (lags * (angles - high))))
    return total


def zero_on_circle(w: Numbers) -> str | None:
    """Return where the symbol of w is certainly zero, or None where that is not known; w begins with a lag not zero."""
    signs = (-1.0) ** np.arange(len(w))
    for lags, place in ((w, "at theta = 0"), (w * signs, "at theta = pi")):
        if _sums_to_zero(lags.real) and _sums_to_zero(lags.imag):
            return place
    mirrored = np.conj(w[::-1])
    if np.array_equal(w, mirrored) and _changes_sign(w):
        return "where it changes its sign, as those of symmetric filters do"
    if np.array_equal(w, -mirrored) and _changes_sign(1j * w):
        return "where it changes its sign, as those of antisymmetric filters do"
    return None


def _sums_to_zero(values: npt.NDArray[np.float64]) -> bool:
    """Return whether numbers sum to zero exactly; scaled and rounded first, which is quick and seldom gives zero."""
    if not np.any(values):
        return True
    return math.fsum(normalised(values)[0].tolist()) == 0 and sum(map(Fraction, values.tolist())) == 0


def _changes_sign(w: Numbers) -> bool:
    """Return whether the symbol times `exp(i (k-1)/2 t)`, which is real for symmetric w, certainly has both signs."""
    w, _ = normalised(w)
    points = 4 << (len(w) - 1).bit_length()
    halves = np.arange(points) * (len(w) - 1) % (2 * points)
    values = (on_grid(w, points) * np.exp(1j * math.pi / points * halves)).real
    error = EPS * (4 * math.log2(points) + 20) * float(np.sum(np.abs(w)))
    return bool(np.any(values > error) and np.any(values < -error))
