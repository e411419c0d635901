"""How often a polynomial's values on the unit circle wind around zero, with a proof; behind `tmm_core.index`.

The symbol `sum_j w[j] exp(-i j t)` is taken as a Taylor polynomial on each of many arcs, in a variable that runs over
[-1, 1]. The first term is the value at the arc's middle; the other terms' magnitudes and a bound of all rounding are a
radius: on the whole arc the symbol stays in the disc of that radius. Where the disc is well away from zero, no turn can
hide in the arc; where it is not, the arc is cut in two. Near a zero of the symbol its values are small, and float64
runs out: the polynomials of such arcs are made anew from the lags, in integers.

NumPy is imported here, and this module where it is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ._fixed_point import BITS, cis, from_floats, powers
from ._symbols import EPS, Complex, Numbers

__all__ = ["Winding", "winding_number"]

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]

BATCH = 1 << 14
"""Arcs looked at together: enough to be fast, few enough that memory stays with the lags."""
DEPTH = 60
"""Cuts in two after which an arc, of 1e-18 of its first length, is given up."""
TINY = 2.0**-200
"""Relative errors of what the integers give, which have 256 bits, are less."""
BUDGET = 1 << 23
"""Lags times orders that Taylor polynomials are made of in integers before a filter is given up: about two seconds."""


@dataclass(frozen=True)
class Winding:
    """Turns around zero, and a lower bound of the magnitude; or None, and an upper bound where it may be zero."""

    turns: int | None
    bound: float
    angle: float = math.nan


@dataclass(frozen=True)
class _Arcs:
    """Arcs of one length: `terms[r]` are their Taylor terms of order r, wrong by `error` at most, on all the arc."""

    level: int
    grid: Integers  # which of the first arcs they are in, and where in it, 2^62 being half its length
    place: Integers
    terms: Complex
    error: Floats
    exact: bool = False

    def __getitem__(self, chosen: slice | npt.NDArray[np.bool_]) -> _Arcs:
        parts = self.grid[chosen], self.place[chosen], self.terms[:, chosen], self.error[chosen]
        return _Arcs(self.level, *parts, self.exact)


@dataclass(frozen=True)
class _Symbol:
    """The symbol times `exp(i centre t)`: turned back by its mean turning, it is cut less often."""

    w: Numbers

    @cached_property
    def centre(self) -> int:
        size = np.abs(self.w)
        return round(float(np.arange(len(size)) @ size / np.sum(size)))

    @cached_property
    def log_points(self) -> int:
        """The logarithm of the number of first arcs: at least two arcs a lag."""
        return 1 + (len(self.w) - 1).bit_length()

    @cached_property
    def reach(self) -> Floats:
        """The angles by which the lags' phases turn over half an arc."""
        return (np.arange(len(self.w)) - self.centre) * (math.pi / (1 << self.log_points))

    @cached_property
    def weight(self) -> float:
        """A bound of the sum of all Taylor terms' magnitudes, and so of what errors are relative to."""
        return float(np.abs(self.w) @ np.exp(np.abs(self.reach)))

    @cached_property
    def integers(self) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
        return from_floats(self.w.real), from_floats(self.w.imag)

    def orders(self, level: int, tolerance: float) -> int:
        """Return how many Taylor terms leave a remainder below `tolerance` times the sum of the lags' magnitudes."""
        reach = math.ldexp(float(np.max(np.abs(self.reach))), -level)
        order, remainder = 1, reach
        while remainder > tolerance:
            order += 1
            remainder *= reach / order
        return order

    def angle(self, arcs: _Arcs, number: int) -> float:
        """Return where the middle of an arc is, in radians."""
        place = 2 * float(arcs.grid[number]) + float(arcs.place[number]) / 2**62
        return math.ldexp(math.pi * place, -self.log_points)

    def first_arcs(self) -> _Arcs:
        """Return arcs around the points of a uniform grid: an FFT for each order.

        An FFT of 2^p points is a sum over paths of at most p roundings of twiddle factors, products and sums:
        less than 4 EPS p + 8 EPS, times the sum of magnitudes. The rest is for the terms' own rounding.
        """
        points, orders = 1 << self.log_points, self.orders(0, EPS)
        terms = np.empty((orders, points), np.complex128)
        padded = np.zeros(points, self.w.dtype)
        term = self.w
        for order in range(orders):
            padded[: len(term) - self.centre] = term[self.centre :]
            padded[points - self.centre :] = term[: self.centre]
            terms[order] = np.fft.fft(padded)
            terms[order] *= (1, -1j, -1, 1j)[order % 4]
            term = term * self.reach / (order + 1)
        error = np.full(points, EPS * (4 * self.log_points + 16) * self.weight)
        return _Arcs(0, np.arange(points), np.zeros(points, np.int64), terms, error)

    def exact_arcs(self, arcs: _Arcs) -> _Arcs:
        """Return the same arcs with Taylor terms right to all digits of float64, or to 2^-198 of the lags' sum."""
        orders = self.orders(arcs.level, TINY)
        terms = np.empty((orders, len(arcs.grid)), np.complex128)
        scale = np.cumprod(np.append(1.0, math.ldexp(math.pi, -arcs.level) / np.arange(1, orders)))
        scale = scale * np.resize([1, -1j, -1, 1j], orders)
        for i, (grid, place) in enumerate(zip(arcs.grid.tolist(), arcs.place.tolist(), strict=True)):
            terms[:, i] = scale * self._moments(((grid << 63) + place), orders)
        error = EPS * (2 * np.arange(orders) + 2) @ np.abs(terms) + 4 * TINY * self.weight
        return _Arcs(arcs.level, arcs.grid, arcs.place, terms, error, exact=True)

    def _moments(self, place: int, orders: int) -> list[complex]:
        """Return `sum_j w[j] ((j - centre) / points)^r exp(-i (j - centre) t)` for each order r."""
        zr, zi = powers(cis(-place, self.log_points + 62), len(self.w))
        wr, wi = self.integers
        re, im = (wr * zr - wi * zi) >> BITS, (wr * zi + wi * zr) >> BITS
        cr, ci = zr[self.centre], -zi[self.centre]
        re, im = (re * cr - im * ci) >> BITS, (re * ci + im * cr) >> BITS
        lags = np.arange(-self.centre, len(re) - self.centre).astype(object)
        found = []
        for _ in range(orders):
            found.append(complex(sum(re.tolist()) / (1 << BITS), sum(im.tolist()) / (1 << BITS)))
            re, im = (re * lags) >> self.log_points, (im * lags) >> self.log_points
        return found


