"""Pictures made of rows of panels, as a tall PNG or as a PDF with pages: layout, colours, keys and axes."""

from __future__ import annotations

from ..figures import own_style  # first: it imports Matplotlib, whatever the environment says of its backend

# isort: split
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tmm_adapters.files import atomic_write
from tmm_adapters.words import counted
from tmm_core.errors import InputError, MissingFileError, NotAFileError

__all__ = ["GREY", "colours_of", "draw_heatmap", "draw_key", "draw_rows", "lag_axis", "require_picture", "thin"]

GREY = "#666666"
# Okabe and Ito's palette, which colour-blind readers tell apart; more curves than it has get a scale.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#9A8B00")
_WIDTH, _ROW, _GAP, _TOP = 15.0, 2.9, 0.65, 1.55  # inches; a row is a panel and the gap below it
_HEADING = 0.12  # inches between a heading and its panels
_DPI = 110
_ROWS_A_PAGE = 4  # of a PDF
_MOST_ROWS = 200  # of a PNG: the renderer ends at 2^16 pixels
_KEY_LINES = 12

_STYLE: dict[Any, Any] = {
    "axes.labelsize": 8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}

DrawRow = Callable[[Sequence[Axes], Any], None]


def require_picture(path: Path, n_rows: int) -> None:
    """Refuse a picture that cannot be written, before anything is computed for it.

    Raises
    ------
    ValueError
        If the name does not end in `.png` or `.pdf`, or a PNG would need more than 200 rows.
    FileNotFoundError, IsADirectoryError
        If there is no folder to write in, or the path is one.
    """
    kind = path.suffix.lower()
    if kind not in (".png", ".pdf"):
        raise InputError(f"the picture {path} must be a .png or a .pdf: choose another --plot")
    if path.is_dir():
        raise NotAFileError(f"the picture {path} is a folder: choose another --plot")
    if not path.parent.is_dir():
        raise MissingFileError(f"there is no folder {path.parent} for the picture: make it, or choose another --plot")
    if n_rows > _MOST_ROWS and kind == ".png":
        raise InputError(f"{n_rows} rows are too many for one PNG: choose a --plot that ends in .pdf, which has pages")


def draw_rows(
    path: Path, rows: Sequence[Any], draw: DrawRow, *, columns: Sequence[tuple[str, float]], title: str
) -> None:
    """Write a picture with a row of panels for each of `rows`.

    Parameters
    ----------
    path : Path
        A PNG, with all rows below each other, or a PDF, with four a page.
    rows : sequence
        What each row is drawn from.
    draw : callable
        Draws a row, given its panels and an element of `rows`.
    columns : sequence of (str, float)
        Heading of each panel, and its share of the width; the first is for the key.
    title : str
        Stands above, on at most four lines.

    Raises
    ------
    ValueError, FileNotFoundError, IsADirectoryError
        As `require_picture`.
    WriteError
        If the file cannot be written.
    """
    require_picture(path, len(rows))
    with own_style(), atomic_write(path) as file:
        if path.suffix.lower() == ".png":
            next(_pages([rows], draw, columns, title)).savefig(file, format="png", pil_kwargs={"compress_level": 3})
            return
        pages = [rows[first : first + _ROWS_A_PAGE] for first in range(0, len(rows), _ROWS_A_PAGE)]
        with PdfPages(file) as pdf:
            for figure in _pages(pages, draw, columns, title):
                pdf.savefig(figure)


