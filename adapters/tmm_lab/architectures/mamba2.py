"""Mamba 2 (arXiv 2405.21060), a selective state space model: the modules of transformers' `Mamba2ForCausalLM`.

For each of H heads of P = 2 d / H channels, with B and C (N) shared by the heads of a group, a step dt > 0 and a rate a
< 0,

    S_t = exp(dt_t a) S_{t-1} + dt_t x_t B_t^T  (P, N);  y_t = S_t C_t + D x_t

x, B, C are linear in the normalised residual stream, convolved causally with 4 taps, through SiLU; y is gated by SiLU
of another linear map, normalised and projected back. There is no MLP. The state is computed in chunks, whose size
changes the speed and the memory but not the result. Defaults are the shape of the Toeplitz paper's experiments: 8 heads
and groups, N = d/2, so that a state has d^2 numbers. Initial values are transformers' own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import transformers

from tmm_core.errors import InputError
from tmm_core.fields import Count

from .comparison import BATCH
from .flops import Flops, linear
from .transformers_models import NO_SPECIAL_TOKENS, TransformersArchitecture, TransformersConfig, TransformersModel

__all__ = ["Mamba2", "Mamba2Config", "Mamba2Model"]

EXPAND = 2
TAPS = 4


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(TransformersConfig):
    """Describe a Mamba 2."""

    model_type: ClassVar[str] = "mamba2"

    n_heads: Count = 8
    """Heads, each over `2 * d_model / n_heads` channels."""
    n_groups: Count = 8
    """Groups of heads that share what is written into and read from their states."""
    state_size: Count | None = None
    """Numbers a channel of the state; `d_model / 2` unless given."""
    chunk_size: Count = 32
    """Tokens of a chunk, for speed and memory only."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        inner = EXPAND * self.d_model
        if inner % self.n_heads:
            raise InputError(f"n_heads={self.n_heads} does not divide the inner width, {EXPAND} d_model = {inner}")
        if self.n_heads % self.n_groups:
            raise InputError(f"n_groups={self.n_groups} does not divide n_heads={self.n_heads}")
        if self.state_size is None and self.d_model % 2:
            raise InputError(f"d_model={self.d_model} must be even unless state_size is given")

    @property
    def state(self) -> int:
        """Numbers a channel of the state."""
        return self.d_model // 2 if self.state_size is None else self.state_size

    def to_transformers(self) -> Any:
        """Return the configuration of transformers."""
        return transformers.Mamba2Config(
            vocab_size=self.vocab_size,
            hidden_size=self.d_model,
            num_hidden_layers=self.n_layers,
            num_heads=self.n_heads,
            head_dim=EXPAND * self.d_model // self.n_heads,
            n_groups=self.n_groups,
            state_size=self.state,
            expand=EXPAND,
            conv_kernel=TAPS,
            chunk_size=self.chunk_size,
            **NO_SPECIAL_TOKENS,
        )


class Mamba2Model(TransformersModel, transformers.Mamba2ForCausalLM):  # type: ignore[no-untyped-call]
    """The language model."""

    def __init__(self, config: Mamba2Config) -> None:
        """Make the model with transformers' initial parameters."""
        super().__init__(config.to_transformers())
        self.vocab_size = config.vocab_size
        if not torch.cuda.is_available():  # where transformers' advice to install kernels of CUDA is of no use
            logging.getLogger("transformers.integrations.hub_kernels").addFilter(_is_no_advice)


class Mamba2(TransformersArchitecture[Mamba2Config]):
    """Mamba 2, of transformers."""

    title = "Mamba 2"
    config_class = Mamba2Config
    model_class = Mamba2Model

    def flops(self, config: Mamba2Config, n: int, batch: int = BATCH) -> Flops:
        """Return the operations a token of texts of `n` tokens, computed in chunks by einsums."""
        d, chunk = config.d_model, config.chunk_size
        inner, state, groups = EXPAND * d, config.state, 2 * config.n_groups * config.state
        chunks = -(-n // chunk)
        scan: float = chunk * (config.n_heads * state + inner)  # the squares inside chunks, and what they weigh
        scan += 2 * inner * state  # into the states of chunks, and out of them
        scan *= chunks * chunk / n  # the last one is padded
        between = (chunks + 1) ** 2 * inner * state / n  # every chunk's state reaches all later ones
        projections = d * (2 * inner + groups + config.n_heads) + inner * d + TAPS * (inner + groups)
        return linear(projections + scan + between) * config.n_layers + linear(d * config.vocab_size)


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Let a message pass unless it tells of the slower implementation; a function, which a logger adds once."""
    return "reference PyTorch implementation" not in record.getMessage()
