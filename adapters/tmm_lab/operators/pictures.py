"""Pictures of a model's Toeplitz operators: symbol, lags and singular values, and how a training run moved them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from .filters import Filter, FilterReport
from .panels import GREY, colours_of, draw_heatmap, draw_key, draw_rows, lag_axis, thin
from .symbol_panels import CURVES, draw_magnitudes, draw_symbols, draw_turns, index_text
from .tables import WHAT_TO_SEE, WHAT_TO_SEE_OVER_TIME

__all__ = ["plot_filters", "plot_over_time"]

_HEADS_A_ROW = 8
_MOST_PARTED = 512  # filters whose layers are parted into several rows
_EPS = float(np.finfo(np.float64).eps)

Row = list[FilterReport]


def plot_filters(path: Path, reports: Sequence[FilterReport], *, title: str) -> None:
    """Draw a row a layer: its heads with their indices, symbols, lags, magnitudes and singular values.

    Parameters
    ----------
    path : Path
        A PNG, with all layers below each other, or a PDF, with four rows a page.
    reports : sequence of FilterReport
        From `operators.analyse`.
    title : str
        Stands above.

    Raises
    ------
    ValueError, FileNotFoundError, IsADirectoryError
        As `panels.require_picture`.
    OSError
        If the file cannot be written.
    """
    two = any(r.filter.product == 2 for r in reports)
    curves = len(reports[0].filter.diagonal) <= CURVES
    rows = [[reports[i] for i in row] for row in _rows([r.filter for r in reports])]

    def draw(axes: Sequence[Axes], row: Row) -> None:
        colours = colours_of(len(row))
        draw_key(axes[0], _name(row[0].filter, two), {r.filter.head: index_text(r) for r in row}, colours)
        finite = [(r, colour) for r, colour in zip(row, colours, strict=True) if r.section is not None]
        if not finite:
            for ax in axes[1:]:
                ax.set_axis_off()
            axes[1].text(0, 0.5, "no finite lags", transform=axes[1].transAxes, color=GREY)
            return
        (draw_symbols if curves else draw_turns)(axes[1], finite)
        _draw_lags(axes[2], finite)
        draw_magnitudes(axes[3], finite)
        _draw_singular_values(axes[4], finite)

    columns = [
        ("index", 0.085),
        ("symbol of each head" if curves else "turns of the symbol around 0", 0.225),
        ("lags", 0.235),
        ("magnitude of the symbol", 0.22),
        ("singular values", 0.218),
    ]
    draw_rows(path, rows, draw, columns=columns, title=f"{title}\n{WHAT_TO_SEE}")


def plot_over_time(
    path: Path,
    steps: Sequence[int],
    filters: Sequence[Sequence[Filter]],
    indices: NDArray[Any],
    vanishing: NDArray[Any],
    *,
    title: str,
) -> None:
    """Draw a row a layer: over the steps of a run each head's index, vanishing singular values, and lags.

    Parameters
    ----------
    path : Path
        A PNG or a PDF, as for `plot_filters`.
    steps : sequence of int
        Optimiser steps, ascending.
    filters : sequence of sequences of Filter
        At each step, all filters of the model.
    indices : array of float, (steps, filters)
        Fredholm indices; NaN where there is none.
    vanishing : array of float, (steps, filters)
        Singular values that vanish, from `operators.vanishing`; NaN where it is not known.
    title : str
        Stands above.

    Raises
    ------
    ValueError, FileNotFoundError, IsADirectoryError, OSError
        As `plot_filters`.
    """
    two = any(f.product == 2 for f in filters[0])
    rows = _rows(filters[0])
    lags = np.stack([[f.diagonal for f in now] for now in filters])  # (steps, filters, k)

    def draw(axes: Sequence[Axes], row: list[int]) -> None:
        colours = colours_of(len(row))
        texts = {filters[0][i].head: f"{_whole(indices[0, i])} to {_whole(indices[-1, i])}" for i in row}
        draw_key(axes[0], _name(filters[0][row[0]], two), texts, colours)
        for ax, numbers in zip(axes[1:3], (indices, vanishing), strict=True):
            for place, (i, colour) in enumerate(zip(row, colours, strict=True)):
                aside = 0.3 * (place / max(len(row) - 1, 1) - 0.5)  # heads of one number stand beside each other
                ax.plot(steps, numbers[:, i] + aside, color=colour, marker="o", markersize=3, linewidth=1)
            ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            ax.set_xlabel("step")
        _draw_lags_over_time(axes[3], lags[:, row], [filters[0][i].head for i in row])

    columns = [
        ("index", 0.11),
        ("index at each evaluation", 0.265),
        ("singular values that vanish", 0.235),
        ("lags of each head, over their largest; time runs down", 0.375),
    ]
    draw_rows(path, rows, draw, columns=columns, title=f"{title}\n{WHAT_TO_SEE_OVER_TIME}")


def _rows(filters: Sequence[Filter]) -> list[list[int]]:
    """Return which filters share a row: those of a layer, but no more than a reader tells apart where rows are few."""
    layers = [
        list(group) for _, group in groupby(range(len(filters)), lambda i: (filters[i].layer, filters[i].product))
    ]
    if len(filters) > _MOST_PARTED:
        return layers
    return [layer[first : first + _HEADS_A_ROW] for layer in layers for first in range(0, len(layer), _HEADS_A_ROW)]


def _draw_lags(axes: Axes, row: Sequence[tuple[FilterReport, Any]]) -> None:
    for r, colour in row:
        w = r.filter.diagonal
        axes.plot(
            np.arange(1, len(w) + 1), w, color=colour, marker="." if len(w) <= 64 else None, **thin(len(row), len(w))
        )
    axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
    lag_axis(axes, max(len(r.filter.diagonal) for r, _ in row), edge=0.9)
    axes.margins(y=0.08)


def _draw_singular_values(axes: Axes, row: Sequence[tuple[FilterReport, Any]]) -> None:
    """Draw singular values from the smallest on, on a logarithmic axis that shows the few that an index is about."""
    sections = [r.section for r, _ in row if r.section is not None]
    n = sections[0].n
    largest = max((s.largest for s in sections if not math.isnan(s.largest)), default=0.0) or 1.0
    band = n * _EPS * largest
    floor, lowest = 1e-3 * band, largest
    for section, (_, colour) in zip(sections, row, strict=True):
        values = section.singular_values
        if values is None:
            places, rising = np.asarray([1, n]), np.asarray([section.smallest, section.largest])
        else:
            places, rising = np.arange(1, n + 1), values[::-1]
        axes.plot(places, np.maximum(rising, floor), color=colour, marker=".", markersize=3, **thin(len(row), n))
        lowest = float(np.fmin(lowest, rising[0]))  # NaN where it was not found
    axes.set_yscale("log")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:g}")  # typesetting powers of ten would take seconds for 16 layers
    if lowest <= band:
        axes.axhspan(floor / 3, band, color="#dddddd", zorder=0, linewidth=0)
        axes.text(0.98, 0.03, "0 in float64", transform=axes.transAxes, ha="right", fontsize=7.5, color=GREY)
    axes.set_ylim(floor / 3 if lowest <= band else lowest / 1.5, largest * 1.8)
    axes.set_xlim(0.9, max(n, 2) * 1.1)
    ends = "" if sections[0].singular_values is not None else ", the two ends alone"
    axes.set_xlabel(f"k-th smallest of n = {n}{ends}")


def _draw_lags_over_time(axes: Axes, lags: NDArray[Any], heads: Sequence[int]) -> None:
    """Draw the lags (steps, heads, k): a band a head, in which time runs down."""
    n_steps, n_heads, k = lags.shape
    lags = np.where(np.isfinite(lags), lags, np.nan)
    largest = np.abs(np.nan_to_num(lags)).max(axis=(0, 2), keepdims=True)
    shown = (lags / np.where(largest > 0, largest, 1)).transpose(1, 0, 2).reshape(-1, k)
    draw_heatmap(axes, shown)
    for head in range(1, n_heads):
        axes.axhline(head * n_steps, color="black", linewidth=0.5)
    every = -(-n_heads // 16)
    axes.set_yticks((np.arange(0, n_heads, every) + 0.5) * n_steps, list(map(str, heads[::every])))
    axes.set_ylabel("head", labelpad=5)


def _name(f: Filter, two_products: bool) -> str:
    """Return what to call a filter's layer."""
    return f"layer {f.layer}" + (f", T{f.product}" if two_products else "")


def _whole(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0f}"
