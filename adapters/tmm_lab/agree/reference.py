"""What all are held against, in NumPy and float64, and how far from it each may be.

Products are sums written out, models the definition in `tmm_core.lm`, the training curve has gradients by hand. The
gradient of a parameter is known by its slope along one random direction, from differences of the definition's loss.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core import lm, use_backend
from tmm_core.testing.oracles import (
    channel_norms,
    channel_pairs,
    dense_correlation,
    dense_product,
    error_bound,
    error_factor,
)
from tmm_core.testing.streaming import stream_error_bound

from .inputs import ModelCase, Product, Stream
from .measures import Key, cases
from .sides import Side

__all__ = ["LOGITS", "TOLERANCES", "Reference", "units"]

Numbers = NDArray[Any]

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
    """The numbers of NumPy in float64."""

    def __init__(self) -> None:
        """Compute them: some seconds, most of them for slopes."""
        self._cases = {(topic, name): case for topic, name, case in cases()}
        self._arrays: dict[Key, Numbers] = {}
        self._directions: dict[Key, Numbers] = {}
        side = Side()
        with use_backend("numpy"):
            for (topic, name), case in self._cases.items():
                if topic == "model":
                    self._arrays[Key(topic, name, "logits")] = side.model(case, "float64")["logits"]
                    self._add_slopes(name, case)
                elif topic == "train":
                    self._arrays[Key(topic, name, "")] = side.train(case, "float64")[""]
                else:
                    self._arrays |= {Key(topic, name, part): a for part, a in _sums(topic, case).items()}

    def units(self, key: Key, found: Numbers, dtype: str) -> float:
        """Return how far an array is from NumPy's, in units of what is allowed."""
        if key not in self._directions:
            return units(found, self._arrays[key], self._bound(key, self._arrays[key], dtype))
        direction = self._directions[key]
        if found.shape != direction.shape:
            return math.inf
        length = float(np.linalg.norm(found.astype(float)))
        slope = np.asarray(np.vdot(direction, found.astype(float)))
        return units(slope, self._arrays[key], TOLERANCES[dtype] * length)

    def units_between(self, key: Key, found: Numbers, second: Numbers, dtype: str) -> float:
        """Return how far an array is from that of a second reference, in the same units."""
        second = second.astype(float)
        return units(found, second, self._bound(key, second, dtype))

    def _bound(self, key: Key, expected: Numbers, dtype: str) -> Numbers | float:
        """Return what is allowed: the error law of products; for all of a model, a share of what is expected."""
        case = self._cases[key.topic, key.case]
        if key.topic in ("product", "adjoint"):
            return error_bound(case.w, case.x, dtype)
        if key.topic == "correlate" or (key.topic == "differentiate" and key.part == "w"):
            return _correlation_bound(case, dtype)
        if key.topic == "differentiate":
            return error_bound(case.w, case.g, dtype)
        if key.topic == "stream":
            return stream_error_bound(case.product.w, case.product.x, dtype)
        if key.topic == "model":
            tolerances = LOGITS if key.part == "logits" else TOLERANCES
            return tolerances[dtype] * float(np.max(np.abs(expected)))
        return np.asarray(TOLERANCES[dtype] * np.abs(expected))

    def _add_slopes(self, name: str, case: ModelCase) -> None:
        """Add a direction and the slope of the loss along it for every parameter, by differences of order 6."""
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
            self._directions[Key("model", name, parameter)] = direction
            self._arrays[Key("model", name, parameter)] = np.asarray(slope)

    def keys(self, topic: str) -> list[Key]:
        """Return everything that a topic has."""
        return [key for key in self._arrays if key.topic == topic]


def _sums(topic: str, case: Any) -> dict[str, Numbers]:
    """Return what a case of products is, summed by definition."""
    if isinstance(case, Stream):
        return {"": dense_product(case.product.w, case.product.x)}
    heads, kernel_size, lags = case.w.shape
    if topic == "correlate":
        return {"": dense_correlation(case.x, case.g, lags, heads, kernel_size)}
    if topic == "differentiate":
        return {
            "x": dense_product(case.w, case.g, adjoint=True),
            "w": dense_correlation(case.x, case.g, lags, heads, kernel_size),
        }
    return {"": dense_product(case.w, case.x, adjoint=topic == "adjoint")}


def _correlation_bound(case: Product, dtype: str) -> Numbers:
    """Return the error law's bound for each row of lags, (h, m, 1): over all pairs of channels that it joins."""
    heads, kernel_size, _ = case.w.shape
    total = np.zeros((heads, kernel_size, 1))
    x, g = channel_norms(case.x), channel_norms(case.g)
    for head, i, c, source in channel_pairs(heads, kernel_size, case.x.shape[-1]):
        total[head, i] += float(np.sum(x[..., source] * g[..., c]))
    return error_factor(case.x.shape[-2], dtype) * total
