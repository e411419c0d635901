"""A failing case made smaller as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..oracles import Numbers
from .cases import Case
from .verdict import verdict

__all__ = ["shrunk"]


def shrunk(case: Case, seconds: float = 10.0) -> Case:
    """Return a case that fails as `case` does, as small as it is found within some seconds."""
    kind, deadline = _kind(verdict(case)), time.monotonic() + seconds
    smaller: Case | None = case
    while smaller is not None and time.monotonic() < deadline:
        case = smaller
        smaller = next((other for other in _smaller(case) if _kind(verdict(other)) == kind), None)
    return case


def _kind(what: str | None) -> str:
    """Return the first words of what is wrong, which tell one failure from another."""
    return "" if what is None else what[:40] if "Error" in what.split(":")[0] else what.split(":")[0]


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases that are simpler in one respect, those first that are simpler by much."""
    if case.setting:
        yield replace(case, setting="")
    if case.constants:
        yield replace(case, constants=())
    for name in case.made:
        yield replace(case, made={other: how for other, how in case.made.items() if other != name})
    yield from _simpler_calls(case)
    yield from _shorter(case)
    yield from _simpler_values(case)


def _simpler_calls(case: Case) -> Iterator[Case]:
    for name in ("method", "adjoint", "mean", "softplus", "leaf"):
        if name in case.options and not (name == "softplus" and "mean" in case.options):
            yield replace(case, options={other: value for other, value in case.options.items() if other != name})
    for name in ("segment_ids", "bias"):
        if name in case.arrays:
            yield _without(case, name)
    kinds = {dtype for name, dtype in case.dtypes.items() if name != "segment_ids"}
    if len(kinds) > 1 and len({dtype.startswith("complex") for dtype in kinds}) == 1:
        for dtype in kinds:
            dtypes = {name: dtype if own != "int32" else own for name, own in case.dtypes.items()}
            yield replace(case, dtypes=dtypes)


def _without(case: Case, name: str) -> Case:
    parts: list[Mapping[str, object]] = [case.arrays, case.dtypes, case.made]
    arrays, dtypes, made = ({key: part[key] for key in part if key != name} for part in parts)
    return replace(case, arrays=arrays, dtypes=dtypes, made=made)  # type: ignore[arg-type]


_TIMES = {"x": -2, "g": -2, "y": -2, "segment_ids": -1}


def _shorter(case: Case) -> Iterator[Case]:
    """Yield cases of fewer rows, times, channels and lags."""
    signals = [name for name in _TIMES if name in case.arrays]
    ndim = case.arrays[signals[0]].ndim
    for axis in range(ndim - 2):  # rows
        for part in (slice(0, 1), slice(-1, None)):
            names = [
                name for name in signals if case.arrays[name].ndim == (ndim - 1 if name == "segment_ids" else ndim)
            ]
            yield from _cut(case, dict.fromkeys(names, axis), part)
    if case.operation not in ("toeplitz_matmul", "stream"):
        axes = {name: max(_TIMES[name], -case.arrays[name].ndim) for name in signals}
        yield from _halves(case, axes)
    if case.operation == "toeplitz_matmul" and "row" in case.arrays:
        yield from _halves(case, {"column": -1})
        yield from _halves(case, {"row": -1, "x": max(-2, -ndim)}, ends=False)
    if "w" in case.arrays:
        yield from _halves(case, {"w": -1}, ends=False)
    if "lags" in case.options and case.options["lags"] > 1:
        for lags in (1, case.options["lags"] // 2, case.options["lags"] - 1):
            yield replace(case, options={**case.options, "lags": lags})
    if ndim > 1:
        yield from _fewer_channels(case, [name for name in signals if name != "segment_ids"])


def _fewer_channels(case: Case, signals: list[str]) -> Iterator[Case]:
    by_head = [name for name in ("w", "column", "row", "bias") if name in case.arrays and case.arrays[name].ndim > 1]
    heads = case.arrays[by_head[0]].shape[0] if by_head else case.options.get("heads", 1)
    width = case.arrays[signals[0]].shape[-1] // max(heads, 1)
    if heads > 1:
        for head in range(heads):
            channels = slice(head * width, (head + 1) * width)
            found = _taken(case, dict.fromkeys(signals, -1), channels)
            found = _taken(found, dict.fromkeys(by_head, 0), slice(head, head + 1))
            yield replace(found, options={**found.options, "heads": 1}) if "heads" in found.options else found
    elif width > 1:
        for channels in (slice(0, width // 2), slice(width // 2, None), slice(1, None)):
            yield _taken(case, dict.fromkeys(signals, -1), channels)


def _halves(case: Case, axes: Mapping[str, int], ends: bool = True) -> Iterator[Case]:
    size = min(case.arrays[name].shape[axis] for name, axis in axes.items())
    for part in (slice(0, size // 2), slice(size // 2, None), slice(0, -1), slice(1, None)):
        if ends or part.start == 0:
            yield from _cut(case, axes, part)


def _cut(case: Case, axes: Mapping[str, int], part: slice) -> Iterator[Case]:
    found = _taken(case, axes, part)
    if any(found.arrays[name].size < case.arrays[name].size for name in axes) and all(
        found.arrays[name].size for name in axes
    ):
        yield found


def _taken(case: Case, axes: Mapping[str, int], part: slice) -> Case:
    arrays = dict(case.arrays)
    for name, axis in axes.items():
        at: list[slice] = [slice(None)] * arrays[name].ndim
        at[axis] = part
        arrays[name] = arrays[name][tuple(at)]
    return replace(case, arrays=arrays)


def _simpler_values(case: Case) -> Iterator[Case]:
    """Yield cases with zeros, ones and short numbers in place of others."""
    for name, values in case.arrays.items():
        if name == "segment_ids":
            continue
        flat = values.ravel()
        nonzero = np.flatnonzero(flat != 0)
        for part in (nonzero, nonzero[: len(nonzero) // 2], nonzero[len(nonzero) // 2 :], *nonzero[:20, None]):
            if len(part):
                yield _with(case, name, _put(flat, part, 0).reshape(values.shape))
        finite = np.isfinite(values) & (values != 0)
        if np.any(values[finite] != 1):
            yield _with(case, name, np.where(finite, 1, values).astype(values.dtype))
        scale = 2.0 ** np.floor(np.log2(np.abs(np.where(finite, values, 1))))
        short = np.where(finite, np.sign(values.real) * scale if np.isrealobj(values) else scale, values)
        if not np.array_equal(short, values, equal_nan=True):
            yield _with(case, name, short.astype(values.dtype))


def _put(flat: Numbers, at: Numbers, value: float) -> Numbers:
    changed = flat.copy()
    changed[at] = value
    return changed


def _with(case: Case, name: str, values: Numbers) -> Case:
    return replace(case, arrays={**case.arrays, name: values})
