"""Whether a case is right."""

from __future__ import annotations

import warnings

import numpy as np

from ..oracles import EPS, Numbers
from .cases import Case
from .definition import Expected, expected, largest, promoted

__all__ = ["verdict"]


def verdict(case: Case) -> str | None:
    """Return what is wrong with a case's result, or None: first a word for the kind, then figures."""
    # Results beyond the range are judged, not warned of, and any layout is meant as it is.
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=UserWarning):
        try:
            found = case.run()
        except Exception as error:  # any is a failure, and the fuzz goes on
            return f"{type(error).__name__}: {error}"
        return _difference(case, found, expected(case))


def _difference(case: Case, found: Numbers, right: Expected) -> str | None:
    if found.shape != right.values.shape:
        return f"shape: expected {right.values.shape}, got {found.shape}"
    dtype = _result_dtype(case)
    if found.dtype.name != ("float32" if dtype == "bfloat16" else dtype):  # NumPy reads bfloat16 as float32
        return f"dtype: expected {dtype}, got {found.dtype}"
    reach = np.maximum(np.abs(right.values.real), np.abs(right.values.imag)) + right.bound
    # Parts of a sum, and what is divided, must be representable, too.
    parts = case.operation in ("toeplitz_matmul", "stream") or case.arrays.keys() & {"segment_ids", "bias"}
    if parts or case.options.get("mean"):
        reach = np.maximum(reach, np.max(right.terms, initial=0))
    elif case.options.get("method") == "direct" or case.operation == "mix_tokens":
        reach = np.maximum(reach, np.max(right.terms, initial=0) * EPS["float32"])
    judged = np.isfinite(reach) & (reach < largest(dtype))
    wrong = judged & (np.isnan(found) != right.nans)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"NaN: {'expected' if right.nans[at] else 'not expected'} at {at}, got {found[at]}"
    error = np.abs(found - right.values)
    wrong = judged & ~right.nans & ~(error <= right.bound)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        figures = f"error {error[at]:.3g}, bound {right.bound[at]:.3g}"
        return f"value: expected {right.values[at]} at {at}, got {found[at]}, {figures}"
    return None


def _result_dtype(case: Case) -> str:
    if case.operation in ("mix_tokens", "stream"):
        return case.dtypes["x"]
    return promoted(*(dtype for name, dtype in case.dtypes.items() if name != "segment_ids"))
