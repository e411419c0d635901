"""Panels that show the symbols of filters: as curves, as turns around the origin, and by their magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from tmm_core.index import toeplitz_symbol

from .filters import FilterReport
from .panels import GREY, thin

__all__ = ["CURVES", "draw_magnitudes", "draw_symbols", "draw_turns", "index_text"]

CURVES = 64
"""Most lags of filters whose symbols are drawn as curves; with more these are blobs, and their turns are drawn."""

_BESIDE, _BELOW = 2.3, 2.9  # radii from one symbol to the next
_MOST_NAMED_ACROSS = 6
_MOST_POINTS = 1 << 16  # of a curve, unless it may turn half as often
_BINS = 128  # of angles, or a quarter of them where symbols are drawn by their turns
_STEP = 1.0  # radians: the most that a symbol may turn between two points for its turns to be counted
_HALVINGS = 40

Curve = tuple[FilterReport, Any]
"""What is known of a filter, and its colour."""


def draw_symbols(axes: Axes, row: Sequence[Curve]) -> None:
    """Draw each symbol around an origin of its own, over its largest value: the index does not see scale."""
    width, height = axes.get_window_extent().size
    # As large as possible: as many beside each other as makes the smaller of the two scales largest.
    across = max(
        range(1, len(row) + 1), key=lambda a: min(width / (_BESIDE * a), height / (_BELOW * -(-len(row) // a)))
    )
    down = -(-len(row) // across)
    places = np.arange(len(row))
    origins = _BESIDE * (places % across) - 1j * _BELOW * (places // across)
    circle = np.append(np.exp(1j * np.linspace(0, 2 * math.pi, 100)), np.nan)  # a gap before the next one
    circles = (origins[:, None] + circle).ravel()
    axes.plot(circles.real, circles.imag, color="#cccccc", linewidth=0.5, zorder=1)
    for origin, (r, colour) in zip(origins, row, strict=True):
        a = _symbol(r.filter.diagonal)
        a = origin + a / (np.abs(a).max() or 1.0)
        style = thin(len(row), len(a))
        style["linewidth"] /= math.sqrt(across)
        axes.plot(a.real, a.imag, color=colour, **style)
        if across <= _MOST_NAMED_ACROSS:
            axes.text(
                origin.real, origin.imag + 1.08, index_text(r), fontsize=8, color=colour, ha="center", va="bottom"
            )
    axes.plot(
        origins.real,
        origins.imag,
        linestyle="none",
        color="black",
        marker="+",
        markersize=22 / across,
        markeredgewidth=1.6,
        path_effects=[withStroke(linewidth=4, foreground="white")],
        zorder=4,
    )
    axes.set_aspect("equal")
    axes.set_xlim(-_BESIDE / 2, _BESIDE * (across - 0.5))
    axes.set_ylim(_BELOW / 2 - _BELOW * down - 0.2, _BELOW / 2 + 0.2)
    axes.set_axis_off()


def draw_turns(axes: Axes, row: Sequence[Curve]) -> None:
    """Draw how often each symbol has turned around the origin, from angle 0 on: at 2 pi that is the index."""
    for r, colour in row:
        angles, turns = _turns(r.filter.diagonal)
        axes.plot(angles / math.pi, turns, color=colour, **thin(len(row), len(angles)))
    axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
    axes.set_xlim(0, 2)
    axes.set_xticks([0, 0.5, 1, 1.5, 2], ["0", "π/2", "π", "3π/2", "2π"])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("frequency (radians per token)")


def _turns(w: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return angles from 0 to 2 pi, and the turns of the symbol up to each, against the clock.

    Where it passes the origin closely, angles are halved until no step can hide a turn.
    """
    w = w / (np.abs(w).max() or 1.0)
    a = _symbol(w)
    angles = np.linspace(0, 2 * math.pi, len(a))
    for _ in range(_HALVINGS):
        wide = np.flatnonzero(np.abs(np.angle(a[1:] * a[:-1].conj())) > _STEP)
        if not len(wide):
            break
        between = (angles[wide] + angles[wide + 1]) / 2
        angles, a = np.insert(angles, wide + 1, between), np.insert(a, wide + 1, toeplitz_symbol(w, between))
    return angles, np.append(0.0, np.cumsum(np.angle(a[1:] * a[:-1].conj()))) / (2 * math.pi)


def draw_magnitudes(axes: Axes, row: Sequence[Curve]) -> None:
    """Draw the magnitudes from angle 0 to pi; where they vary too fast to be drawn, their least and greatest values."""
    lowest, highest = math.inf, 0.0
    for r, colour in row:
        a = np.abs(_symbol(r.filter.diagonal))
        half = a[: len(a) // 2]  # real lags: the other half mirrors it
        bins = half.reshape(min(len(half), _BINS if len(r.filter.diagonal) <= CURVES else _BINS // 4), -1)
        least, greatest = bins.min(axis=1), bins.max(axis=1)
        places = (np.arange(len(bins)) + 0.5) / len(bins)
        axes.fill_between(places, least, greatest, color=colour, alpha=min(0.2, 0.6 / len(row)), linewidth=0)
        axes.plot(places, np.where(least > 0, least, np.nan), color=colour, linewidth=0.9)
        lowest, highest = min(lowest, float(least.min())), max(highest, float(greatest.max()))
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=4))
    axes.yaxis.set_major_formatter("{x:g}")
    if highest > 0:
        axes.set_ylim(max(lowest, 1e-12 * highest) / 1.5, highest * 1.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "π/4", "π/2", "3π/4", "π"])
    axes.set_xlabel("frequency (radians per token)")


def _symbol(w: NDArray[Any]) -> NDArray[Any]:
    """Return the symbol on a closed circle, at as many angles as its curve takes to look smooth."""
    turns = 2 ** math.ceil(math.log2(len(w)))  # at most
    a = toeplitz_symbol(w, points=max(512, min(16 * turns, _MOST_POINTS), 2 * turns))
    return np.append(a, a[0])


def index_text(r: FilterReport) -> str:
    """Return the index of a filter in words."""
    return "no index" if r.index.index is None else str(r.index.index)
