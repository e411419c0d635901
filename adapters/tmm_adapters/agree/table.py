"""Cells as a table in Markdown, and what it means in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .cells import ROWS, Cell
from .inputs import DTYPES, TRAINING, models
from .reference import LOGITS, TOLERANCES

__all__ = ["failures", "legend", "table"]


def table(cells: Sequence[Cell]) -> str:
    """Return a line a row, with a column for each way to compute, and the verdict; cells have a number a dtype."""
    names = list(dict.fromkeys(cell.column for cell in cells))
    lines = [[" ".join(DTYPES), *names, ""], ["---"] * (2 + len(names))]
    for row in ROWS:
        across = [[cell for cell in cells if (cell.row, cell.column) == (row, name)] for name in names]
        said = {cell.status for both in across for cell in both}
        lines.append([row, *map(_both, across), next((word for word in ("FAIL", "ok") if word in said), "-")])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def legend(*, numba: bool) -> str:
    """Return what the numbers are; `numba` says whether there was a second reference."""

    def both(tolerances: dict[str, float]) -> str:
        return " and ".join(f"{tolerances[dtype]:.0e}".replace("e-0", "e-") for dtype in DTYPES)

    second = (
        "and from Numba's engine in float64, the larger of both"
        if numba
        else "(a second reference, Numba's engine in float64, was not compared)"
    )
    return (
        f"The largest difference from NumPy in float64 {second}, where 1 is what is allowed; in {' and '.join(DTYPES)}."
        f" Allowed is, for products to streaming, the error law; for logits and gradients of {len(models())} models "
        f"{both(LOGITS)}, and {both(TOLERANCES)}, of the largest entry; for the loss at each of {TRAINING.steps} steps "
        f"of training {both(TOLERANCES)} of itself. Dashes: a library without gradients."
    )


def failures(cells: Sequence[Cell]) -> list[str]:
    """Return a line for every cell that fails or was refused."""
    return [
        f"{cell.status} {cell.row}, {cell.column}, {cell.dtype}: {_why(cell)}"
        for cell in cells
        if cell.status in ("FAIL", "refused")
    ]


def _both(cells: Sequence[Cell]) -> str:
    if all(cell.status == "none" for cell in cells):
        return "-"
    return " ".join(_number(cell) for cell in cells)


def _number(cell: Cell) -> str:
    if cell.status != "ok" or cell.units is None:
        return cell.status
    return "<.01" if cell.units < 0.005 else f"{cell.units:.2f}"


def _why(cell: Cell) -> str:
    units = cell.units
    if units is None or not math.isfinite(units):
        return ": ".join(part for part in (cell.worst, cell.reason) if part)
    return f"{units:.3g} times what is allowed, in {cell.worst}"
