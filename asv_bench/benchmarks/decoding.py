"""Decoding with a whole model (d 512, 4 heads, 10 layers, vocabulary 8000), one text of a row, against others.

Earlier tokens go through the mixing of each layer alone, which leaves what a text from scratch would. Against others:
tokens out of the last 1000 before n, or out of the second half of a shorter text. The first token after a prompt of n
includes plan and cache; more than 1024 tokens go through fewer of the blocks, as alike as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmm_core import TMMConfig
from tmm_lab.bench import Schedule, take_turns

from . import BACKEND, RATIO, lengths, measures, ready, require, samples

TOKENS = lengths(512, 1024, 8192, 32768)
SCHEDULE = Schedule(seconds=5.0, turns=3)
CHUNK = 32
"""Tokens of ours in a turn: a leaf of Numba's streams, so that each turn has a tile."""
LAST = 1000
"""The last tokens of a text are those after n, or half of a shorter text."""
ANSWER = 256
"""Tokens that are to follow a prompt."""
PROMPT_TOKENS = 10240
"""Of all blocks together, or one block of a longer prompt: attention in ten to 32768 tokens takes minutes."""
SHORTEST = 16
"""Tokens of a text that has some turns."""
LONGEST_JOINED = 8192
"""Tokens of a history that is joined at every step, which takes seconds beyond."""


