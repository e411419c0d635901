"""One small model of every variant, and numbers to try it with; the tests of the language models read them, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmm_core import TMMConfig, lm

__all__ = ["VARIANTS", "random_ids", "random_params"]

_BASE: dict[str, Any] = {"vocab_size": 11, "max_len": 12, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_mlp": 12}

_CHANGES: dict[str, dict[str, Any]] = {
    "heads": {},
    "flat": {"n_heads": 0},
    "one_head": {"n_heads": 1},
    "depthwise": {"n_heads": 8},
    "no_projections": {"projections": False},
    "no_out_proj_bias": {"out_proj_bias": False},
    "kernel": {"n_heads": 0, "kernel_size": 3},
    "kernel_heads": {"kernel_size": 2},
    "kernel_wider_than_head": {"kernel_size": 5},
    "two_layer": {"n_heads": 0, "mix_layers": 2},
    "two_layer_heads": {"mix_layers": 2},
    "two_layer_softplus_mean": {"mix_layers": 2, "softplus": True, "mean": True},
    "softplus": {"softplus": True},
    "softplus_kernel": {"softplus": True, "kernel_size": 2},
    "mean": {"softplus": True, "mean": True},
    "mean_banded": {"softplus": True, "mean": True, "n_lags": 5, "position_bias": False},
    "mix_first": {"order": "mix_first"},
    "rms": {"norm": "rms"},
    "final_norm": {"final_norm": True},
    "final_rms": {"final_norm": True, "norm": "rms"},
    "tied": {"tie_embeddings": True, "embed_std": 0.3},
    "gelu": {"activation": "gelu_tanh"},
    "no_position_bias": {"position_bias": False},
    "few_lags": {"n_lags": 5},
    "more_lags": {"n_lags": 17},
    "no_blocks": {"n_layers": 0},
    "frozen_lags": {"frozen": "lags", "mix_layers": 2},
    "frozen_projections": {"frozen": "projections"},
    "later": {
        "order": "mix_first", "norm": "rms", "final_norm": True, "softplus": True, "mean": True,
        "activation": "gelu_tanh", "out_proj_bias": False,
    },
}  # fmt: skip

VARIANTS = {name: TMMConfig(**{**_BASE, **changes}) for name, changes in _CHANGES.items()}


def random_params(config: TMMConfig, dtype: Any = np.float64, seed: int = 0) -> dict[str, Any]:
    """Return parameters whose every entry matters: initial values would leave norms and position biases at rest."""
    rng = np.random.default_rng(seed)
    first = lm.init_params(config, rng)
    return {name: (p + 0.2 * rng.standard_normal(p.shape)).astype(dtype) for name, p in first.items()}


def random_ids(config: TMMConfig, shape: tuple[int, ...] = (2, 12), seed: int = 1) -> Any:
    """Return tokens of the vocabulary."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, shape)
