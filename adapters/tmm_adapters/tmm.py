"""The Toeplitz MLP Mixer as an architecture: what training, evaluation and the command line ask of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tmm_core import TMMConfig, lm

from .architecture import Architecture, Heatmap, JaxFunctions, config_to_dict
from .hub import AUTO_MAP
from .words import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .torch import LanguageModel

__all__ = ["TMM"]


class TMM(Architecture[TMMConfig]):
    """The Toeplitz MLP Mixer, in PyTorch and in JAX."""

    title = "Toeplitz MLP Mixer"
    config_class = TMMConfig
    frameworks = ("torch", "jax")
    has_toeplitz_products = True

    def n_parameters(self, config: TMMConfig) -> int:
        """Return the number of parameters."""
        return sum(map(math.prod, lm.parameter_shapes(config).values()))

    def flops_per_token(self, config: TMMConfig) -> int:
        """Return the floating-point operations that training takes a token."""
        return lm.flops_per_token(config)

    def learning_rate(self, config: TMMConfig) -> float:
        """Return 0.768 / width.

        Adam's steps do not shrink with the gradients, so a learning rate goes with 1 / width: 0.006 was the best
        measured at 128 channels (0.003 and 0.012 were worse), 0.003 served at 256.
        """
        return 0.768 / config.d_model

    def summary(self, config: TMMConfig) -> str:
        """Return layers, channels, heads and context."""
        heads = counted(config.n_heads, "head") if config.n_heads else "flat"
        layers, channels = counted(config.n_layers, "layer"), counted(config.d_model, "channel")
        return f"{layers}, {channels}, {heads}, context {config.max_len:,}"

    def longest_text(self, config: TMMConfig) -> float:
        """Return the positions of the position bias, or infinity without one."""
        return config.longest_text

    def decayed_names(self, config: TMMConfig, shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """Return the weights of linear maps."""
        return lm.decayed_names(config)

    def file_fields(self, config: TMMConfig) -> dict[str, Any]:
        """Return what transformers reads, and the configuration itself as `tmm`."""
        theirs = {"architectures": ["TMMForCausalLM"], "auto_map": AUTO_MAP, "model_type": config.model_type}
        return {**theirs, "tmm": config_to_dict(config)}

    def check_params(self, params: Mapping[str, Any], config: TMMConfig) -> None:
        """Refuse parameters that are not those of `config`."""
        lm.check_params(params, config)

    def torch_model(self, config: TMMConfig, *, seed: int) -> LanguageModel:
        """Return the PyTorch model."""
        from .torch import LanguageModel

        return LanguageModel(config, seed=seed)

    def torch_from_params(self, params: Mapping[str, Any], config: TMMConfig) -> LanguageModel:
        """Return the PyTorch model with these parameters."""
        from .torch import LanguageModel

        return LanguageModel.from_params(params, config)

    def jax_functions(self) -> JaxFunctions:
        """Return the functions of `tmm_adapters.jax`."""
        from . import jax

        return cast(JaxFunctions, jax)

    def is_logged(self, name: str) -> bool:
        """Keep the lags."""
        return ".mix.lags" in name

    def heatmap(self, config: TMMConfig, logged: Mapping[str, NDArray[Any]]) -> Heatmap | None:
        """Return the effective lags, one row a filter."""
        import numpy as np

        rows: list[NDArray[Any]] = []
        names: list[str] = []
        for layer in range(config.n_layers):
            for suffix in ("", "2")[: config.mix_layers]:
                w = np.asarray(logged[f"blocks.{layer}.mix.lags{suffix}"], np.float64)
                w = np.logaddexp(w, 0) if config.softplus else w
                w = w[:, None] if w.ndim == 2 else w  # (h, m, k)
                for head, kernel in np.ndindex(*w.shape[:2]):
                    parts = [f"layer {layer + 1}"]
                    parts += [f"T{suffix or 1}"] if config.mix_layers == 2 else []
                    parts += [f"head {head + 1}"] if config.n_heads > 0 else []
                    parts += [f"channel {kernel - config.kernel_size + 1:+d}"] if config.kernel_size > 1 else []
                    rows.append(w[head, kernel])
                    names.append(", ".join(parts))
        if not rows:
            return None
        title = "lags of each head, each row by its largest"
        return Heatmap(title, "lag (tokens back)", np.stack(rows), names, len(rows) // config.n_layers)
