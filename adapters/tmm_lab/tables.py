"""Tables and paragraphs as wide as the terminal: columns that do not fit go below, under the same first columns."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

__all__ = ["filled", "markdown", "numbers", "terminal_width"]

_PARAGRAPH = 100  # columns, at most


def terminal_width(to: TextIO | None = None) -> int | None:
    """Return the columns of the terminal that a stream, by default standard output, goes to; None where it is none."""
    return shutil.get_terminal_size().columns if (to or sys.stdout).isatty() else None


def filled(text: str, *, indent: str = "", to: TextIO | None = None) -> str:
    """Return paragraphs with lines that the terminal has room for, and that can be read; no word is parted."""
    width = terminal_width(to)
    width = sys.maxsize if width is None else min(_PARAGRAPH, width)
    return "\n".join(
        textwrap.fill(
            line,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
        for line in text.splitlines()
    )


def markdown(rows: Sequence[Sequence[str]], *, keys: int, width: int | None) -> str:
    """Return a table in Markdown, the heading first.

    Parameters
    ----------
    rows : sequences of str
        Equally long ones.
    keys : int
        How many columns name a row; they stand in each of the parts that a wide table is cut into.
    width : int or None
        Columns of the terminal; None for no limit.

    Examples
    --------
    >>> print(markdown([["n", "ours", "theirs"], ["512", "1.0", "2.0"]], keys=1, width=16))
    | n   | ours |
    | --- | ---  |
    | 512 | 1.0  |
    <BLANKLINE>
    | n   | theirs |
    | --- | ---    |
    | 512 | 2.0    |
    """
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    parts = []
    for columns in _parts([w + 3 for w in widths], keys, None if width is None else width - 1):
        cells = [[line[i].ljust(widths[i]) for i in columns] for line in lines]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in cells))
    return "\n\n".join(parts)


def numbers(
    rows: Sequence[Sequence[str]], *, keys: int, width: int | None, notes: Sequence[str] = (), names: bool = False
) -> str:
    """Return columns of numbers, on the right; the heading first, and at the end of a row its note, if it has one.

    The parameters are those of `markdown`; keys that are `names` stand on the left.

    Examples
    --------
    >>> print(numbers([["head", "index", "lag"], ["1", "-1", "12"]], keys=1, width=11, notes=["", "not certified"]))
    head  index
       1     -1
    <BLANKLINE>
    head  lag
       1   12  not
               certified
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if names and i < keys else str.rjust for i in range(len(widths))]
    parts = [
        ["  ".join(sides[i](row[i], widths[i]) for i in columns) for row in rows]
        for columns in _parts([w + 2 for w in widths], keys, None if width is None else width + 2)
    ]
    for number, note in enumerate(notes):
        if note:
            start = parts[-1][number] + "  "
            room = None if width is None else max(width, len(start) + max(map(len, note.split())))
            parts[-1][number] = (
                start + note
                if room is None
                else textwrap.fill(note, room, initial_indent=start, subsequent_indent=" " * len(start))
            )
    return "\n\n".join("\n".join(part) for part in parts)


def _parts(widths: Sequence[int], keys: int, width: int | None) -> Iterator[list[int]]:
    """Yield the columns of each part: the keys, and as many of the others as fit, but one at least."""
    first, start = sum(widths[:keys]), keys
    while True:
        stop = start + 1
        while stop < len(widths) and (width is None or first + sum(widths[start : stop + 1]) <= width):
            stop += 1
        yield [*range(keys), *range(start, min(stop, len(widths)))]
        start = stop
        if start >= len(widths):
            return
