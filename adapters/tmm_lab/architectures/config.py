"""What the configurations of all comparison models have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tmm_core.errors import InputError
from tmm_core.fields import Configuration, Count, Size

__all__ = ["ComparisonConfig", "check_heads"]


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

    vocab_size: Count = 257
    """Number of token ids; 257 is every byte and an end-of-text."""
    max_len: Count = 256
    """Tokens of the training context."""
    d_model: Count = 128
    """Channels of the residual stream."""
    n_layers: Size = 4
    """Blocks."""


def check_heads(heads: int, d_model: int, *, even: bool = False) -> None:
    """Refuse heads that do not divide the channels, into even numbers where positions rotate pairs of them."""
    if d_model % heads or (even and d_model // heads % 2):
        each = "an even number of channels" if even else "as many channels"
        raise InputError(f"n_heads={heads} does not suit d_model={d_model}: every head needs {each}")
