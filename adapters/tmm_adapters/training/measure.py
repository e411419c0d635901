"""What a model is worth: the cost of a held-out text, and what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tmm_core import TMMConfig

from ..tokenizers import Tokenizer
from ..tokens import TokenWindows
from ..torch import ContextFullError, LanguageModel
from .learner import StoppedError

__all__ = ["StoppedError", "continuation", "held_out_nats", "prompt_ids"]

Windows = TokenWindows | Sequence[dict[str, NDArray[np.int64]]]


@torch.no_grad()
def held_out_nats(
    model: LanguageModel,
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
    model : LanguageModel
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
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nats = 0.0
    try:
        for start in range(rank * batch, len(windows), world * batch):
            if stop():
                raise StoppedError
            rows = [windows[index] for index in range(start, min(start + batch, len(windows)))]
            batched = {name: torch.from_numpy(np.stack([row[name] for row in rows])).to(device) for name in rows[0]}
            nats += float(model(**batched, num_items_in_batch=1)["loss"])
    finally:
        model.train(training)
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
    model: LanguageModel,
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
    device = next(model.parameters()).device
    tokens = torch.tensor(prompt_ids(prompt, tokenizer, model.tmm_config), device=device)
    generator = torch.Generator(device).manual_seed(seed)
    training = model.training
    model.eval()
    n_prompt = len(tokens)

    def written() -> Iterator[int]:
        nonlocal tokens
        for _ in range(n_tokens):
            try:
                tokens = model.generate(tokens, 1, temperature=temperature, top_p=top_p, generator=generator)
            except ContextFullError:
                return
            if int(tokens[-1]) == tokenizer.end_of_text:
                return
            yield int(tokens[-1])

    pieces = []
    try:
        for piece in tokenizer.stream(written()):
            pieces.append(piece)
            if on_text is not None:
                on_text(piece)
    finally:
        model.train(training)
    return "".join(pieces), len(tokens) - n_prompt
