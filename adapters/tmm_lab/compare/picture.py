"""The picture of a comparison: held-out bits per byte against each account of what a model costs."""

from __future__ import annotations

from ..figures import own_style  # first: it imports Matplotlib, whatever the environment says of its backend

# isort: split
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from tmm_adapters.files import atomic_write

from ..operators.panels import GREY, colours_of
from .results import Entry, Results

__all__ = ["draw_comparison"]


def draw_comparison(path: Path, results: Results) -> None:
    """Write a PNG: curves against tokens, FLOPs and seconds, and trained models against parameters and memory.

    Bands and bars reach from the lowest to the highest seed. Lower is better.
    """
    with own_style(), atomic_write(path) as file:
        _figure(results).savefig(file, format="png")


def _figure(results: Results) -> Figure:
    figure = Figure(figsize=(16.0, 8.6), dpi=110, layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    colours = colours_of(len(results.entries))
    for entry, colour in zip(results.entries, colours, strict=True):
        tokens, bits = _curves(entry)
        reference = entry is results.entries[0]
        for panel, costs in zip(
            axes, (tokens, tokens * entry.flops_per_token, tokens / entry.training_rate), strict=False
        ):
            _draw_curve(panel, costs, bits, colour, thick=reference)
        for panel, cost in zip(axes[3:], (entry.parameters / 1e6, entry.memory_bytes / 2**20), strict=False):
            low, high = min(entry.final), max(entry.final)
            style: dict[str, Any] = {"color": colour, "marker": "s" if reference else "o", "capsize": 3}
            middle = float(np.mean(entry.final))
            panel.errorbar([cost], [middle], yerr=[[middle - low], [high - middle]], **style)
    names = (
        "training tokens",
        "training FLOPs",
        "seconds of training",
        "parameters (millions)",
        "memory of a step (MiB)",
    )
    for panel, name in zip(axes, names, strict=False):
        panel.set_xlabel(name)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in (axes[0], axes[3]):
        panel.set_ylabel("held-out bits per byte (lower is better)")
    highest = np.median([_curves(entry)[1][:, :2].mean() for entry in results.entries])
    for panel in axes[:3]:
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_ylim(top=min(panel.get_ylim()[1], 1.3 * float(highest)))  # one that begins far above hides the others
    _draw_key(axes[5], results.entries, colours)
    figure.suptitle(results.sentence, fontsize=12, x=0.01, ha="left")
    return figure


def _curves(entry: Entry) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the tokens at which every run was measured, (points,), and the bits per byte, (seeds, points)."""
    common = sorted(set.intersection(*(set(curve.tokens) for curve in entry.curves)))
    bits = [[curve.bits_per_byte[curve.tokens.index(t)] for t in common] for curve in entry.curves]
    return np.asarray(common, np.float64), np.asarray(bits)


def _draw_curve(axes: Axes, costs: NDArray[np.float64], bits: NDArray[np.float64], colour: str, *, thick: bool) -> None:
    axes.plot(costs, bits.mean(axis=0), color=colour, linewidth=2.6 if thick else 1.4, marker="o", markersize=3)
    axes.fill_between(costs, bits.min(axis=0), bits.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _draw_key(axes: Axes, entries: Sequence[Entry], colours: Sequence[str]) -> None:
    """Name the colours, the best model first."""
    axes.set_axis_off()
    order = sorted(range(len(entries)), key=lambda i: float(np.mean(entries[i].final)))
    for place, i in enumerate(order):
        y = 1 - (place + 0.5) / max(len(order), 8)
        axes.plot([0.0, 0.07], [y, y], color=colours[i], linewidth=3, transform=axes.transAxes)
        axes.text(0.1, y, entries[i].label, va="center", transform=axes.transAxes)
        axes.text(
            0.95, y, f"{np.mean(entries[i].final):.3f}", va="center", ha="right", color=GREY, transform=axes.transAxes
        )
