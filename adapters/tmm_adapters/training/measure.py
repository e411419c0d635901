"""What a model is worth: the cost of a held-out text, and what it writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tmm_core import TMMConfig

from ..tokenizers import Tokenizer
from ..tokens import TokenWindows

__all__ = ["Batch", "Model", "StoppedError", "Windows", "continuation", "held_out_nats", "prompt_ids"]

Batch = dict[str, NDArray[np.int64]]
Windows = TokenWindows | Sequence[Batch]


class StoppedError(Exception):
    """Raised by `held_out_nats` when it is told to stop."""


class Model(Protocol):
    """A language model of any framework, to be measured and to write."""

    @property
    def config(self) -> TMMConfig:
        """The model."""

    def nats(self, batch: Batch) -> float:
        """Return the summed cross-entropy (nats) of the targets of a batch."""

    def continued(
        self, ids: list[int], n_tokens: int, *, seed: int, temperature: float, top_p: float
    ) -> Generator[int]:
        """Yield up to `n_tokens` tokens that follow `ids`, as they are drawn; fewer where the context is full."""


def held_out_nats(
    model: Model,
    windows: Windows,
    *,
    batch: int,
    rank: int = 0,
    world: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> float:
    """Return the summed cross-entropy (nats) of the tokens that `windows` predict, each exactly once.

    Parameters
    ----------
    model : Model
        On any device; left in the mode it was in.
    windows : TokenWindows
        The held-out text, or a list of some of its windows.
    batch : int
        Windows computed at a time.
    rank, world : int
        Of `world` processes that share the windows, this one takes every batch whose number is `rank` modulo `world`.
    stop : callable
        Asked before each batch.

    Raises
    ------
    StoppedError
        When `stop` says yes.
    """
    nats = 0.0
    for start in range(rank * batch, len(windows), world * batch):
        if stop():
            raise StoppedError
        rows = [windows[index] for index in range(start, min(start + batch, len(windows)))]
        nats += model.nats({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return nats


def prompt_ids(prompt: str, tokenizer: Tokenizer, config: TMMConfig) -> list[int]:
    """Return the tokens of a prompt after an end-of-text, as documents are in training.

    Raises
    ------
    ValueError
        If the prompt is longer than the model's position bias.
    """
    ids = [tokenizer.end_of_text, *tokenizer.encode(prompt)]
    if config.position_bias and len(ids) > config.max_len:
        raise ValueError(
            f"the prompt is too long: {len(ids)} tokens with the end-of-text before it, and the model's position "
            f"bias ends at max_len={config.max_len}; shorten it"
        )
    return ids


def continuation(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    n_tokens: int,
    *,
    seed: int,
    temperature: float = 0.8,
    top_p: float = 0.95,
    on_text: Callable[[str], None] | None = None,
) -> tuple[str, int]:
    """Let the model continue `prompt`; return the text and how many tokens it took.

    Parameters
    ----------
    prompt : str
        Where to begin; put after an end-of-text, as documents are in training.
    n_tokens : int
        At most as many tokens are written; fewer where a text ends or the context is full.
    seed : int
        Of a generator of its own: nothing else that is random is disturbed.
    on_text : callable, optional
        Called with each piece of text as soon as it is readable.

    Raises
    ------
    ValueError
        If the prompt is longer than the model's position bias.

    Notes
    -----
    An untrained model writes bytes that are no text; they read U+FFFD.
    """
    ids = prompt_ids(prompt, tokenizer, model.config)
    taken = 0

    def written(tokens: Iterator[int]) -> Iterator[int]:
        nonlocal taken
        for token in tokens:
            taken += 1
            if token == tokenizer.end_of_text:
                return
            yield token

    pieces = []
    with contextlib.closing(model.continued(ids, n_tokens, seed=seed, temperature=temperature, top_p=top_p)) as tokens:
        for piece in tokenizer.stream(written(tokens)):
            pieces.append(piece)
            if on_text is not None:
                on_text(piece)
    return "".join(pieces), taken
