"""Small models of every architecture, by name, and by a variant of it where the variant is computed otherwise."""

from __future__ import annotations

from typing import Any

from torch import nn

from tmm_adapters.architecture import Architecture, ModelConfig, architectures, get_architecture

__all__ = ["COMPARISONS", "MODELS", "NAMES", "small_config", "small_model"]

NAMES = [name for name in architectures() if name != "tmm"]
"""The architectures that a TMM is compared with."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tmm-heads": ("tmm", {"n_heads": 4, "position_bias": True}),
    "linear-attention-exp": ("linear-attention", {"features": "exp"}),
    "masked-mixer-heads": ("masked-mixer", {"n_heads": 4, "kernel_size": 4}),
}
OPTIONS: dict[str, dict[str, Any]] = {"window": {"window": 8}, "mamba2": {"chunk_size": 8}}
COMPARISONS = [*NAMES, *(variant for variant, (name, _) in VARIANTS.items() if name in NAMES)]
"""They and their variants."""
MODELS = ["tmm", "tmm-heads", *COMPARISONS]


def small_config(name: str, **size: Any) -> tuple[Architecture[Any], ModelConfig]:
    """Return an architecture, and a configuration of two layers."""
    registered, options = VARIANTS.get(name, (name, OPTIONS.get(name, {})))
    architecture = get_architecture(registered)
    size = {"vocab_size": 50, "max_len": 40, "d_model": 32, "n_layers": 2} | size
    return architecture, architecture.config_class.preset(**size, **options)


def small_model(name: str, *, seed: int = 3, **size: Any) -> nn.Module:
    """Return a model of `small_config` in eval mode and float64."""
    architecture, config = small_config(name, **size)
    return architecture.torch_model(config, seed=seed).double().eval()
