"""The kinds of cases, so that a run can tell how often each was tried."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .cases import Case

__all__ = ["KINDS", "kinds"]


def _made(words: str) -> Callable[[Case], bool]:
    """Return whether an array is held in a way that has these words."""
    return lambda case: any(words in how for how in case.made.values())


def _valued(condition: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], bool]:
    """Return whether a number of an array is such, those of documents aside."""
    return lambda case: any(condition(np.abs(a)).any() for name, a in case.arrays.items() if name != "segment_ids")


KINDS: dict[str, Callable[[Case], bool]] = {
    "adjoints": lambda case: "adjoint" in case.options,
    "direct sums": lambda case: "method" in case.options,
    "documents": lambda case: "segment_ids" in case.arrays,
    "sizes of zero": lambda case: any(0 in a.shape for a in case.arrays.values()),
    "subnormal numbers": _valued(lambda size: (size > 0) & (size < 2.0**-126)),
    "numbers above 1e30": _valued(lambda size: (size > 1e30) & (size < np.inf)),
    "numbers that are not finite": _valued(lambda size: ~np.isfinite(size)),
    "several dtypes": lambda case: len(set(case.dtypes.values()) - {"int32"}) > 1,
    "negative views": _made(".imag"),
    "conjugate views": _made("resolve_conj"),
    "tensors without storage": _made("_efficientzerotensor"),
    "parameters": _made("Parameter"),
    "tensors of inference mode": _made("inference_mode"),
    "other orders of bytes": _made("newbyteorder"),
    "negative strides": _made("np.flip"),
    "gaps": _made("::2]"),
    "unaligned memory": _made("frombuffer"),
    "NumPy's beside Dask's": _made("compute"),
    "arrays on a mesh": _made("NamedSharding"),
    "constants of compiled functions": lambda case: bool(case.constants),
    "modes of promotion": lambda case: "promotion" in case.setting,
    "alarms at NaN": lambda case: "debug_nans" in case.setting,
    "alarms at overflow": lambda case: "errstate" in case.setting,
}
"""What may be true of a case, beside its operation, its library and its engine."""


def kinds(case: Case) -> list[str]:
    """Return the kinds that a case is of: operation, library, engine, and those of `KINDS`."""
    engine = case.options.get("backend", "any engine")
    return [
        case.operation,
        f"arrays of {case.library}",
        f"by {engine}",
        *(k for k, holds in KINDS.items() if holds(case)),
    ]
