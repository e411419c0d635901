"""Butterflies: the values of small polynomials at roots, and back, for any type of number.

The numbers need `+`, `-`, `*`, `times_i()`, `conjugate()` and `scaled(real)`; `intrinsics` passes vectors of LLVM.

`split(x, constants)` returns x[0] + x[1] z + … + x[r-1] z^(r-1) modulo z - c, z - c w, …, z - c w^(r-1), that is, its
values at the r-th roots of c^r, with w = exp(2 pi i / r); `join` is its inverse times r. The constants (twiddle
factors) are c, c^2, …, c^(r-1). Radix 8 is computed as radix 2 of radix 4: its constants are the one of radix 2, then
three for each half, and its values come in the order that this gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["join", "split"]


def split(x: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
    """Return the values of a polynomial."""
    if len(x) == 8:
        outer, inner = constants[:1], (constants[1:4], constants[4:])
        pairs = [split(x[q::4], outer) for q in range(4)]
        return [value for half in (0, 1) for value in split([pair[half] for pair in pairs], inner[half])]
    return _values([x[0], *(c * a for c, a in zip(constants, x[1:], strict=True))])


def join(x: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
    """Return r times the coefficients of the polynomial with these values."""
    if len(x) == 8:
        outer, inner = constants[:1], (constants[1:4], constants[4:])
        halves = [join(x[4 * half : 4 * half + 4], inner[half]) for half in (0, 1)]
        pairs = [join([halves[0][q], halves[1][q]], outer) for q in range(4)]
        return [pairs[q][half] for half in (0, 1) for q in range(4)]
    # The values at the conjugate roots are those in the opposite order.
    first, *others = _values([x[0], *x[:0:-1]])
    return [first, *(c.conjugate() * a for c, a in zip(constants, others, strict=True))]


def _values(x: list[Any]) -> list[Any]:
    """Return sum_l x[l] w^(k l) for each k."""
    if len(x) == 2:
        return [x[0] + x[1], x[0] - x[1]]
    if len(x) == 4:
        even, odd, even_i, odd_i = x[0] + x[2], x[1] + x[3], x[0] - x[2], (x[1] - x[3]).times_i()
        return [even + odd, even_i + odd_i, even - odd, even_i - odd_i]
    if len(x) == 3:
        near, turned = x[1] + x[2], (x[1] - x[2]).scaled(math.sqrt(0.75)).times_i()
        half = x[0] - near.scaled(0.5)
        return [x[0] + near, half + turned, half - turned]
    if len(x) == 5:
        (c1, c2), (s1, s2) = _turns(math.cos), _turns(math.sin)
        a, b, c, d = x[1] + x[4], x[2] + x[3], x[1] - x[4], x[2] - x[3]
        first, second = x[0] + a.scaled(c1) + b.scaled(c2), x[0] + a.scaled(c2) + b.scaled(c1)
        turned1 = (c.scaled(s1) + d.scaled(s2)).times_i()
        turned2 = (c.scaled(s2) - d.scaled(s1)).times_i()
        return [x[0] + a + b, first + turned1, second + turned2, second - turned2, first - turned1]
    raise ValueError(f"no formula for radix {len(x)}")


def _turns(function: Any) -> tuple[float, float]:
    return function(2 * math.pi / 5), function(4 * math.pi / 5)
