"""What a model reads of a token file: training samples in random order, and the windows of an evaluation.

The order of the samples is a function of the seed and of a sample's number, so that runs can resume.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tmm_core.errors import InputError
from tmm_core.lm import IGNORED

from .tokens import Tokens

__all__ = ["TokenWindows", "TrainingSamples", "evaluation_windows", "samples_at"]


def samples_at(
    tokens: Tokens, starts: Sequence[int], context: int, end_of_text: int | None
) -> dict[str, NDArray[np.int64]]:
    """Return the inputs and the next-token targets of the contexts that begin at `starts`, by argument name.

    Parameters
    ----------
    tokens : Tokens, or an integer array of shape (n_tokens,)
        A token file, with a context and one more token from each start on.
    starts : sequence of int
        Positions of the first tokens.
    context : int
        Tokens of a sample.
    end_of_text : int or None
        The id at which documents begin, each isolated from the others; None joins them.

    Returns
    -------
    dict of int64 arrays, shape (len(starts), context)
        `input_ids`; `targets`, the token that follows each; and unless documents are joined `segment_ids`, the number
        of each token's document within its sample.

    Examples
    --------
    >>> samples_at(np.asarray([0, 5, 6, 0, 7]), [0], 4, end_of_text=0)["segment_ids"]
    array([[1, 1, 1, 2]])
    """
    rows = np.stack([tokens[start : start + context + 1] for start in starts]).astype(np.int64)
    sample = {"input_ids": rows[:, :-1], "targets": rows[:, 1:]}
    if end_of_text is not None:
        sample["segment_ids"] = np.cumsum(sample["input_ids"] == end_of_text, axis=1)
    return sample


class TrainingSamples:
    """An endless sequence of training samples, each one context of tokens.

    Every pass cuts the text into contexts from another random start, and takes them in random order. Sample `i` depends
    on the tokens, the context, the seed and `i` only.

    Parameters
    ----------
    tokens : Tokens, or an integer array of shape (n_tokens,)
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

    def __init__(self, tokens: Tokens, context: int, seed: int, *, end_of_text: int | None) -> None:
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

    def batch(self, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Return the samples of these numbers as `samples_at` does, (len(indices), context)."""
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


def evaluation_windows(tokens: Tokens, context: int, end_of_text: int | None) -> TokenWindows:
    """Return windows in which every token has at least half a context before it, or all tokens that there are.

    With `end_of_text`, those of its document. Bits per byte are measured in this way, in training and in `tmm eval`.
    """
    context = min(context, len(tokens) - 1)
    return TokenWindows(tokens, context, end_of_text, stride=max(1, context // 2))


class TokenWindows:
    """Cut tokens into windows of one context such that every token but the first is predicted exactly once.

    A window is one row of `samples_at`: inputs `[s, s + context)`, and as targets the tokens after them. Targets of an
    earlier window are -100. The last window is moved back to end with the tokens, so all windows have one shape and
    nothing is padded.

    Parameters
    ----------
    tokens : Tokens, or an integer array of shape (n_tokens,)
        A token file; it is only read where a window is asked for.
    context : int
        Tokens that a window reads, at least 1.
    end_of_text : int or None
        The id at which documents begin, each isolated from the others; None joins them.
    stride : int, optional
        Tokens from one window to the next, `context` unless given. With fewer, windows overlap: each prediction has
        more than `context - stride` tokens before it (but for the start of the text), at `context / stride` times the
        work.

    Raises
    ------
    ValueError
        If the tokens do not fill one context, or `context` or `stride` cannot be.

    Examples
    --------
    >>> windows = TokenWindows(np.arange(6), 3, end_of_text=0)
    >>> [window["targets"].tolist() for window in windows]
    [[1, 2, 3], [-100, 4, 5]]
    """

    def __init__(self, tokens: Tokens, context: int, end_of_text: int | None, *, stride: int | None = None) -> None:
        """Check that the windows fit."""
        if context < 1:
            raise InputError(f"context must be at least 1, a token to predict the next from, and is {context}")
        stride = context if stride is None else stride
        if not 1 <= stride <= context:
            raise InputError(f"stride must be in [1, context = {context}], and is {stride}")
        if len(tokens) <= context:
            raise InputError(
                f"the text is too short: it has {len(tokens)} tokens, counting the end-of-text before it, and one "
                f"context needs {context + 1}; give more text, or a smaller context (max_len)"
            )
        self.tokens = tokens
        self.context = context
        self.end_of_text = end_of_text
        self.stride = stride

    @property
    def n_predicted(self) -> int:
        """Tokens predicted in a pass over all windows."""
        return len(self.tokens) - 1

    def __len__(self) -> int:
        """Return the number of windows."""
        return 1 + -(-(self.n_predicted - self.context) // self.stride)

    def start(self, index: int) -> int:
        """Return the position of the first token of window `index`, 0 <= index < len(self)."""
        return min(index * self.stride, self.n_predicted - self.context)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Return `input_ids`, `targets` and, unless documents are joined, `segment_ids` of one window, (context,)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        index %= len(self)
        start = self.start(index)
        window = {
            name: row[0] for name, row in samples_at(self.tokens, [start], self.context, self.end_of_text).items()
        }
        if index > 0:
            predicted_before = (index - 1) * self.stride + self.context
            window["targets"] = window["targets"].copy()  # it shares memory with what the model reads
            window["targets"][: predicted_before - start] = IGNORED
        return window
