"""Results of benchmarks as tables in Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..tables import markdown
from .suite import Result

__all__ = ["table"]

COLUMNS = ("backend", "baseline")
"""Parameters whose values are columns of a table; the others are rows."""
RATIO = "of its time"
"""The unit of our time over another's; tables print the inverse."""
UNITS = {"seconds": (1e3, "ms"), "bytes": (2.0**-20, "MiB")}


def table(results: Sequence[Result], *, width: int | None = None) -> str:
    """Return the results of one benchmark, with a title: medians, and the quartiles of samples."""
    unit = UNITS.get(results[0].unit, (1.0, results[0].unit))[1]
    title = f"{results[0].title}: {'how many times as fast ours is' if unit == RATIO else unit}"
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for result in results:
        row = tuple(value for name, value in result.params.items() if name not in COLUMNS)
        column = next((value for name, value in result.params.items() if name in COLUMNS), unit)
        cells.setdefault(row, {})[column] = _cell(result)
    rows = [name for name in results[0].params if name not in COLUMNS]
    columns = list(dict.fromkeys(itertools.chain.from_iterable(cells.values())))
    lines = [[*rows, *columns]]
    lines += [[*row, *(found.get(column, "n/a") for column in columns)] for row, found in cells.items()]
    return f"{title}\n\n{markdown(lines, keys=len(rows), width=width)}"


def _cell(result: Result) -> str:
    if result.value is None:
        return "failed"
    numbers = [result.value] if result.low is None or result.high is None else [result.value, result.low, result.high]
    if result.unit == RATIO:
        shown = [f"{1 / number:.{1 if number <= 0.5 else 2}f}" for number in numbers]
        shown[1:] = reversed(shown[1:])
    else:
        factor = UNITS.get(result.unit, (1.0, ""))[0]
        shown = [
            f"{factor * number:.{0 if factor * number >= 1000 else 4}{'f' if factor * number >= 1000 else 'g'}}"
            for number in numbers
        ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if len(shown) == 3 else shown[0]
