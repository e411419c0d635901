"""What is shown of a run: before it, what it is; as it goes, the bar, held-out costs and samples; then its results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tmm_adapters.tokenizers import Tokenizer
from tmm_adapters.words import counted

from ..progress import note
from .data import Data
from .display import Display
from .job import Job
from .loop_state import LoopState
from .runs import Run

if TYPE_CHECKING:
    from .frameworks import Runtime

__all__ = ["BITS", "Reporter", "compared", "resume_command"]

BITS = "eval_bits_per_byte"


class Reporter:
    """Shows a run, and keeps what the model writes."""

    def __init__(self, job: Job, display: Display) -> None:
        """Show `job` on `display`."""
        self._job = job
        self._display = display
        self._loss: float | None = None
        self._rate: float | None = None

    def header(self, runtime: Runtime, state: LoopState, samples_per_step: int) -> None:
        """Show what is about to be trained, on what, and by what."""
        job, run, config, options = self._job, self._job.run, self._job.config, self._job.options
        text, steps = job.data.text, run.description["steps"]
        timed = f"{options.minutes:g} minute{'s'[: options.minutes != 1]}"
        length = timed if options.steps is None else counted(steps, "step")
        batch = f"{samples_per_step} x {config.max_len} tokens a step"
        start = run.description["start"]
        text_size = f"{counted(text.n_bytes, 'byte')}, {counted(text.n_documents, 'document')}"
        rows = [
            ("model", job.architecture.summary(config)),
            ("parameters", f"{job.architecture.n_parameters(config):,}"),
            ("FLOPs per token", f"{job.architecture.flops_per_token(config):,}"),
            *([] if start is None else [("begins with", f"the weights of {start}")]),
            ("device", f"{runtime.device_name()}, {options.precision}{', compiled' if options.compile else ''}"),
            *([("backend", runtime.engine_name())] if job.architecture.has_toeplitz_products else []),
            ("text", run.parsed().data.name),
            ("", f"{text_size}, sha256 {text.sha256[:16]}"),
            ("held out", counted(job.data.held_out.n_bytes, "byte")),
            ("baselines", ", ".join(f"{name} {cost:.3f}" for name, cost in run.description["baselines"].items())),
            ("", "bits per byte of the held-out text; lower is better"),
            ("tokens", _tokens(job.data.tokenizer, job.data)),
            ("training", f"{length}, {batch}, learning rate {options.learning_rate:g}"),
            ("run", str(run.folder)),
        ]
        self._display.header(f"{job.architecture.title}, {run.description['preset']}", rows)
        if state.samples_per_step not in (0, samples_per_step):
            note(
                f"a step trains on {samples_per_step} samples here, and did on {state.samples_per_step}: each "
                "device takes a batch, and there is another number of them"
            )

    def start(self, step: int, total: int | None) -> None:
        """Show the bar."""
        self._display.start(step, total)

    def step(self, step: int, total: int | None, *, left: float) -> None:
        """Move the bar."""
        self._display.step(step, total, loss=self._loss, rate=self._rate, left=left)

    def metrics(self, metrics: Mapping[str, float]) -> None:
        """Remember what the bar shows."""
        if "loss" in metrics:
            self._loss = self._job.training_bits(metrics["loss"])
        self._rate = metrics.get("tokens_per_second", self._rate)

    def evaluated(self, step: int, bits: float, continuation: str | None, *, share: float) -> None:
        """Show the held-out cost, measured on a share of the text, between the baselines, and a sample, if any."""
        part = "" if share == 1.0 else f" (on {share:.0%} of the held-out text)"
        caption = f"step {step}: {compared(bits, self._job.run.description['baselines'])}{part}"
        if continuation is None:
            self._display.note(caption)
        else:
            self.sample(caption, continuation)

    def sample(self, caption: str, continuation: str) -> None:
        """Show how the model continues the prompt, and keep it."""
        text = (self._job.options.prompt + continuation).rstrip()
        self._display.sample(caption, text)
        with self._job.run.samples.open("a", encoding="utf-8") as file:
            file.write(f"== {caption}\n{text}\n\n")

    def done(self, bits: float, tokens: int, *, memory: str) -> None:
        """Show what the run came to."""
        run = self._job.run
        rates = [record["tokens_per_second"] for record in run.records() if "tokens_per_second" in record]
        speed = f", {rates[-1]:,.0f} a second while training" if rates else ""
        rows = [
            ("trained on", f"{tokens:,} tokens{speed}"),
            ("peak memory", memory),
            ("picture", str(run.plot)),
            ("metrics", str(run.metrics)),
            ("run", str(run.folder)),
            ("next", shlex.join(["tmm", "generate", str(run.folder), "--prompt", self._job.options.prompt])),
        ]
        self._display.header(f"done: {compared(bits, run.description['baselines'])} (lower is better)", rows)


def compared(bits: float, baselines: Mapping[str, float]) -> str:
    """Return a held-out cost in words, between the baselines next to it.

    >>> compared(2.5, {"bigram": 3.5, "trigram": 2.7, "4-gram": 2.3})
    '2.500 bits per byte, below trigram 2.700, above 4-gram 2.300'
    >>> compared(2.6996, {"trigram": 2.7})
    '2.700 bits per byte, as trigram'
    """
    bits, costs = round(bits, 3), {name: round(cost, 3) for name, cost in baselines.items()}  # as they are shown
    beaten = {name: cost for name, cost in costs.items() if bits < cost}
    ahead = {name: cost for name, cost in costs.items() if bits > cost}
    parts = [f"{bits:.3f} bits per byte", *(f"as {name}" for name, cost in costs.items() if bits == cost)]
    if beaten:
        name = min(beaten, key=lambda key: beaten[key])
        parts.append(f"below {name} {beaten[name]:.3f}")
    if ahead:
        name = max(ahead, key=lambda key: ahead[key])
        parts.append(f"above {name} {ahead[name]:.3f}")
    return ", ".join(parts)


def resume_command(run: Run) -> str:
    """Return what to type to go on with `run`."""
    return f"tmm train --resume {shlex.quote(str(run.folder))}"


def _tokens(tokenizer: Tokenizer, data: Data) -> str:
    kind = "bytes and an end-of-text" if tokenizer.fingerprint == "bytes" else "subwords"
    return f"{kind}, {tokenizer.vocab_size:,} ids; the training text has {len(data.training_tokens):,}"