@dataclass(frozen=True)
class Decoding:
    """Decoding `n` tokens with a model without position bias, whose filters have as many lags."""

    n: int
    schedule: Schedule = SCHEDULE
    backend: str = BACKEND
    heads: int = 4
    channels: int = 512
    blocks: int = 10
    vocabulary: int = 8000

    def __post_init__(self) -> None:
        """Refuse texts that leave nothing to measure."""
        if self.n < SHORTEST:
            raise NotImplementedError(f"decoding is measured of {SHORTEST} tokens or more, and these are {self.n}")

    def model(self, kind: str = "LanguageModel", blocks: int | None = None) -> Any:
        """Return a model, ours or `Transformer`."""
        config = TMMConfig(
            d_model=self.channels,
            n_layers=blocks or self.blocks,
            n_heads=self.heads,
            vocab_size=self.vocabulary,
            max_len=self.n + ANSWER,
            n_lags=self.n,
            position_bias=False,
        )
        decoders = _decoders()
        return decoders.model_of(config, getattr(decoders, kind))

    @property
    def window(self) -> int:
        """How many of the last tokens are taken for those after n."""
        return min(LAST, self.n // 2)

    def text(self, position: int | None = None, model: Any = None) -> Any:
        """Return a text of so many tokens, or else one whose last tokens are to come."""
        text = _decoders().Text(model or self.model(), self.n, self.backend)
        text.mix_to(self.n - self.window if position is None else position)
        return text

    def ratios(self, text: Any, ours: Callable[[], Any], theirs: Callable[[], Any]) -> list[float]:
        """Return the time of our token over theirs, for every turn until the time is over or the text is full."""
        chunk = max(1, min(CHUNK, self.window // (self.schedule.turns + 2)))
        few = max(2, min(CHUNK, 16384 // self.n))  # their time is linear in n
        ours(), theirs()
        found: list[float] = []
        end = time.perf_counter() + self.schedule.seconds
        while text.state.position + chunk <= self.n and (len(found) < self.schedule.turns or time.perf_counter() < end):
            found.append(mean_seconds(ours, chunk) / mean_seconds(theirs, few))
        return found

    def joined(self, text: Any) -> Any:
        """Return the research code's decode with a text's model, after n tokens."""
        if self.n > LONGEST_JOINED:
            raise NotImplementedError(f"joining histories of {self.n} tokens takes seconds a token")
        decoder = _decoders().JoinedDecoder(text.model)
        decoder.begin_after(self.n)
        return decoder


def _decoders() -> Any:
    return require(f"{__package__}._decoders")


def mean_seconds(call: Callable[[], Any], count: int) -> float:
    """Return the mean seconds of as many calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


# What is measured. Each makes ours and theirs, in asv's setup, and returns what lets them take turns ------------------

Ratios = Callable[[], list[float]]


def joined(case: Decoding) -> Ratios:
    """Compare a token after n others with the research code's cached decode."""
    text = case.text()
    decoder = case.joined(text)
    return lambda: case.ratios(text, text.step, lambda: decoder.step(text.token))


def joined_mixing(case: Decoding) -> Ratios:
    """Compare the layers' products alone, of a token after n others."""
    text, x = case.text(), require("torch").randn(1, case.channels)
    decoder = case.joined(text)

    def theirs() -> None:
        for name in decoder.filters:
            decoder.mix(name, x)

    return lambda: case.ratios(text, lambda: text.mix(x), theirs)


def transformer(case: Decoding) -> Ratios:
    """Compare a token after n others with a Transformer's."""
    text, other = case.text(), case.model("Transformer")
    cache, ids = other.new_cache(1, case.n + 1), text.token[None]
    return lambda: case.ratios(text, text.step, lambda: other(ids, cache, case.n))


def first_token(case: Decoding) -> Ratios:
    """Compare the time from a prompt of n tokens to the logits after it, that for plan and cache included."""
    blocks = max(1, min(case.blocks, PROMPT_TOKENS // case.n))
    model, other = (case.model(kind, blocks) for kind in ("LanguageModel", "Transformer"))
    ids = require("torch").arange(case.n)[None] % case.vocabulary

    def ours() -> Any:
        plan = model.stream_plan(case.n + ANSWER, backend=case.backend)
        return model.stream_prefill(plan, model.stream_init(plan, 1), ids)[0]

    def theirs() -> Any:
        return other(ids, other.new_cache(1, case.n + ANSWER))

    ours()
    schedule = case.schedule if case.n < 10 * LAST else Schedule(seconds=0.0, turns=2)
    return lambda: [our / their for our, their in zip(*take_turns([ours, theirs], schedule), strict=True)]


def no_mixing(case: Decoding) -> Ratios:
    """Compare with the same model without its products: what is left are linear maps, norms and Python."""
    text, torch = case.text(), require("torch")

    def theirs() -> Any:
        return text.model.logits_of(text.model.residual_stream(text.token, mix=lambda name, x: x))

    return lambda: case.ratios(text, text.step, torch.no_grad()(theirs))


def first_tokens(case: Decoding) -> Ratios:
    """Compare the last tokens with as many first ones of a text of the same capacity: all of both, a quarter a turn."""
    late = case.text()
    early, few = case.text(0, late.model), max(1, case.window // 40)
    chunks = range(case.window // 4 // few)

    def turn() -> float:
        seconds = [[mean_seconds(text.step, few) for text in (late, early)] for _ in chunks]
        ours, theirs = np.sum(seconds, axis=0)
        return float(ours / theirs)

    return lambda: [turn() for _ in range(4)]


BASELINES: dict[str, Callable[[Decoding], Ratios]] = {
    "research code": joined,
    "authors' mixing alone": joined_mixing,
    "Transformer": transformer,
    "Transformer, first token after n": first_token,
    "no mixing": no_mixing,
    "our first tokens": first_tokens,
}
"""By the name that tables print; of all of the last 1000 tokens over the first 1000 `our first tokens` tells."""


def slowest_step(case: Decoding) -> float:
    """Return the seconds of the step with the largest tile, whose spectra a plan makes when it first comes there."""
    largest, model = 1 << ((case.n - 1).bit_length() - 1), case.model()
    case.text(min(case.n, LAST), model)  # compiles
    found = []
    for _ in range(3):
        text = case.text(largest - 2, model)
        text.step()
        found.append(mean_seconds(text.step, 1))
    return float(np.median(found))


def cache_bytes(case: Decoding, whose: str) -> int:
    """Return the bytes that a layer keeps of n tokens: ours, ours where half of them were a prompt, a Transformer's."""
    if whose == "Transformer":
        return int(case.model("Transformer", blocks=1).new_cache(1, case.n)[0].nbytes)
    text = case.text(0, case.model(blocks=1))
    if whose == "ours, after a prompt of n/2":
        ids = require("torch").ones(1, case.n // 2, dtype=require("torch").int64)
        text.model.stream_prefill(text.plan, text.state, ids)
    (cache,) = text.state.caches.values()
    return int(cache.nbytes)


class Decode:
    """Our tokens after n others."""

    params = (TOKENS,)
    param_names = ("tokens",)

    def setup(self, tokens: int) -> None:
        """Check that the backend is here."""
        ready()
        self.case = Decoding(tokens)

    @measures("a token after n others", "ms")
    def track_token(self, tokens: int) -> dict[str, Any]:
        """Decode."""
        text = self.case.text()
        text.step()
        chunk = min(CHUNK, (self.case.window - 1) // 3)
        turns = range(min(16, (self.case.window - 1) // chunk))
        return samples(1000 * mean_seconds(text.step, chunk) for _ in turns)

    @measures("slowest step of n tokens", "ms")
    def track_slowest_step(self, tokens: int) -> float:
        """Step where the largest tile is."""
        return 1000 * slowest_step(self.case)


class Cache:
    """What a layer keeps of n tokens."""

    params = (TOKENS, ("ours", "ours, after a prompt of n/2", "Transformer"))
    param_names = ("tokens", "baseline")

    def setup(self, tokens: int, baseline: str) -> None:
        """Check that the backend is here."""
        ready()
        self.case = Decoding(tokens)

    @measures("cache of a layer", "bytes")
    def track_cache(self, tokens: int, baseline: str) -> int:
        """Count."""
        return cache_bytes(self.case, baseline)


class DecodingAgainst:
    """A token, or the first one after a prompt, in turns with another's."""

    params = (TOKENS, tuple(BASELINES))
    param_names = ("tokens", "baseline")
    schedule = SCHEDULE

    def setup(self, tokens: int, baseline: str) -> None:
        """Make both, and a text of n tokens."""
        ready()
        self.ratios = BASELINES[baseline](Decoding(tokens, self.schedule))

    @measures("decoding, against others", RATIO)
    def track_token(self, tokens: int, baseline: str) -> dict[str, Any]:
        """Decode in turns."""
        return samples(self.ratios())
