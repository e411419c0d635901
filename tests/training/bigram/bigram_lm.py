"""A bigram table as an architecture of its own distribution: all that it takes to be trained by `tmm train`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tmm_adapters.architecture import Architecture
from tmm_adapters.torch.generation import TextGeneration
from tmm_core.fields import Configuration, Count


@dataclass(frozen=True, kw_only=True)
class BigramConfig(Configuration):
    """Describe a table."""

    model_type: ClassVar[str] = "bigram"

    vocab_size: Count = 257
    """Number of token ids."""
    max_len: Count = 16
    """Tokens of the training context."""
    spread: float = 0.1
    """Standard deviation of the initial logits."""


class Table(TextGeneration, nn.Module):
    """The logits of the next token by the token before it; a stream of tokens needs no state."""

    longest_text = math.inf

    def __init__(self, config: BigramConfig, seed: int) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        values = torch.randn(config.vocab_size, config.vocab_size, generator=torch.Generator().manual_seed(seed))
        self.logits = nn.Parameter(config.spread * values)

    def forward(self, input_ids: Tensor, targets: Tensor | None = None, **_: Tensor) -> dict[str, Tensor]:
        logits = self.logits[input_ids]  # (b, n) -> (b, n, V); documents begin with an end-of-text, and stay apart
        if targets is None:
            return {"logits": logits}
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())}

    def checked_tokens(self, input_ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return input_ids, mask

    def stream_plan(self, capacity: int) -> None: ...

    def stream_init(self, plan: None, batch_size: int) -> None: ...

    def stream_prefill(self, plan: None, state: None, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
        return self.logits.detach()[ids[:, -1]], None

    def stream_step(self, plan: None, state: None, tokens: Tensor) -> tuple[Tensor, None]:
        return self.logits.detach()[tokens], None

    def stream_reorder(self, state: None, indices: Tensor) -> None: ...


class Bigram(Architecture[BigramConfig]):
    """A table of bigrams."""

    title = "bigram table"
    config_class = BigramConfig

    def n_parameters(self, config: BigramConfig) -> int:
        return config.vocab_size**2

    def flops_per_token(self, config: BigramConfig) -> int:
        return 0

    def learning_rate(self, config: BigramConfig) -> float:
        return 0.1

    def torch_model(self, config: BigramConfig, *, seed: int) -> Table:
        return Table(config, seed)
