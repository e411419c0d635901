"""The Fredholm index with its proof: of all filters of a model, and of one long filter."""

from __future__ import annotations

import numpy as np

import tmm_core

from . import ready

LAYERS, HEADS, LAGS, LONG = 16, 4, 1024, 65536


class Index:
    """Seconds, of random lags as layers start from."""

    rounds = 1

    def setup(self) -> None:
        """Choose threads, and draw the lags."""
        ready("array_api")
        rng = np.random.default_rng(0)
        self.layers = rng.standard_normal((LAYERS, HEADS, LAGS)) * (2 / LAGS) ** 0.5
        self.long = rng.standard_normal(LONG) * (2 / LONG) ** 0.5

    def time_model(self) -> None:
        """Judge 16 layers of 4 heads of 1024 lags."""
        for filters in self.layers:
            tmm_core.fredholm_index(filters)

    def time_long_filter(self) -> None:
        """Judge one filter of 65536 lags."""
        tmm_core.fredholm_index(self.long)
