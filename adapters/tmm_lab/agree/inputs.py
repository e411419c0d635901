"""What every backend computes: the same numbers, which float32 holds exactly, so that all read the same ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core import TMMConfig, lm
from tmm_core.testing.oracles import normal

from .variants import VARIANTS, random_ids, random_params

__all__ = ["CASES", "DTYPES", "PROMPT", "TRAINING", "WHOLE", "ModelCase", "Product", "Training", "models"]

Numbers = NDArray[Any]

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Product:
    """A filter, a signal that it is applied to, and weights of the outputs."""

    w: Numbers
    """(h, m, k)"""
    x: Numbers
    """(b, n, d)"""
    g: Numbers
    """(b, n, d)"""

    @classmethod
    def draw(cls, seed: int, n: int, heads: int, kernel_size: int, lags: int) -> Product:
        """Return one of normal numbers."""
        rng = np.random.default_rng(seed)
        w = normal(rng, heads, kernel_size, lags, dtype="float32")
        return cls(w, *(normal(rng, 2, n, 8, dtype="float32") for _ in range(2)))


PRODUCTS = {
    "two heads": Product.draw(0, 300, heads=2, kernel_size=1, lags=300),
    "kernels of 3, banded": Product.draw(1, 200, heads=2, kernel_size=3, lags=90),
}


STREAM = {"two heads": Product.draw(2, 160, heads=2, kernel_size=1, lags=160)}
PROMPT = 88
"""Tokens of a stream that come at once; as many as fill a tile, and some, follow one by one."""


@dataclass(frozen=True)
class ModelCase:
    """A model of one block, its parameters and tokens."""

    config: TMMConfig
    params: dict[str, Numbers]
    ids: Numbers
    """(b, n)"""
    whole: bool = False
    """Whether libraries that compile do so here as users do: the whole model as one program, with usual options."""


WHOLE = ("later",)
"""Models that JAX compiles, a second or two each; the one that is trained is compiled, too."""


@functools.cache
def models() -> dict[str, ModelCase]:
    """Return a model of every variant: in one block each part is computed as in many."""
    found = {}
    for name, config in VARIANTS.items():
        config = dataclasses.replace(config, n_layers=min(config.n_layers, 1))
        params = {key: p.astype(np.float32).astype(float) for key, p in random_params(config).items()}
        found[name] = ModelCase(config, params, random_ids(config), name in WHOLE)
    return found


@dataclass(frozen=True)
class Training:
    """Steps of AdamW from one seed, on the same text."""

    config: TMMConfig = TMMConfig(vocab_size=16, max_len=16, d_model=16, n_layers=1, n_heads=2, d_mlp=32)  # noqa: RUF009
    steps: int = 200
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip: float = 1.0

    def params(self) -> dict[str, Numbers]:
        """Return the initial parameters, in float64."""
        return {name: p.astype(float) for name, p in lm.init_params(self.config, np.random.default_rng(0)).items()}

    def batches(self) -> Numbers:
        """Return the text, (steps, 4, n): walks that step by 1, 2 or 3, all alike within a row, with some noise."""
        rng = np.random.default_rng(1)
        shape = (self.steps, 4, self.config.max_len)
        walk = rng.integers(0, 16, (*shape[:2], 1)) + rng.integers(1, 4, (*shape[:2], 1)) * np.arange(shape[2])
        noise = (rng.random(shape) < 0.1) * rng.integers(0, 16, shape)
        return np.asarray((walk + noise) % self.config.vocab_size)


TRAINING = Training()

CASES: dict[str, Callable[[], Mapping[str, Any]]] = {
    **dict.fromkeys(("product", "adjoint", "correlate", "differentiate"), lambda: PRODUCTS),
    "stream": lambda: STREAM,
    "model": models,
    "train": lambda: {"training": TRAINING},
}
"""By topic of `measures.TOPICS`, what is computed."""