def winding_number(w: Numbers) -> Winding:
    """Return how often `sum_j w[j] exp(-i j t)` turns around zero, for lags of which the largest is near 1."""
    if len(w) == 1:
        size = float(abs(w[0]))
        return Winding(0, size if size in (abs(w[0].real), abs(w[0].imag)) else size * (1 - EPS))
    symbol = _Symbol(w)
    waiting, settled = [symbol.first_arcs()], []
    margin, budget = math.inf, BUDGET
    while waiting:
        arcs = waiting.pop()  # the last first, so that a hopeless filter is soon given up
        if len(arcs.grid) > BATCH:
            waiting.append(arcs[BATCH:])
            arcs = arcs[:BATCH]
        magnitudes = np.abs(arcs.terms)
        size, spread = magnitudes[0], np.sum(magnitudes[1:], axis=0)
        # Discs of neighbours that meet, both in an angle of less than 90 degrees around their centres as seen from
        # zero, tell which way it is from one centre to the next. The stricter bound on the spread makes margins close.
        clear = (4 * spread <= size) & (spread + arcs.error <= 0.75 * size)
        # Cutting makes an arc clear, or its spread so small that the error is the reason why it is not.
        lost = ~clear & ((arcs.error > 0.4 * (size + spread)) | (arcs.level == DEPTH))
        settled.append((arcs.grid[clear], arcs.place[clear], arcs.terms[0, clear]))
        margin = min(margin, float(np.min((size - spread - arcs.error)[clear], initial=math.inf)))
        if lost.any():
            budget -= int(np.sum(lost)) * len(w) * symbol.orders(arcs.level, TINY)
            if arcs.exact or budget < 0 or arcs.level == DEPTH:
                worst = int(np.argmax(lost))
                return Winding(None, float((size + spread + arcs.error)[worst]), symbol.angle(arcs, worst))
            waiting.append(symbol.exact_arcs(arcs[lost]))
        rest = ~(clear | lost)
        if rest.any():
            waiting.append(_halves(arcs[rest], magnitudes[:, rest]))
    return Winding(_turns(settled) - symbol.centre, margin * (1 - 2.0**-40))


def _turns(settled: list[tuple[Integers, Integers, Complex]]) -> int:
    """Return how often the values at the middles of all arcs, put in order, turn around zero."""
    grid, place, value = (np.concatenate(parts) for parts in zip(*settled, strict=True))
    value = value[np.lexsort((place, grid))]
    return round(float(np.sum(np.angle(np.roll(value, -1) * np.conj(value)))) / (2 * math.pi))


def _halves(arcs: _Arcs, magnitudes: Floats) -> _Arcs:
    """Return the arcs cut in two."""
    error = arcs.error
    orders = len(arcs.terms)
    while orders > 2 and np.all(magnitudes[orders - 1] <= error / 1024):
        orders -= 1
        error = error + magnitudes[orders]
    # Columns of the matrix sum to 1, so that errors do not grow; those of the product are added.
    error = error + EPS * (orders + 2) * np.sum(magnitudes[:orders], axis=0)
    terms = np.ascontiguousarray(arcs.terms[:orders]).view(np.float64)
    both = [(shift @ terms).view(np.complex128) for shift in _shifts(orders)]
    step = 1 << (61 - arcs.level)
    return _Arcs(
        arcs.level + 1,
        np.concatenate((arcs.grid, arcs.grid)),
        np.concatenate((arcs.place - step, arcs.place + step)),
        np.concatenate(both, axis=1),
        np.concatenate((error, error)),
    )


@lru_cache
def _shifts(orders: int) -> tuple[Floats, Floats]:
    """Return the matrices that make Taylor terms of a polynomial's left and right halves from its own."""
    right = np.array([[math.comb(r, s) * 2.0**-r for r in range(orders)] for s in range(orders)])
    signs = (-1.0) ** np.arange(orders)
    return right * signs * signs[:, None], right
