"""The verdict: each cell is the worst of its cases against both references, and passes, fails, or has a reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .columns import Column
from .measures import Key, Measured
from .reference import Reference

__all__ = ["ROWS", "Cell", "cells"]

Results = Mapping[tuple[Column, str], Measured]

ROWS = {
    "product": "product",
    "adjoint": "adjoint",
    "correlate": "correlate",
    "gradient for x": "differentiate",
    "gradient for w": "differentiate",
    "streaming": "stream",
    "logits": "model",
    "all gradients": "model",
    "training": "train",
}
"""By row of the table, the topic that it shows; of gradients and models a part."""


@dataclass(frozen=True)
class Cell:
    """One row, column and dtype."""

    row: str
    column: str
    dtype: str
    status: Literal["ok", "FAIL", "reference", "refused", "none"]
    """`reference`: what the others are held against; `refused`: the engine said that it does not serve this; `none`:
    the library has nothing of the kind."""
    from_numpy: float | None = None
    """The largest difference from NumPy in float64, in units of what is allowed."""
    from_numba: float | None = None
    """The same from Numba's engine in float64, where it is there and this is another."""
    worst: str | None = None
    """The case, and the parameter if it is one, that differs most."""
    reason: str | None = None
    """Of a refusal, or of a failure that has no numbers."""

    @property
    def units(self) -> float | None:
        """The larger of both differences."""
        given = [share for share in (self.from_numpy, self.from_numba) if share is not None]
        return max(given, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the cell as JSON can hold it: infinite differences are null, and the reason says so."""
        found = asdict(self)
        for name in ("from_numpy", "from_numba"):
            if found[name] is not None and not math.isfinite(found[name]):
                found[name] = None
        return found


def cells(results: Results, reference: Reference) -> list[Cell]:
    """Return all cells, row by row."""
    order = dict.fromkeys(column for column, _ in results)
    dtypes = dict.fromkeys(dtype for _, dtype in results)
    return [
        _cell(row, column, dtype, results, reference)
        for row in ROWS
        for column in order
        for dtype in dtypes
        if (column, dtype) in results
    ]


def _cell(row: str, column: Column, dtype: str, results: Results, reference: Reference) -> Cell:
    topic, measured = ROWS[row], results[column, dtype]
    if not column.does("differentiate" if "gradient" in row else topic):
        return Cell(row, column.name, dtype, "none")
    if topic in measured.refusals:
        return Cell(row, column.name, dtype, "refused", reason=measured.refusals[topic])
    if topic in measured.faults:
        return Cell(row, column.name, dtype, "FAIL", reason=measured.faults[topic])
    found = {key: array for key, array in measured.arrays.items() if _belongs(key, row)}
    lacking = _lacking(found, [key for key in reference.keys(topic) if _belongs(key, row)])
    if lacking is not None:
        return Cell(row, column.name, dtype, "FAIL", reason=lacking)
    if topic in ("model", "train") and (column.library, column.engine, dtype) == ("numpy", "numpy", "float64"):
        return Cell(row, column.name, dtype, "reference")
    first = {key: reference.units(key, array, dtype) for key, array in found.items()}
    second = {
        key: reference.units_between(key, array, results[other].arrays[key], dtype)
        for key, array in found.items()
        for other in [next((other for other in _seconds(results) if key in results[other].arrays), None)]
        if other is not None and other != (column, dtype)
    }
    worst = max(found, key=lambda key: max(first[key], second.get(key, 0.0)))
    largest = max(first.values()), max(second.values(), default=None)
    ok = all(share is None or share <= 1 for share in largest)
    reason = None if all(share is None or math.isfinite(share) for share in largest) else "not finite, or misshapen"
    return Cell(row, column.name, dtype, "ok" if ok else "FAIL", *largest, _place(worst), reason)


def _lacking(found: Collection[Key], expected: Collection[Key]) -> str | None:
    """Return what is not there of all that must be, or is there and cannot be compared."""
    missing = [key for key in expected if key not in found]
    unknown = [key for key in found if key not in expected]
    for keys, fault in ((missing, "missing"), (unknown, "not in the reference")):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            return f"{fault}: {_place(keys[0])}{more}"
    return None if expected else "there is nothing to compare with"


def _belongs(key: Key, row: str) -> bool:
    if key.topic != ROWS[row]:
        return False
    if key.topic == "differentiate":
        return key.part == row[-1]
    return key.topic != "model" or (key.part == "logits") == (row == "logits")


def _seconds(results: Results) -> list[tuple[Column, str]]:
    """Return where Numba's engine computed in float64: on NumPy arrays, and for gradients under other libraries."""
    return [(column, dtype) for column, dtype in results if column.engine == "numba" and dtype == "float64"]


def _place(key: Key) -> str:
    return ", ".join(part for part in (key.case, key.part) if part)
