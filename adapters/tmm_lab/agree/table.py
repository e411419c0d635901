"""Cells as a table in Markdown, and what it means in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .cells import ROWS, Cell
from .inputs import DTYPES, TRAINING, WHOLE, models
from .reference import LOGITS, TOLERANCES

__all__ = ["failures", "legend", "table"]


def table(cells: Sequence[Cell]) -> str:
    """Return a line a row, with a column for each way to compute, and the verdict; cells have a number a dtype."""
    names = list(dict.fromkeys(cell.column for cell in cells))
    lines = [[" ".join(DTYPES), *names, "verdict"], ["---"] * (2 + len(names))]
    for row in ROWS:
        across = [[cell for cell in cells if (cell.row, cell.column) == (row, name)] for name in names]
        said = {cell.status for both in across for cell in both}
        verdict = next((word for word in ("FAIL", "ok", "refused") if word in said), "-")
        lines.append([row, *map(_both, across), verdict])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def legend(*, numba: bool, jax: bool) -> str:
    """Return what the numbers are; `numba` says whether there was a second reference, `jax` whether JAX computed."""

    def share(tolerances: dict[str, float]) -> str:
        single, double = (f"{tolerances[dtype]:.0e}".replace("e-0", "e-") for dtype in DTYPES)
        return f"{single} ({double} in float64)"

    programs = (
        f"JAX computes training and the model `{'`, `'.join(WHOLE)}` as whole programs, compiled as usual; the rest "
        "operation by operation, with most of XLA's optimisations off. "
    )
    second = (
        "and from Numba's engine in float64, the larger of both"
        if numba
        else "(Numba's engine in float64, the second reference, was not compared)"
    )
    return (
        f"Each cell is the largest difference, in {' and in '.join(DTYPES)}, from NumPy in float64 {second}, in units "
        "of what is allowed: up to 1 is ok. A unit is the error law in the rows from product to streaming; "
        f"{share(LOGITS)} of the largest logit and {share(TOLERANCES)} of a parameter's largest gradient, for "
        f"{len(models())} models; and {share(TOLERANCES)} of the loss, at each of {TRAINING.steps} steps of training. "
        f"{programs if jax else ''}ref: the reference itself. A dash: the library has no gradients, or no training."
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
    if cell.status == "reference":
        return "ref"
    if cell.status != "ok" or cell.units is None:
        return cell.status
    return "<.01" if cell.units < 0.005 else f"{cell.units:.2f}"


def _why(cell: Cell) -> str:
    units = cell.units
    if units is None or not math.isfinite(units):
        return ": ".join(part for part in (cell.worst, cell.reason) if part)
    return f"{units:.3g} times what is allowed, in {cell.worst}"
