"""What all are held against, in NumPy and float64, and how far from it each may be.

Products are sums written out, models the definition in `tmm_core.lm`. The gradient of a parameter is known by its slope
along one random direction, from differences of the definition's loss; a curve of training begins with the definition's
loss. All else of both is the first framework's, so that frameworks are held against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core import lm, use_backend
from tmm_core.testing.oracles import (
    correlation_bound,
    dense_correlation,
    dense_product,
    error_bound,
)
from tmm_core.testing.streams import stream_error_bound

from .inputs import CASES, ModelCase, Product
from .measures import Key

__all__ = ["LOGITS", "TOLERANCES", "Reference", "units"]

Numbers = NDArray[Any]
Bound = Callable[[str], Numbers]
"""Of a dtype."""

TOLERANCES = {"float32": 1e-4, "float64": 1e-9}
"""Of a model's gradients relative to the largest entry of each parameter, of a loss relative to itself."""
LOGITS = {"float32": 1e-5, "float64": 1e-12}
"""Of logits, relative to the largest: fewer roundings, and no differences in what they are held against."""


def units(found: Numbers, expected: Numbers, bound: Numbers | float) -> float:
    """Return the largest difference in units of what is allowed; infinite for NaN and for other shapes."""
    if found.shape != expected.shape:
        return math.inf
    share = np.abs(found.astype(float) - expected) / np.maximum(bound, 1e-300)
    return math.inf if not np.all(np.isfinite(share)) else float(np.max(share, initial=0.0))


class Reference:
    """The numbers of NumPy in float64, and what is allowed of each."""

    def __init__(self) -> None:
        """Compute them: some seconds, most of them for slopes."""
        self._arrays: dict[Key, Numbers] = {}
        self._bounds: dict[Key, Bound] = {}
        self._slopes: dict[Key, tuple[Numbers, Numbers]] = {}
        for name, case in CASES["product"]().items():
            self._add_products(name, case)
        for name, case in CASES["stream"]().items():
            bound = partial(stream_error_bound, case.w, case.x)
            self._add(Key("stream", name, ""), dense_product(case.w, case.x), bound)
        with use_backend("numpy"):
            for name, case in CASES["model"]().items():
                self._add_model(name, case)
            for name, case in CASES["train"]().items():
                loss = lm.loss(case.params(), case.batches()[0], case.config)
                self._add(Key("train", name, "first loss"), np.asarray(loss))

    def adopt(self, found: Mapping[Key, Numbers]) -> None:
        """Take from a framework what the definition does not tell, unless it is there: gradients and a curve."""
        for key, array in found.items():
            if key not in self._arrays and (key in self._slopes or key.part == "curve"):
                self._arrays[key] = array

    def holds(self, found: Mapping[Key, Numbers]) -> bool:
        """Return whether one of the arrays is the reference itself."""
        return any(array is self._arrays.get(key) for key, array in found.items())

    def keys(self, topic: str) -> list[Key]:
        """Return everything that a topic has."""
        return [key for key in {**self._arrays, **self._slopes} if key.topic == topic]

    def units(self, key: Key, found: Numbers, dtype: str) -> float:
        """Return how far an array is from the reference, in units of what is allowed."""
        found, expected = found.astype(float), self._arrays[key].astype(float)
        if key in self._bounds:
            return units(found, expected, self._bounds[key](dtype))
        tolerance, size = (LOGITS if key.part == "logits" else TOLERANCES)[dtype], np.abs(expected)
        share = units(found, expected, tolerance * (size if key.topic == "train" else np.max(size)))
        if key not in self._slopes:
            return share
        direction, slope = self._slopes[key]
        if found.shape != direction.shape:
            return math.inf
        along, length = np.asarray(np.vdot(direction, found)), float(np.linalg.norm(found))
        return max(share, units(along, slope, tolerance * length))

    def _add(self, key: Key, array: Numbers, bound: Bound | None = None) -> None:
        """Add an array and what is allowed in a dtype: unless given, a share of what is expected."""
        self._arrays[key] = array
        if bound is not None:
            self._bounds[key] = bound

    def _add_products(self, name: str, case: Product) -> None:
        """Add sums written out."""
        heads, kernel_size, lags = case.w.shape
        correlation = dense_correlation(case.x, case.g, lags, heads, kernel_size)
        of_lags = partial(correlation_bound, case.x, case.g, heads=heads, kernel_size=kernel_size)
        for operation, adjoint in (("product", False), ("adjoint", True)):
            bound = partial(error_bound, case.w, case.x, adjoint=adjoint)
            self._add(Key(operation, name, ""), dense_product(case.w, case.x, adjoint=adjoint), bound)
        self._add(Key("correlate", name, ""), correlation, of_lags)
        self._add(Key("differentiate", name, "w"), correlation, of_lags)
        bound = partial(error_bound, case.w, case.g, adjoint=True)
        self._add(Key("differentiate", name, "x"), dense_product(case.w, case.g, adjoint=True), bound)

    def _add_model(self, name: str, case: ModelCase) -> None:
        """Add logits, and of each parameter a direction and the slope along it, by differences of order 6."""
        self._add(Key("model", name, "logits"), lm.forward(case.params, case.ids, case.config))
        rng, h = np.random.default_rng(5), 0.01
        for parameter, p in case.params.items():
            direction = rng.standard_normal(p.shape)
            direction /= np.linalg.norm(direction)
            if parameter in lm.frozen_names(case.config):
                continue
            f = [
                float(lm.loss({**case.params, parameter: p + s * h * direction}, case.ids, case.config))
                for s in (-3, -2, -1, 1, 2, 3)
            ]
            slope = (45 * (f[3] - f[2]) - 9 * (f[4] - f[1]) + (f[5] - f[0])) / (60 * h)
            self._slopes[Key("model", name, parameter)] = direction, np.asarray(slope)
