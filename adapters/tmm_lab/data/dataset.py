"""The order of the training samples: a function of the seed and the sample's number, so that runs can resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core.errors import InputError

from .tokens import samples_at

__all__ = ["TrainingSamples"]


class TrainingSamples:
    """An endless sequence of training samples, each one context of tokens.

    Every pass cuts the text into contexts from another random start, and takes them in random order. Sample `i` depends
    on the tokens, the context, the seed and `i` only.

    Parameters
    ----------
    tokens : integer array, shape (n_tokens,)
        A token file; only what a batch needs is read.
    context : int
        Tokens of a sample.
    seed : int
        Fixes the order.
    end_of_text : int or None
        The id at which documents begin, each isolated from the others; None joins them.

    Raises
    ------
    ValueError
        If the tokens do not fill one context and the token after it.
    """

    def __init__(self, tokens: NDArray[Any], context: int, seed: int, *, end_of_text: int | None) -> None:
        """Order the samples of `tokens`."""
        if len(tokens) <= context:
            raise InputError(
                f"the training text is too short: {len(tokens)} tokens, and one context needs {context + 1}; "
                f"give more text (--text), or a smaller context (--max-len {max(2, len(tokens) // 4)})"
            )
        self.tokens = tokens
        self.context = context
        self.seed = seed
        self.end_of_text = end_of_text
        self.per_pass = max(1, (len(tokens) - 1) // context - 1)  # one less than fit leaves room for the start
        self._pass = -1
        self._starts = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return more samples than any run asks for; they do not end."""
        return 1 << 40

    def __getitem__(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Return sample `index` as a batch of one."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return a batch, as `samples_at` does, of shape (len(indices), context)."""
        return samples_at(self.tokens, [self._start(index) for index in indices], self.context, self.end_of_text)

    def _start(self, index: int) -> int:
        """Return the position of the first token of sample `index`."""
        number, place = divmod(index, self.per_pass)
        if number != self._pass:
            rng = np.random.default_rng((self.seed, number))
            shift = rng.integers(len(self.tokens) - self.per_pass * self.context)
            self._starts = shift + self.context * rng.permutation(self.per_pass)
            self._pass = number
        return int(self._starts[place])
