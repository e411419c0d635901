"""What is asked of texts that a model continues, in the same words for every framework."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tmm_core.errors import InputError

__all__ = ["DEFAULT_SAMPLING", "ContextFullError", "Sampling", "check_prompts"]


class ContextFullError(InputError):
    """Raised in generation when the model has no position for another token.

    Attributes
    ----------
    tokens : array of integers, as `generate` returns them, and (b, n) from `new_tokens`
        The prompts and all new tokens so far.
    """

    def __init__(self, max_len: float, tokens: Any) -> None:
        """Say where texts end."""
        super().__init__(
            f"a text of this model ends at {max_len=} tokens: ask for fewer, shorten the prompt, or take a model "
            "whose texts do not end, such as a TMM trained with position_bias=False"
        )
        self.max_len = max_len
        self.tokens = tokens

    def __reduce__(self) -> tuple[type[ContextFullError], tuple[float, Any]]:
        """Be pickled by what it is made of, not by the message."""
        return type(self), (self.max_len, self.tokens)


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    temperature: float = 0.8
    """Divides the logits; 0 takes the likeliest token each time."""
    top_k: int | None = None
    """Sample from this many tokens, the likeliest."""
    top_p: float = 0.95
    """Sample from the fewest tokens that together have this probability."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        in_range = self.temperature >= 0 and 0 < self.top_p <= 1  # NaN is refused as well
        if not in_range or (self.top_k is not None and self.top_k < 1):
            raise InputError(f"expected temperature >= 0, top_k >= 1 and 0 < top_p <= 1, got {self}")


DEFAULT_SAMPLING = Sampling()


def check_prompts(shape: tuple[int, ...], max_new_tokens: int, vocab_size: int, eos_token_id: int | None) -> None:
    """Refuse what generation cannot do, given the shape of the prompts."""
    if len(shape) != 2 or math.prod(shape) == 0:
        raise InputError(
            f"input_ids must be sequences with a token or more, (n,) or (b, n), got {tuple(shape)}: "
            "start from the end-of-text token where there is no prompt"
        )
    if max_new_tokens < 0:
        raise InputError(f"expected max_new_tokens >= 0, got {max_new_tokens}")
    if eos_token_id is not None and not 0 <= eos_token_id < vocab_size:
        raise InputError(f"eos_token_id {eos_token_id} is outside the vocabulary of {vocab_size} tokens")
