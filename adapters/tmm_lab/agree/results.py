"""The verdict: each result is the worst of its cases against the reference, and passes, fails, or has a reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .configurations import Configuration
from .measures import Key, Measured
from .reference import Reference

__all__ = ["ROWS", "Result", "judge"]

Found = Mapping[tuple[Configuration, str, str], Measured]
"""By configuration, dtype and topic."""

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


Status = Literal["ok", "FAIL", "reference", "refused", "none"]


@dataclass(frozen=True)
class Result:
    """One row, configuration and dtype."""

    row: str
    configuration: str
    dtype: str
    status: Status
    """`reference`: what the others are held against; `refused`: the engine said that it does not serve this; `none`:
    the library has nothing of the kind."""
    units: float | None = None
    """The largest difference from the reference, in units of what is allowed."""
    worst: str | None = None
    """The case, and the parameter if it is one, that differs most."""
    reason: str | None = None
    """Of a refusal, or of a failure that has no numbers."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON can hold it: an infinite difference is null, and the reason says so."""
        finite = self.units is None or math.isfinite(self.units)
        return {**asdict(self), "units": self.units if finite else None}


def judge(found: Found, reference: Reference) -> list[Result]:
    """Return all results, row by row."""
    for wanted in ("float64", "float32"):  # the narrower where no framework serves the other
        for (_, dtype, _), measured in found.items():
            if dtype == wanted:
                reference.adopt(measured.arrays)
    order = dict.fromkeys((configuration, dtype) for configuration, dtype, _ in found)
    return [_result(row, *both, found, reference) for row in ROWS for both in order]


def _result(row: str, configuration: Configuration, dtype: str, found: Found, reference: Reference) -> Result:
    topic, name = ROWS[row], configuration.name
    if not configuration.has("differentiate" if "gradient" in row else topic):
        return Result(row, name, dtype, "none")
    measured = found[configuration, dtype, topic]
    if measured.refusal is not None:
        return Result(row, name, dtype, "refused", reason=measured.refusal)
    arrays = {key: array for key, array in measured.arrays.items() if _belongs(key, row)}
    fault = measured.fault or _fault(arrays, [key for key in reference.keys(topic) if _belongs(key, row)])
    if fault is not None:
        return Result(row, name, dtype, "FAIL", reason=fault)
    shares = {key: reference.units(key, array, dtype) for key, array in arrays.items()}
    worst = max(shares, key=shares.__getitem__)
    largest = shares[worst]
    reason = None if math.isfinite(largest) else "not finite, or misshapen"
    own = row in ("logits", "training") and reference.holds(arrays)
    own = own or (row, name, dtype) == ("logits", "numpy", "float64")
    status: Status = "FAIL" if largest > 1 else "reference" if own else "ok"
    return Result(row, name, dtype, status, largest, _place(worst), reason)


def _fault(found: Collection[Key], expected: Collection[Key]) -> str | None:
    """Return what is not there of all that must be, or is there and cannot be compared."""
    missing = [key for key in expected if key not in found]
    unknown = [key for key in found if key not in expected]
    for keys, fault in ((missing, "missing"), (unknown, "not in the reference")):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            return f"{fault}: {_place(keys[0])}{more}"
    return None if expected else "there is nothing to compare with"


def _belongs(key: Key, row: str) -> bool:
    if key.topic == "differentiate":
        return key.part == row[-1]
    return key.topic != "model" or (key.part == "logits") == (row == "logits")


def _place(key: Key) -> str:
    return ", ".join(part for part in (key.case, key.part) if part)
