"""Figures as tables, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .figures import Figure
from .topics import TOPICS, Topic

__all__ = ["heading", "table_row"]


def heading(name: str) -> list[str]:
    """Return the first two lines of a topic's table, in Markdown."""
    topic = TOPICS[name]
    return [_line(topic, _head(topic)), _line(topic, ["---"] * len(_head(topic)))]


def table_row(found: Sequence[Figure]) -> str:
    """Return one line of a table, in Markdown."""
    task = found[0].task
    topic = TOPICS[task.topic]
    if topic.listed:
        return _line(topic, [str(task.n), task.column, *_listed(found[0])])
    cells = [str(task.n), str(task.heads)]
    if topic.ours is not None:
        times = [figure.ratio.ours for figure in found if figure.ratio is not None]
        cells.append(topic.ours(task, statistics.median(times)) if times else "n/a")
    return _line(topic, [*cells, *map(_cell, found)])


def _listed(figure: Figure) -> list[str]:
    """Return the ratio, what is ours and what is theirs."""
    r = figure.ratio
    if r is None:
        return ["", _cell(figure) + " MiB" * (figure.bytes is not None), ""]
    times = [f"{1000 * seconds:.3f} ms" for seconds in (r.ours, r.theirs)]
    return [_cell(figure), *times]


def _head(topic: Topic) -> list[str]:
    if topic.listed:
        return ["n", "against", "times as fast", "ours", "theirs"]
    return ["n", "heads", *([] if topic.ours is None else ["ours"]), *topic.columns]


def _line(topic: Topic, cells: Sequence[str]) -> str:
    """Return the cells, padded to what a column of the topic holds."""
    if topic.listed:
        widths = [6, max(map(len, topic.columns)), 21, 13, 13]
    else:
        widths = [6, 5, *(max(len(name), 13 if name == "ours" else 20) for name in _head(topic)[2:])]
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cell(figure: Figure) -> str:
    if figure.ratio is not None:
        r = figure.ratio
        return f"{_short(r.median)} ({_short(r.low)} to {_short(r.high)})"
    if figure.seconds is not None:
        return f"{1000 * figure.seconds:.3f} ms"
    return "n/a" if figure.bytes is None else f"{figure.bytes / 2**20:.1f}"


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"
