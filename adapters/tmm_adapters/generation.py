"""What is asked of texts that a model continues, in the same words for every framework."""

from __future__ import annotations

import math
from typing import Any

from tmm_core import TMMConfig
from tmm_core.errors import InputError

__all__ = ["ContextFullError", "check_sampling", "longest_text"]


class ContextFullError(InputError):
    """Raised in generation when the model has no position for another token.

    Attributes
    ----------
    tokens : array of integers, as `generate` returns them
        All rows' tokens so far.
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


def longest_text(config: TMMConfig) -> float:
    """Return how many tokens a text can have: those of the position bias, or infinity without one."""
    return config.max_len if config.position_bias and config.n_layers else math.inf


def check_sampling(
    shape: tuple[int, ...],
    max_new_tokens: int,
    vocab_size: int,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float,
    stop_token: int | None,
) -> None:
    """Refuse what generation cannot do, given the shape of the prompts."""
    if len(shape) != 2 or math.prod(shape) == 0:
        raise InputError(
            f"input_ids must be sequences with a token or more, (n,) or (b, n), got {tuple(shape)}: "
            "start from the end-of-text token where there is no prompt"
        )
    in_range = max_new_tokens >= 0 and temperature >= 0 and 0 < top_p <= 1  # NaN is refused as well
    if not in_range or (top_k is not None and top_k < 1):
        raise InputError(
            f"expected max_new_tokens >= 0, temperature >= 0, top_k >= 1 and 0 < top_p <= 1, got {max_new_tokens=}, "
            f"{temperature=}, {top_k=} and {top_p=}"
        )
    if stop_token is not None and not 0 <= stop_token < vocab_size:
        raise InputError(f"stop_token {stop_token} is outside the vocabulary of {vocab_size} tokens")
