"""`training.png`: what a run has learned, as a curve beside its yardsticks, and the lags of every head."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tmm_core import TMMConfig

__all__ = ["plot_training"]

_INK, _GREY = "#1f4e79", "#666666"
_MOST_ROW_LABELS = 40
_LABEL_INCHES = 0.18


def plot_training(
    path: Path,
    *,
    title: str,
    curve: Sequence[tuple[int, float]],
    yardsticks: Mapping[str, float],
    lags: Mapping[str, NDArray[Any]],
    config: TMMConfig,
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
    yardsticks : mapping of str to float
        Bits per byte of other models, drawn as lines.
    lags : mapping of str to array
        The parameters `blocks.{i}.mix.lags` (and `lags2`), of shape (h, k) or (h, m, k).
    config : TMMConfig
        The model.
    """
    rows, names = _lag_rows(lags, config)
    height = min(9.0, max(4.8, 1.6 + 0.2 * len(rows)))
    figure = Figure(figsize=(12.5, height), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    _draw_curve(left, title, curve, yardsticks, gap=1.3 * _LABEL_INCHES / height)
    _draw_lags(figure, right, rows, names, config)
    figure.savefig(path, format="png")


def _draw_curve(
    axes: Axes, title: str, curve: Sequence[tuple[int, float]], yardsticks: Mapping[str, float], *, gap: float
) -> None:
    """Draw bits per byte against tokens, with the yardsticks as lines named at their right end.

    Names keep a distance of `gap`, a share of the height.
    """
    most = max((t for t, _ in curve), default=0)
    unit, name_of_unit = (1e6, "millions") if most >= 1e6 else (1e3, "thousands")
    tokens, bits = [t / unit for t, _ in curve], [b for _, b in curve]
    values = bits + list(yardsticks.values())
    low, high = min(values), max(values)
    margin = 0.06 * max(high - low, 0.1)
    falls = len(bits) < 2 or bits[-1] <= bits[-2]
    room = 2 * gap * (high - low)  # for the last value, named where the curve does not come from
    axes.set_ylim(low - max(margin, room if falls else 0), high + max(margin, 0 if falls else room))
    axes.set_xlim(0, max([*tokens, 1e-3]) * 1.02)
    for (name, value), place in zip(
        yardsticks.items(),
        _apart(yardsticks.values(), gap * (high - low)),
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
    axes.plot(tokens, bits, color=_INK, marker="o", markersize=4, linewidth=1.8, zorder=3)
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
    axes.set_ylabel("held-out bits per byte")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_lags(figure: Figure, axes: Axes, rows: NDArray[Any], names: Sequence[str], config: TMMConfig) -> None:
    """Draw the lags as one coloured row a head, on a logarithmic axis that gives recent lags room."""
    axes.set_title("lags of each head, each row by its largest", fontsize=11, loc="left")
    if not len(rows):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "the model has no layers", ha="center", transform=axes.transAxes)
        return
    largest = np.abs(rows).max(axis=1, keepdims=True)
    shown = rows / np.where(largest > 0, largest, 1)
    # Lag j spans [j + 1/2, j + 3/2) here: a logarithmic axis has no zero.
    edges = np.arange(rows.shape[1] + 1) + 0.5
    mesh = axes.pcolormesh(
        edges, np.arange(len(rows) + 1), shown, cmap="RdBu_r", vmin=-1, vmax=1, rasterized=True, linewidth=0
    )
    axes.set_xscale("log")
    ticks = [lag for lag in (0, 1, 3, 7, 15, 63, 255, 1023, 4095, 16383, 65535) if lag < rows.shape[1]]
    axes.set_xticks([lag + 1 for lag in ticks], [str(lag) for lag in ticks])
    axes.minorticks_off()
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("lag (tokens back)")
    every = -(-len(names) // _MOST_ROW_LABELS)
    axes.set_yticks(np.arange(0, len(names), every) + 0.5, names[::every], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    per_layer = len(rows) // config.n_layers
    for layer in range(1, config.n_layers):
        axes.axhline(layer * per_layer, color="white", linewidth=2)
    figure.colorbar(mesh, ax=axes, shrink=0.6, aspect=30, pad=0.02, ticks=(-1, 0, 1))


def _lag_rows(lags: Mapping[str, NDArray[Any]], config: TMMConfig) -> tuple[NDArray[Any], list[str]]:
    """Return the effective lags, one row a filter, and what to call each."""
    rows: list[NDArray[Any]] = []
    names: list[str] = []
    for layer in range(config.n_layers):
        for suffix in ("", "2")[: config.mix_layers]:
            w = np.asarray(lags[f"blocks.{layer}.mix.lags{suffix}"], np.float64)
            if config.softplus:
                w = np.logaddexp(w, 0)
            w = w[:, None] if w.ndim == 2 else w
            for head, kernel in np.ndindex(*w.shape[:2]):
                parts = [f"layer {layer + 1}"]
                parts += [f"T{suffix or 1}"] if config.mix_layers == 2 else []
                parts += [f"head {head + 1}"] if config.n_heads > 0 else []
                parts += [f"channel {kernel - config.kernel_size + 1:+d}"] if config.kernel_size > 1 else []
                rows.append(w[head, kernel])
                names.append(", ".join(parts))
    return (np.stack(rows) if rows else np.empty((0, config.lags))), names


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
