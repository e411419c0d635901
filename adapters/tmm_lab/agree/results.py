"""The verdict: each result is the worst of its cases against both references, and passes, fails, or has a reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
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


@dataclass(frozen=True)
class Result:
    """One row, configuration and dtype."""

    row: str
    configuration: str
    dtype: str
    status: Literal["ok", "FAIL", "reference", "refused", "none"]
    """`reference`: what the others are held against; `refused`: the engine said that it does not serve this; `none`:
    the library has nothing of the kind."""
    from_numpy: float | None = None
    """The largest difference from the reference in float64, in units of what is allowed."""
    from_numba: float | None = None
    """The same from Numba's engine in float64, where it is there and this is another."""
    worst: str | None = None
    """The case, and the parameter if it is one, that differs most."""
    reason: str | None = None
    """Of a refusal, or of a failure that has no numbers."""

    @property
    def units(self) -> float | None:
        """The larger of both differences."""
        return max((share for share in (self.from_numpy, self.from_numba) if share is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON can hold it: infinite differences are null, and the reason says so."""
        told = asdict(self)
        infinite = [name for name, value in told.items() if isinstance(value, float) and not math.isfinite(value)]
        return {**told, **dict.fromkeys(infinite)}


def judge(found: Found, reference: Reference) -> list[Result]:
    """Return all results, row by row.

    The first framework's curve in float64 is the reference of training: every gradient is held against differences of
    the definition, and the frameworks' optimisers against each other.
    """
    for wanted in ("float64", "float32"):  # the narrower where no framework serves the other
        for (_, dtype, _), measured in found.items():
            if dtype == wanted:
                reference.add_curve(measured.arrays)
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
    first = {key: reference.units(key, array, dtype) for key, array in arrays.items()}
    second = {
        key: reference.units_between(key, array, other, dtype)
        for key, array in arrays.items()
        for other in [next(_by_numba(found, key), None)]
        if other is not None and other is not array
    }
    worst = max(arrays, key=lambda key: max(first[key], second.get(key, 0.0)))
    largest = max(first.values()), max(second.values(), default=None)
    ok = all(share is None or share <= 1 for share in largest)
    if ok and (reference.holds(arrays) or (row == "logits" and (name, dtype) == ("numpy", "float64"))):
        return Result(row, name, dtype, "reference")
    reason = None if all(share is None or math.isfinite(share) for share in largest) else "not finite, or misshapen"
    return Result(row, name, dtype, "ok" if ok else "FAIL", *largest, _place(worst), reason)


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


def _by_numba(found: Found, key: Key) -> Iterator[Any]:
    """Yield what Numba's engine computed in float64: on NumPy arrays, and for gradients under other libraries."""
    for (configuration, dtype, topic), measured in found.items():
        if (configuration.engine, dtype, topic) == ("numba", "float64", key.topic) and key in measured.arrays:
            yield measured.arrays[key]


def _place(key: Key) -> str:
    return ", ".join(part for part in (key.case, key.part) if part)
