"""Figures as tables, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .figures import COLUMNS, Figure, Task

__all__ = ["TITLES", "heading", "table_row"]

TITLES = {
    "product": "product, as much of it as (8, 1024, 512): how many times as fast as the others ours is",
    "gradients": "product with both gradients: how many times as fast as the same under autograd ours is",
    "memory": "memory of the product beyond its input and output, in MiB",
    "training": "training (d 512, 4 layers, vocabulary 8000): how many times as fast as with another mixing ours is",
}


def heading(topic: str) -> list[str]:
    """Return the first two lines of a topic's table, in Markdown."""
    return [_line(topic, _head(topic)), _line(topic, ["---"] * len(_head(topic)))]


def table_row(found: Sequence[Figure]) -> str:
    """Return one line of a table, in Markdown."""
    task = found[0].task
    cells = [str(task.n), str(task.heads)]
    if task.topic != "memory":
        times = [figure.ratio.ours for figure in found if figure.ratio is not None]
        cells.append(_speed(task, statistics.median(times)) if times else "n/a")
    return _line(task.topic, [*cells, *map(_cell, found)])


def _head(topic: str) -> list[str]:
    return ["n", "heads", *([] if topic == "memory" else ["ours"]), *COLUMNS[topic]]


def _line(topic: str, cells: Sequence[str]) -> str:
    """Return the cells, padded to what a column of the topic holds."""
    widths = [
        6,
        5,
        *(max(len(name), (13 if topic == "training" else 8) if name == "ours" else 20) for name in _head(topic)[2:]),
    ]
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _speed(task: Task, seconds: float) -> str:
    return f"{task.tokens / seconds:.0f} tokens/s" if task.topic == "training" else f"{1000 * seconds:.1f} ms"


def _cell(figure: Figure) -> str:
    if figure.ratio is not None:
        r = figure.ratio
        return f"{_short(r.median)} ({_short(r.low)} to {_short(r.high)})"
    return "n/a" if figure.bytes is None else f"{figure.bytes / 2**20:.1f}"


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"
