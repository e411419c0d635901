"""A failing case made smaller as long as it fails in the same way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
    """Yield cases that are simpler in one respect; of those that make no sense, the call is refused."""
    if case.setting:
        yield replace(case, setting="")
    if case.constants:
        yield replace(case, constants=())
    for name in case.made:
        yield replace(case, made=_without(case.made, name))
    yield from _simpler_options(case)
    for name in case.arrays.keys() & {"segment_ids", "bias"}:
        parts: Any = {part: _without(getattr(case, part), name) for part in ("arrays", "dtypes", "made")}
        yield replace(case, **parts)
    dtypes = set(case.dtypes.values()) - {"int32"}
    if len(dtypes) > 1 and len({dtype.startswith("complex") for dtype in dtypes}) == 1:
        for dtype in dtypes:
            yield replace(case, dtypes={name: own if own == "int32" else dtype for name, own in case.dtypes.items()})
    yield from _shorter(case)
    yield from _simpler_values(case)


def _without(named: Any, name: str) -> dict[str, Any]:
    return {other: value for other, value in named.items() if other != name}


def _simpler_options(case: Case) -> Iterator[Case]:
    for name, value in case.options.items():
        if name != "backend" and not (name == "softplus" and "mean" in case.options):
            yield replace(case, options=_without(case.options, name))
        if type(value) is int:
            for less in {1, value // 2, value - 1} - {0, value}:
                yield replace(case, options={**case.options, name: less})


def _shorter(case: Case) -> Iterator[Case]:
    """Yield cases of which one array, or several at once, are cut along an axis of the same size each."""
    for axes in itertools.product(*((None, *range(a.ndim)) for a in case.arrays.values())):
        cut = {name: axis for name, axis in zip(case.arrays, axes, strict=True) if axis is not None}
        sizes = {case.arrays[name].shape[axis] for name, axis in cut.items()}
        if len(sizes) == 1 and (size := sizes.pop()) > 1:
            for part in (slice(size // 2), slice(size // 2, None), slice(size - 1), slice(1, None)):
                shorter = {name: case.arrays[name][(*[slice(None)] * axis, part)] for name, axis in cut.items()}
                yield replace(case, arrays={**case.arrays, **shorter})


def _simpler_values(case: Case) -> Iterator[Case]:
    """Yield cases with zeros, ones and short numbers in place of others."""
    for name, values in _without(case.arrays, "segment_ids").items():
        nonzero = np.flatnonzero(values != 0)
        for part in (nonzero, *np.array_split(nonzero, 2), *nonzero[:20, None]):
            if len(part):
                simpler = values.copy()
                simpler.flat[part] = 0
                yield _with(case, name, simpler)
        finite = np.isfinite(values) & (values != 0)
        size = np.where(finite, np.abs(values), 1)
        for simple in (1, 2.0 ** np.floor(np.log2(size)), 2.0 ** np.floor(np.log2(size)) * np.sign(values.real)):
            simpler = np.where(finite, simple, values)
            if np.count_nonzero(simpler != values) > np.count_nonzero(np.isnan(values)):
                yield _with(case, name, simpler)


def _with(case: Case, name: str, values: Numbers) -> Case:
    return replace(case, arrays={**case.arrays, name: values.astype(case.arrays[name].dtype)})
