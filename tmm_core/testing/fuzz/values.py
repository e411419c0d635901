"""Random numbers: of every magnitude that a dtype has, sparse, whole, in channels of different scales, not finite."""

from __future__ import annotations

import math

import numpy as np

from ..oracles import Numbers

__all__ = ["drawn_values", "make_solvable"]

_EXPONENTS = {"float16": (-24, 15), "bfloat16": (-133, 127), "float32": (-149, 127), "float64": (-1000, 1000)}
_EXPONENTS |= {"complex64": _EXPONENTS["float32"], "complex128": _EXPONENTS["float64"]}
"""The smallest and largest numbers that are drawn, as powers of two."""


def drawn_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, finite: bool) -> Numbers:
    """Return numbers that the dtype represents."""
    kind = rng.random()
    small, large = _EXPONENTS[dtype]
    values: Numbers
    if kind < 0.4:
        values = rng.standard_normal(shape)
    elif kind < 0.6:
        values = rng.standard_normal(shape) * 2.0 ** rng.uniform(small, large)
    elif kind < 0.7:
        values = rng.choice([-1, 1], shape) * 2.0 ** rng.uniform(small, large, shape)
    elif kind < 0.8:
        values = rng.standard_normal(shape) * (rng.random(shape) < 0.2)
    elif kind < 0.85:
        values = np.zeros(shape)
    elif kind < 0.95:
        values = rng.integers(-3, 4, shape).astype(float)
    else:  # channels of different scales
        values = rng.standard_normal(shape) * 2.0 ** rng.uniform(small / 2, large / 2, (*shape[:-2], 1, *shape[-1:]))
        values = values.reshape(shape) if values.size == math.prod(shape) else rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.permutation(values.ravel()).reshape(shape)
    with np.errstate(over="ignore", under="ignore"):
        values = _represented(values, dtype)
    values = np.where(np.isfinite(values), values, 1)
    if rng.random() < 0.08 and values.size and not finite:
        values.ravel()[rng.integers(values.size)] = rng.choice([math.nan, math.inf, -math.inf])
    return values


def make_solvable(w: Numbers, dtype: str) -> None:
    """Make filters whose inverse does not grow much, in place."""
    rows = w.reshape(-1, w.shape[-1])
    for row in rows:
        total = float(np.sum(np.abs(row[1:]), where=np.isfinite(row[1:])))
        row[0] = min(max(2.0 * total, 2.0 ** (_EXPONENTS[dtype][0] / 2), abs(row[0]) if np.isfinite(row[0]) else 0),
                     2.0 ** _EXPONENTS[dtype][1])  # fmt: skip
    w[...] = _represented(w, dtype)


def _represented(values: Numbers, dtype: str) -> Numbers:
    """Return the numbers of a dtype next to these, or for bfloat16 those that begin as these do."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)
    return values.astype(dtype).astype(np.complex128 if np.iscomplexobj(values) else np.float64)
