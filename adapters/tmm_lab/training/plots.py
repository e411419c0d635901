"""`training.png`: what a run has learned, as a curve beside its baselines, and what its architecture draws."""

from __future__ import annotations

from ..figures import own_style  # first: it imports Matplotlib, whatever the environment says of its backend

# isort: split
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tmm_adapters.architecture import Heatmap
from tmm_adapters.files import atomic_write

from ..operators.panels import draw_heatmap

__all__ = ["plot_training"]

_INK, _PALE, _GREY = "#1f4e79", "#9bbad9", "#666666"
_MOST_ROW_LABELS = 40
_LABEL_INCHES = 0.18

Curve = Sequence[tuple[int, float]]
"""Points, by tokens trained on."""


def plot_training(
    path: Path,
    *,
    title: str,
    curve: Curve,
    training: Curve,
    baselines: Mapping[str, float],
    heatmap: Heatmap | None,
) -> None:
    """Write the picture of a run.

    Parameters
    ----------
    path : Path
        The PNG file.
    title : str
        Stands above the curve.
    curve : sequence of (int, float)
        Tokens trained on, and held-out bits per byte.
    training : sequence of (int, float)
        Tokens trained on, and bits per byte of the text trained on since the point before.
    baselines : mapping of str to float
        Bits per byte of other models, drawn as lines.
    heatmap : Heatmap, optional
        Drawn beside the curve.
    """
    with own_style(), atomic_write(path) as file:
        _draw(title, curve, training, baselines, heatmap).savefig(file, format="png")


def _draw(title: str, curve: Curve, training: Curve, baselines: Mapping[str, float], heatmap: Heatmap | None) -> Figure:
    height = 4.8 if heatmap is None else min(9.0, max(4.8, 1.6 + 0.2 * len(heatmap.rows)))
    figure = Figure(figsize=(7.0 if heatmap is None else 12.5, height), dpi=110, layout="constrained")
    n_panels = 1 if heatmap is None else 2
    left, *right = figure.subplots(1, n_panels, width_ratios=(1, 1.1)[:n_panels], squeeze=False)[0]
    _draw_curves(left, title, curve, training, baselines, gap=1.3 * _LABEL_INCHES / height)
    if heatmap is not None:
        _draw_heatmap(right[0], heatmap)
    return figure


def _draw_curves(
    axes: Axes, title: str, curve: Curve, training: Curve, baselines: Mapping[str, float], *, gap: float
) -> None:
    """Draw bits per byte against tokens, with the baselines as lines named at their right end.

    Names keep a distance of `gap`, a share of the height.
    """
    most = max((t for t, _ in curve), default=0)
    unit, name_of_unit = (1e6, "millions") if most >= 1e6 else (1e3, "thousands")
    tokens, bits = [t / unit for t, _ in curve], [b for _, b in curve]
    values = [*bits, *baselines.values(), *([min(b for _, b in training)] if training else ())]
    low, high = min(values), max(values)
    margin = 0.06 * max(high - low, 0.1)
    falls = len(bits) < 2 or bits[-1] <= bits[-2]
    room = 2 * gap * (high - low)  # for the last value, named where the curve does not come from
    axes.set_ylim(low - max(margin, room if falls else 0), high + max(margin, 0 if falls else room))
    axes.set_xlim(0, max([*tokens, 1e-3]) * 1.02)
    for (name, value), place in zip(
        baselines.items(),
        _apart(baselines.values(), gap * (high - low)),
        strict=True,
    ):
        axes.axhline(value, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{name} {value:.2f}",
            (1.0, value),
            xytext=(1.02, place),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            color=_GREY,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )
    axes.plot([t / unit for t, _ in training], [b for _, b in training], color=_PALE, linewidth=0.8, label="training")
    axes.plot(tokens, bits, color=_INK, marker="o", markersize=4, linewidth=1.8, zorder=3, label="held-out")
    axes.legend(loc="upper right", fontsize=9, framealpha=0.9, edgecolor="none")
    if bits:
        axes.annotate(
            f"{bits[-1]:.3f}",
            (tokens[-1], bits[-1]),
            xytext=(3, -7 if falls else 7),
            textcoords="offset points",
            ha="right",
            va="top" if falls else "bottom",
            color=_INK,
            fontweight="bold",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            zorder=4,
        )
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(f"training tokens ({name_of_unit})")
    axes.set_ylabel("bits per byte (lower is better)")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_heatmap(axes: Axes, heatmap: Heatmap) -> None:
    """Draw one coloured row a name, on a logarithmic axis that gives the first columns room."""
    axes.set_title(heatmap.title, fontsize=11, loc="left")
    rows, names = heatmap.rows, heatmap.names
    largest = np.abs(rows).max(axis=1, keepdims=True)
    shown = rows / np.where(largest > 0, largest, 1)
    draw_heatmap(axes, shown, label=heatmap.xlabel)
    every = -(-len(names) // _MOST_ROW_LABELS)
    axes.set_yticks(np.arange(0, len(names), every) + 0.5, names[::every], fontsize=8)
    for first in range(heatmap.rows_per_layer, len(rows), heatmap.rows_per_layer):
        axes.axhline(first, color="white", linewidth=2)


def _apart(values: Sequence[float] | Any, gap: float) -> list[float]:
    """Return places for labels near `values` that keep `gap` between neighbours, in the order of `values`."""
    wanted = list(values)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = list(wanted)
    for _ in range(50):  # push overlapping neighbours apart, half each, until all have room
        moved = False
        for below, above in itertools.pairwise(order):
            lack = gap - (places[above] - places[below])
            if lack > 1e-9:
                places[below] -= lack / 2
                places[above] += lack / 2
                moved = True
        if not moved:
            break
    return places