def _pages(
    pages: Sequence[Sequence[Any]], draw: DrawRow, columns: Sequence[tuple[str, float]], title: str
) -> Iterator[Figure]:
    """Draw figure after figure; panels stand at fixed inches, as a layout found by drawing takes seconds for 80."""
    headings, widths = zip(*columns, strict=True)
    for rows in pages:
        height = _TOP + _ROW * len(rows)
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
        title = title.encode(errors="surrogateescape").decode(errors="replace")  # names of folders may be no text
        figure.text(0.012, 1 - 0.16 / height, title, fontsize=9.5, va="top", linespacing=1.5)
        with matplotlib.rc_context(_STYLE):
            panels = figure.subplots(
                len(rows),
                len(columns),
                squeeze=False,
                width_ratios=widths,
                gridspec_kw={
                    "left": 0.012,
                    "right": 0.955,
                    "top": 1 - _TOP / height,
                    "bottom": _GAP / height,
                    "wspace": 0.045 * len(columns),
                    "hspace": _GAP / (_ROW - _GAP),
                },
            )
        for axes, heading in zip(panels[0], headings, strict=True):
            place = axes.get_position(original=True)  # some panels are made narrower for the sake of their aspect
            figure.text(place.x0, place.y1 + _HEADING / height, heading, fontsize=10, fontweight="bold")
        for axes, row in zip(panels, rows, strict=True):
            draw(axes, row)
        yield figure


def draw_key(axes: Axes, name: str, texts: Mapping[int, str], colours: Sequence[Any]) -> None:
    """Name a row and list its heads by number, in their colours.

    A single first one is not numbered. More than there are colours for are counted, by text, the most frequent first.
    """
    axes.set_axis_off()
    axes.text(0, 1, name, fontsize=10, va="top", transform=axes.transAxes)
    if len(texts) <= len(_PALETTE):
        lines = [f"head {head}: {text}" if list(texts) != [1] else text for head, text in texts.items()]
    else:
        counts = Counter(texts.values()).most_common()
        lines = [f"{text}: {counted(count, 'head')}" for text, count in counts[:_KEY_LINES]]
        if len(counts) > _KEY_LINES:
            lines[-1] = f"others: {counted(sum(count for _, count in counts[_KEY_LINES - 1 :]), 'head')}"
        colours = [GREY] * len(lines)
    for i, (line, colour) in enumerate(zip(lines, colours, strict=True)):
        place = 0.9 - (i + 0.5) * 0.9 / max(len(lines), 8)
        axes.text(0, place, line, color=colour, fontsize=8, va="center", transform=axes.transAxes)


def draw_heatmap(axes: Axes, rows: NDArray[Any], *, label: str = "lag (tokens back)") -> QuadMesh:
    """Draw rows of numbers from -1 to 1 in colours, the first row above, on an axis of lags, with a scale beside."""
    # Lag j spans [j + 1/2, j + 3/2) here: a logarithmic axis has no zero.
    edges = np.arange(rows.shape[1] + 1) + 0.5
    mesh = axes.pcolormesh(
        edges, np.arange(len(rows) + 1), rows, cmap="RdBu_r", vmin=-1, vmax=1, rasterized=True, linewidth=0
    )
    lag_axis(axes, rows.shape[1], edge=0.5, label=label)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    beside = axes.inset_axes((1.015, 0.2, 0.012, 0.6))
    beside.figure.colorbar(mesh, cax=beside, ticks=(-1, 0, 1))
    return mesh


def lag_axis(axes: Axes, k: int, *, edge: float, label: str = "lag (tokens back)") -> None:
    """Let lag j stand at j + 1 of a logarithmic axis, which has room for the recent ones."""
    axes.set_xscale("log")
    ticks = [lag for lag in (0, 1, 3, 7, 15, 63, 255, 1023, 4095, 16383, 65535) if lag < k]
    axes.set_xticks([lag + 1 for lag in ticks], [str(lag) for lag in ticks])
    axes.minorticks_off()
    axes.set_xlim(edge, k + 0.5)
    axes.set_xlabel(label)


def colours_of(n: int) -> list[Any]:
    """Return a colour for each of n curves."""
    if n <= len(_PALETTE):
        return list(_PALETTE[:n])
    return list(0.8 * matplotlib.colormaps["turbo"](np.linspace(0, 1, n))[:, :3])  # darker: its yellow is no ink


def thin(n_curves: int, n_points: int) -> dict[str, Any]:
    """Return a style that keeps many curves of many points apart, as pixels where a PDF would grow by megabytes."""
    width = 1.3 if n_points <= 1024 else 0.6
    return {"linewidth": width if n_curves <= 8 else width / 2, "rasterized": n_curves * n_points > 20_000}
