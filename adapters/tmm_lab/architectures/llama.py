"""Llama (arXiv 2302.13971), a Transformer with full causal attention: the modules of transformers' `LlamaForCausalLM`.

    x += W_o attention(rope(W_q norm(x)), rope(W_k norm(x)), W_v norm(x));  x += W_3 (silu(W_1 norm(x)) * W_2 norm(x))

with RMSNorm, h heads of d/h channels, rotary positions, no biases, a final norm and an output projection of its own.
`d_mlp` is the inner width of the gated MLP, whose three maps have d x d_mlp weights each; the Toeplitz paper's
experiments take 4 d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import transformers

from tmm_core.fields import Count

from .comparison import BATCH, check_heads
from .flops import Flops, attention, linear
from .transformers_models import NO_SPECIAL_TOKENS, TransformersArchitecture, TransformersConfig, TransformersModel

__all__ = ["Llama", "LlamaConfig", "LlamaModel"]


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(TransformersConfig):
    """Describe a Llama."""

    model_type: ClassVar[str] = "llama"

    n_heads: Count = 4
    """Heads of attention, each over `d_model / n_heads` channels, an even number."""
    d_mlp: Count | None = None
    """Inner width of the gated MLP; `4 * d_model` unless given."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        check_heads(self.n_heads, self.d_model, even=True)

    @property
    def mlp_width(self) -> int:
        """Inner width of the gated MLP."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    def to_transformers(self) -> Any:
        """Return the configuration of transformers."""
        return transformers.LlamaConfig(
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_len,
            hidden_size=self.d_model,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            intermediate_size=self.mlp_width,
            **NO_SPECIAL_TOKENS,
        )


class LlamaModel(TransformersModel, transformers.LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """The language model."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make the model with transformers' initial parameters."""
        super().__init__(config.to_transformers())


class Llama(TransformersArchitecture[LlamaConfig]):
    """Llama, of transformers."""

    title = "Llama"
    config_class = LlamaConfig
    model_class: ClassVar[type[Any]] = LlamaModel

    def flops(self, config: LlamaConfig, n: int, batch: int = BATCH) -> Flops:
        """Return the operations a token of texts of `n` tokens."""
        d = config.d_model
        block = linear(4 * d * d + 3 * d * config.mlp_width) + attention(d, n)
        return block * config.n_layers + linear(d * config.vocab_size)
