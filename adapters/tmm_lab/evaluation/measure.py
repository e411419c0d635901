"""What a model is worth: the cost of a held-out text, and what it writes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tmm_adapters.generation import DEFAULT_SAMPLING, Sampling
from tmm_adapters.tokenizers import Tokenizer
from tmm_core.errors import InputError

from ..data.dataset import TokenWindows
from ..progress import waiting

__all__ = [
    "Batch",
    "Model",
    "StoppedError",
    "Windows",
    "Writing",
    "Written",
    "continuation",
    "continuations",
    "held_out_nats",
    "prompt_ids",
]

Batch = dict[str, NDArray[np.int64]]
Windows = TokenWindows | Sequence[Batch]


class StoppedError(Exception):
    """Raised by `held_out_nats` when it is told to stop."""


class Model(Protocol):
    """A language model of any framework, to be measured and to write."""

    @property
    def max_len(self) -> int:
        """Tokens of the training context."""

    @property
    def longest_text(self) -> float:
        """How many tokens a text can have, infinity where there is no limit."""

    def nats(self, batch: Batch) -> float:
        """Return the summed cross-entropy (nats) of the targets of a batch."""

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        n_tokens: int,
        sampling: Sampling,
        *,
        eos_token_id: int,
        seed: int,
    ) -> Generator[list[int]]:
        """Yield up to `n_tokens` times the next token of each prompt, as they are sampled.

        A row ends with `eos_token_id`, or where its longest text does, and is filled with it from there on. What is
        sampled for a row depends on the seed and on the rows before it, not on what any other holds.
        """


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
    nats, starts = 0.0, range(rank * batch, len(windows), world * batch)
    with waiting("evaluating", len(starts)) as advance:
        for start in starts:
            if stop():
                raise StoppedError
            rows = [windows[index] for index in range(start, min(start + batch, len(windows)))]
            nats += model.nats({name: np.stack([row[name] for row in rows]) for name in rows[0]})
            advance(1)
    return nats


def prompt_ids(prompt: str, tokenizer: Tokenizer, longest: float) -> list[int]:
    """Return the tokens of a prompt after an end-of-text, as documents are in training.

    Raises
    ------
    ValueError
        If the prompt is longer than `longest`, the longest text of the model.
    """
    ids = [tokenizer.end_of_text, *tokenizer.encode(prompt)]
    if len(ids) > longest:
        raise InputError(
            f"the prompt is too long: {len(ids)} tokens with the end-of-text before it, and the model reads no more "
            f"than {longest:.0f}; shorten it"
        )
    return ids


@dataclass
class Written:
    """What a model wrote after a prompt."""

    text: str = ""
    n_tokens: int = 0
    """How many tokens that took, an end-of-text included."""
    ended: Literal["text", "context", "count"] = "count"
    """By an end-of-text, because the model reads no longer text, or after as many tokens as asked for."""


@dataclass
class Writing:
    """What a model wrote after prompts, and how long it took."""

    written: list[Written]
    prompt_tokens: int
    prompt_seconds: float = 0.0
    """Until the first tokens came: with the plan of the model, and whatever was compiled."""
    seconds: float = 0.0
    """From then on."""

    @property
    def later_tokens(self) -> int:
        """Tokens that came in these `seconds`."""
        return sum(max(0, row.n_tokens - 1) for row in self.written)


def continuation(model: Model, tokenizer: Tokenizer, prompt: str, n_tokens: int, *, seed: int) -> tuple[str, int]:
    """Let the model continue one prompt; return the text and how many tokens it took; see `continuations`."""
    written = continuations(model, tokenizer, [prompt], n_tokens, DEFAULT_SAMPLING, seed=seed).written[0]
    return written.text, written.n_tokens


def continuations(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    n_tokens: int,
    sampling: Sampling,
    *,
    seed: int,
    on_text: Callable[[int, str], None] | None = None,
) -> Writing:
    """Let the model continue prompts, all at once.

    Parameters
    ----------
    prompts : sequence of str
        Where to begin; put after an end-of-text, as documents are in training.
    n_tokens : int
        At most as many tokens are written after each; fewer where a text ends or the context is full.
    sampling : Sampling
        How tokens are sampled.
    seed : int
        Of a generator of its own: nothing else that is random is disturbed.
    on_text : callable, optional
        Called with the number of a prompt and a piece of text, as soon as it is readable: those of the first prompt
        until it has ended, then what has come of the second meanwhile, and so on.

    Raises
    ------
    ValueError
        If a prompt is longer than the model's longest text.

    Notes
    -----
    An untrained model writes bytes that are no text; they read U+FFFD.
    """
    rows = [prompt_ids(prompt, tokenizer, model.longest_text) for prompt in prompts]
    result = Writing([Written() for _ in rows], sum(map(len, rows)))
    rooms = [model.longest_text - len(ids) + 1 for ids in rows]  # the last token needs no place of its own
    begin = time.perf_counter()
    room = int(min(n_tokens, max(rooms)))
    steps = model.continued(rows, room, sampling, eos_token_id=tokenizer.end_of_text, seed=seed)
    queues: list[deque[int]] = [deque() for _ in rows]

    def tokens_of(row: int) -> Iterator[int]:
        """Yield the tokens of a row; where its queue is empty, let all rows go on."""
        written = result.written[row]
        while written.n_tokens < n_tokens:
            if written.n_tokens == rooms[row]:
                written.ended = "context"
                return
            if not queues[row]:
                new = next(steps, None)
                if new is None:
                    return
                result.prompt_seconds = result.prompt_seconds or time.perf_counter() - begin
                for queue, token in zip(queues, new, strict=True):
                    queue.append(token)
            token = queues[row].popleft()
            written.n_tokens += 1
            if token == tokenizer.end_of_text:
                written.ended = "text"
                return
            yield token

    with contextlib.closing(steps):
        for row, written in enumerate(result.written):
            for piece in tokenizer.stream(tokens_of(row)):
                written.text += piece
                if on_text is not None:
                    on_text(row, piece)
    result.seconds = time.perf_counter() - begin - result.prompt_seconds
    return result
