"""What all comparison architectures tell about themselves in the same way."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from tmm_adapters.architecture import Architecture
from tmm_core.errors import InputError
from tmm_core.fields import Configuration, Count, Size

from .flops import Flops

__all__ = ["PAPER", "Comparison", "ComparisonConfig", "check_heads"]

PAPER: dict[str, Any] = {"vocab_size": 8000, "max_len": 512, "d_model": 512, "n_layers": 16}
"""The size of the Toeplitz paper's models that are compared with a TMM of 1024 channels (arXiv 2605.06683)."""

BATCH = 16
"""Texts that share what is computed once for all, in `flops_per_token`."""


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig(Configuration):
    """The size of a language model; a subclass adds what its architecture needs.

    Raises
    ------
    TypeError
        If a field is no plain value of its type.
    ValueError
        If the fields cannot be a model; the message names the field.
    """

    model_type: ClassVar[str]
    """The name under which the architecture is registered."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PAPER}

    vocab_size: Count = 257
    """Number of token ids; 257 is every byte and an end-of-text."""
    max_len: Count = 256
    """Tokens of the training context."""
    d_model: Count = 128
    """Channels of the residual stream."""
    n_layers: Size = 4
    """Blocks."""


C = TypeVar("C", bound=ComparisonConfig)


class Comparison(Architecture[C]):
    """A kind of language model that a TMM is compared with, in PyTorch."""

    model_class: ClassVar[type[Any]]
    """Makes the model of a configuration, with initial parameters from PyTorch's generator."""
    limited: ClassVar[bool] = True
    """Whether texts end where the training context does."""

    @abstractmethod
    def flops(self, config: C, n: int, batch: int = BATCH) -> Flops:
        """Return the operations a token of `batch` texts of `n` tokens, which share what is computed once for all."""

    def n_parameters(self, config: C) -> int:
        """Return the number of parameters."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.model_class(config).parameters())

    def flops_per_token(self, config: C) -> int:
        """Return the floating-point operations that training takes a token, at the length of the training context."""
        return round(self.flops(config, config.max_len).training)

    def learning_rate(self, config: C) -> float:
        """Return 0.384 / width: 0.003 at 128 channels."""
        return 0.384 / config.d_model

    def longest_text(self, config: C) -> float:
        """Return the training context, or infinity where positions are relative."""
        return config.max_len if self.limited else math.inf

    def decayed_names(self, config: C, shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """Return the weights of linear maps of tokens; tables, filters and mixing weights are not decayed."""
        tables = ("embed", "positions", "filter", "bias")
        return frozenset(
            name
            for name, shape in shapes.items()
            if len(shape) == 2 and not any(part.startswith(tables) for part in name.split("."))
        )

    def torch_model(self, config: C, *, seed: int) -> nn.Module:
        """Return the model with its initial parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: nn.Module = self.model_class(config)
        return model


def check_heads(heads: int, d_model: int, *, even: bool = False) -> None:
    """Refuse heads that do not divide the channels, into even numbers where positions rotate pairs of them."""
    if d_model % heads or (even and d_model // heads % 2):
        each = "an even number of channels" if even else "as many channels"
        raise InputError(f"n_heads={heads} does not suit d_model={d_model}: every head needs {each}")
