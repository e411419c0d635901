"""Attention within a window: the modules of transformers' `MistralForCausalLM` (arXiv 2310.06825), exact windows.

The block is that of `llama`, but a token attends to itself and the `window - 1` tokens before it, so that n layers
reach n (window - 1) tokens back. `d_mlp` is the inner width of the gated MLP; 8/3 d, rounded up, gives a block the
weights of the paper's windowed Transformer, whose MLP has two maps of 4 d: 12 d^2. That one, of
linear-attention-transformer, cuts the text into blocks, and a token attends to its block and all of the one before; it
has biases, LayerNorm and a position table where this one has rotary positions.

transformers computes the whole square of scores and masks it: the operations are those of full attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import MistralConfig, MistralForCausalLM

from tmm_core.fields import Count

from .llama import Llama, LlamaConfig
from .transformers_models import NO_SPECIAL_TOKENS, TransformersModel

__all__ = ["Window", "WindowConfig", "WindowModel"]


@dataclass(frozen=True, kw_only=True)
class WindowConfig(LlamaConfig):
    """Describe a Transformer with windowed attention."""

    model_type: ClassVar[str] = "window"

    d_mlp: Count | None = None
    """Inner width of the gated MLP; 8/3 of `d_model`, rounded up, unless given."""
    window: Count = 64
    """Tokens that a token attends to, itself included."""

    @property
    def mlp_width(self) -> int:
        """Inner width of the gated MLP."""
        return -(-8 * self.d_model // 3) if self.d_mlp is None else self.d_mlp

    def to_transformers(self) -> Any:
        """Return the configuration of transformers."""
        return MistralConfig(
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_len,
            hidden_size=self.d_model,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_heads,
            intermediate_size=self.mlp_width,
            sliding_window=self.window,
            **NO_SPECIAL_TOKENS,
        )


class WindowModel(TransformersModel, MistralForCausalLM):  # type: ignore[no-untyped-call]
    """The language model."""

    def __init__(self, config: WindowConfig) -> None:
        """Make the model with transformers' initial parameters."""
        super().__init__(config.to_transformers())


class Window(Llama):
    """Windowed attention, of transformers."""

    title = "Transformer with windowed attention"
    config_class = WindowConfig
    model_class = WindowModel
