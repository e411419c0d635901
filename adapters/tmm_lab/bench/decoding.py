"""What decoding takes with a whole model: against others, and late in a text against its beginning."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tmm_core import TMMConfig

from .process import wanted
from .turns import Pace, Ratio, take_turns

if TYPE_CHECKING:
    from torch import Tensor

    from .decoders import JoinedDecoder, Text

__all__ = ["DECODED", "DECODING", "MEASURED", "ONLY", "Decoding", "measure_decoding"]

DECODED = (512, 1024, 8192, 32768)
"""Tokens of a text."""
DECODING = Pace(seconds=5.0, turns=3)
CHUNK = 32
"""Tokens of ours in a turn: a leaf of Numba's streams, so that each turn has a tile."""
FIRST = 1000
"""The first and the last tokens of a text that are compared, or half of a shorter text."""
ANSWER = 256
"""Tokens that are to follow a prompt."""
PROMPT_TOKENS = 10240
"""Of all blocks together, or one block of a longer prompt: attention in ten to 32768 tokens takes minutes."""


@dataclass(frozen=True)
class Decoding:
    """Decoding `n` tokens with a model without position bias, whose filters have as many lags."""

    n: int
    heads: int
    backend: str
    pace: Pace = DECODING
    channels: int = 512
    blocks: int = 10
    vocabulary: int = 8000

    def model(self, kind: str = "LanguageModel", blocks: int | None = None) -> Any:
        """Return a model, ours or `Transformer`.

        Raises
        ------
        NotImplementedError
            If Torch is missing.
        """
        with wanted("torch"):
            from . import decoders

        config = TMMConfig(
            d_model=self.channels,
            n_layers=self.blocks if blocks is None else blocks,
            n_heads=self.heads,
            vocab_size=self.vocabulary,
            max_len=self.n + ANSWER,
            n_lags=self.n,
            position_bias=False,
        )
        return decoders.model_of(config, getattr(decoders, kind))

    @property
    def window(self) -> int:
        """How many of the last tokens are taken for those after n."""
        return min(FIRST, self.n // 2)

    @property
    def few(self) -> int:
        """Tokens of a rival in a turn, which takes time linear in n."""
        return max(2, min(CHUNK, 16384 // self.n))

    def text(self, model: Any = None) -> Text:
        """Return a text from scratch, of `model` or of one of its own."""
        model = self.model() if model is None else model
        from .decoders import Text

        return Text(model, self.n, self.backend)

    def late_text(self) -> Text:
        """Return a text whose last tokens are to come."""
        text = self.text()
        text.mix_to(self.n - self.window)
        return text

    def turns(self, text: Text, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Ratio:
        """Let both take tokens in turns, until the time is over or the text is full."""
        chunk = max(1, min(CHUNK, self.window // (self.pace.turns + 2)))
        ours(), theirs()
        mine: list[float] = []
        others: list[float] = []
        end = time.perf_counter() + self.pace.seconds
        while text.state.position + chunk <= self.n and (len(mine) < self.pace.turns or time.perf_counter() < end):
            mine.append(mean_of(ours, chunk))
            others.append(mean_of(theirs, self.few))
        return Ratio.of(mine, others)


# What is measured, each in a process of its own ----------------------------------------------------------------------


def joined(case: Decoding) -> Ratio:
    """Compare a token after n others with the research code's cached decode."""
    text = case.late_text()
    decoder = _joined(text, case.n)
    return case.turns(text, text.step, lambda: decoder.step(text.token))


def joined_mixing(case: Decoding) -> Ratio:
    """Compare the layers' products alone, of a token after n others."""
    import torch

    text, x = case.late_text(), torch.randn(1, case.channels)
    decoder = _joined(text, case.n)
    return case.turns(text, lambda: text.mix(x), lambda: decoder.mix(x))


def joined_run(case: Decoding) -> Ratio:
    """Compare the mean token of a text from scratch.

    Theirs takes time linear in its position, so its mean is that of the middle. Ours is measured in turns with it; then
    what the mixing's mean over all n tokens exceeds that of a token without a tile by is added, for rare, large tiles.
    """
    model, middle = case.model(), case.n // 2
    seconds = case.text(model).mix_to(case.n)
    text = case.text(model)
    text.mix_to(middle)
    decoder = _joined(text, middle)
    found = case.turns(text, text.step, lambda: decoder.step(text.token))
    ours = found.ours + float(seconds.mean() - np.median(seconds))
    return Ratio.of([ours] * len(found.turns), [turn * found.ours for turn in found.turns])


def transformer(case: Decoding) -> Ratio:
    """Compare a token after n others with a Transformer's."""
    text, other = case.late_text(), case.model("Transformer")
    cache, ids = other.new_cache(1, case.n + 1), text.token[None]
    return case.turns(text, text.step, lambda: other(ids, cache, case.n))


def first_token(case: Decoding) -> Ratio:
    """Compare the time from a prompt of n tokens to the logits after it, that for plan and cache included.

    Long prompts go through fewer blocks, as alike as they are, and the time is that of as many as the model has.
    """
    import torch

    blocks = max(1, min(case.blocks, PROMPT_TOKENS // case.n))
    model, other = (case.model(kind, blocks) for kind in ("LanguageModel", "Transformer"))
    ids = torch.arange(case.n)[None] % case.vocabulary

    def ours() -> Tensor:
        plan = model.stream_plan(case.n + ANSWER, backend=case.backend)
        logits: Tensor = model.stream_prefill(plan, model.stream_init(plan, 1), ids)[0]
        return logits

    def theirs() -> Tensor:
        logits: Tensor = other(ids, other.new_cache(1, case.n + ANSWER))
        return logits

    ours()
    seconds = take_turns([ours, theirs], case.pace if case.n < FIRST * 10 else Pace(seconds=0.0, turns=2))
    mine, others = ([case.blocks / blocks * s for s in side] for side in seconds)
    return Ratio.of(mine, others)


def no_mixing(case: Decoding) -> Ratio:
    """Compare with the same model without its products: what is left are linear maps, norms and Python."""
    import torch

    text = case.late_text()

    @torch.no_grad()
    def theirs() -> Tensor:
        logits: Tensor = text.model.logits_of(text.model.residual_stream(text.token, mix=_same))
        return logits

    return case.turns(text, text.step, theirs)


def first_tokens(case: Decoding) -> Ratio:
    """Compare the last tokens with as many first ones of a text of the same capacity: all of both, a quarter a turn."""
    late = case.late_text()
    early, few = case.text(late.model), max(1, case.window // 40)
    chunks = range(case.window // 4 // few)
    turns = [[[mean_of(text.step, few) for text in (late, early)] for _ in chunks] for _ in range(4)]
    mine, others = np.asarray(turns).mean(axis=1).T.tolist()
    return Ratio.of(mine, others)


def slowest_step(case: Decoding) -> float:
    """Return the seconds of the step with the largest tile, whose spectra a plan makes when it first comes there."""
    largest, found, model = 1 << ((case.n - 1).bit_length() - 1), [], case.model()
    case.text(model).mix_to(min(case.n, FIRST))  # compiles
    for _ in range(3):
        text = case.text(model)
        text.mix_to(largest - 2)
        text.step()
        found.append(mean_of(text.step, 1))
    return float(np.median(found))


def tiles(case: Decoding) -> float:
    """Return the seconds of a token's mixing in all layers, the mean over all n tokens, spectra included."""
    model = case.model()
    case.text(model).mix_to(min(case.n, FIRST))  # compiles
    return float(case.text(model).mix_to(case.n).mean())


def cache(case: Decoding) -> int:
    """Return the bytes of a layer's cache, for n tokens from scratch."""
    return _tape_bytes(case.text(case.model(blocks=1)))


def cache_after_prompt(case: Decoding) -> int:
    """Return the bytes of a layer's cache, for n / 2 tokens that follow a prompt of as many."""
    import torch

    text = case.text(case.model(blocks=1))
    text.model.stream_prefill(text.plan, text.state, torch.ones(1, case.n // 2, dtype=torch.int64))
    return _tape_bytes(text)


def transformer_cache(case: Decoding) -> int:
    """Return the bytes of a Transformer's keys and values of a layer, for n tokens."""
    return int(case.model("Transformer", blocks=1).new_cache(1, case.n)[0].nbytes)


MEASURED: dict[str, Callable[[Decoding], Ratio | int | float]] = {
    "authors' decode": joined,
    "authors' decode, the whole text": joined_run,
    "authors' mixing alone": joined_mixing,
    "Transformer": transformer,
    "Transformer, first token after n": first_token,
    "no mixing": no_mixing,
    "our first tokens": first_tokens,
    "our slowest step": slowest_step,
    "our mixing, mean of all tokens": tiles,
    "cache of a layer": cache,
    "cache of a layer after n/2": cache_after_prompt,
    "Transformer's cache of a layer": transformer_cache,
}
"""By the name that tables print."""
ONLY: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("authors' decode", "authors' decode, the whole text", "authors' mixing alone"), (512, 8192)),
    **dict.fromkeys(("Transformer", "Transformer, first token after n"), (1024, 8192, 32768)),
    **dict.fromkeys(("no mixing", "our first tokens", *list(MEASURED)[-5:]), (32768,)),
}
"""Where each is measured unless lengths are given."""


def measure_decoding(case: Decoding, what: str) -> Ratio | int | float:
    """Return a ratio of times a token, theirs over ours; seconds; or bytes.

    Parameters
    ----------
    case : Decoding
        The model and the text.
    what : str
        A name in `MEASURED`.

    Raises
    ------
    NotImplementedError
        If Torch is missing.
    """
    return MEASURED[what](case)


def mean_of(call: Callable[[], Any], count: int) -> float:
    """Return the mean seconds of as many calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _joined(text: Text, count: int) -> JoinedDecoder:
    """Return the research code's decode with a text's model, after as many tokens."""
    from .decoders import JoinedDecoder

    decoder = JoinedDecoder(text.model)
    decoder.begin_after(count)
    return decoder


def _same(name: str, x: Tensor) -> Tensor:
    return x


def _tape_bytes(text: Text) -> int:
    """Return the bytes of the only layer's cache."""
    (state,) = text.state.layers.values()
    return int(state.tape.nbytes)
