"""What is shown of a run as it goes, and kept beside it: the bar, held-out costs, lags, and what the model writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray

from tmm_adapters.files import atomic_write

from .display import Display
from .learner import Learner, Work
from .runs import Run

__all__ = ["BITS", "FINAL_SAMPLE_TOKENS", "SAMPLE_TOKENS", "Narration", "compared", "write_lags"]

SAMPLE_TOKENS = 100
FINAL_SAMPLE_TOKENS = 400
BITS = "eval_bits_per_byte"


class Narration:
    """Show the run, and keep what the model wrote."""

    def __init__(self, work: Work, learner: Learner, display: Display) -> None:
        """Show `work`, which `learner` does, on `display`."""
        self._work = work
        self._learner = learner
        self._display = display
        self._loss: float | None = None
        self._rate: float | None = None

    def begin(self, step: int, total: int | None) -> None:
        """Show the bar."""
        self._display.start(step, total)

    def step(self, step: int, total: int | None, *, left: float) -> None:
        """Move the bar."""
        self._display.step(step, total, loss=self._loss, rate=self._rate, left=left)

    def figures(self, figures: Mapping[str, float]) -> None:
        """Remember what the bar shows."""
        self._loss = figures.get("loss", self._loss)
        self._rate = figures.get("tokens_per_second", self._rate)

    def evaluated(self, step: int, bits: float) -> None:
        """Show the held-out cost beside the yardsticks, and a sample; write the lags."""
        write_lags(self._work.run, step, self._learner.parameters(".mix.lags"))
        self.sample(f"step {step}: {compared(bits, self._work.run.description['yardsticks'])}", SAMPLE_TOKENS)

    def sample(self, caption: str, n_tokens: int) -> None:
        """Show what the model writes now, and keep it."""
        prompt = self._work.options.prompt
        text = (prompt + self._learner.text(prompt, n_tokens)[0]).rstrip()
        self._display.sample(caption, text)
        with self._work.run.samples.open("a", encoding="utf-8") as file:
            file.write(f"== {caption}\n{text}\n\n")


def compared(bits: float, yardsticks: dict[str, float]) -> str:
    """Return a held-out cost in words, between the yardsticks next to it.

    >>> compared(2.5, {"bigram": 3.5, "trigram": 2.7, "4-gram": 2.3})
    '2.500 bits per byte, below trigram 2.700, above 4-gram 2.300'
    """
    beaten = {name: cost for name, cost in yardsticks.items() if bits < cost}
    ahead = {name: cost for name, cost in yardsticks.items() if bits >= cost}
    parts = [f"{bits:.3f} bits per byte"]
    if beaten:
        name = min(beaten, key=lambda key: beaten[key])
        parts.append(f"below {name} {beaten[name]:.3f}")
    if ahead:
        name = max(ahead, key=lambda key: ahead[key])
        parts.append(f"above {name} {ahead[name]:.3f}")
    return ", ".join(parts)


def write_lags(run: Run, step: int, lags: Mapping[str, NDArray[Any]]) -> None:
    """Write the lags of every layer into one file of `lags/`."""
    if lags:
        run.lags.mkdir(exist_ok=True)
        with atomic_write(run.lags / f"step-{step:08d}.safetensors") as file:
            file.write(safetensors.numpy.save(dict(lags)))
