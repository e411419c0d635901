"""What is said of a run: before it, what it is; after it, what it came to."""

from __future__ import annotations

import math
import shlex

from tmm_adapters.pretrained import save_model
from tmm_adapters.tokenizers import Tokenizer
from tmm_core import TMMConfig
from tmm_core.lm import flops_per_token, parameter_shapes

from ..data.config import Source
from .course import Course, tokens_per_step
from .data import Data
from .display import Display, counted
from .learner import Learner, Place, Work
from .machine import peak_memory
from .plots import plot_training
from .reporter import BITS, FINAL_SAMPLE_TOKENS, Narration, compared
from .runs import Run

__all__ = ["finish", "header", "resume_command"]


def header(work: Work, data: Data, place: Place) -> list[tuple[str, str]]:
    """Return what is about to be trained, on what, and by what."""
    run, config, options = work.run, work.config, work.options
    steps = run.description["steps"]
    length = f"{steps:,} steps" if steps else f"{options.minutes:g} minute{'s'[: options.minutes != 1]}"
    batch = tokens_per_step(work, place) // config.max_len
    text_size = f"{counted(data.text.n_bytes, 'byte')}, {counted(data.text.n_documents, 'document')}"
    costs = ", ".join(f"{name} {cost:.3f}" for name, cost in run.description["yardsticks"].items())
    return [
        ("model", _shape(config)),
        ("parameters", f"{sum(map(math.prod, parameter_shapes(config).values())):,}"),
        ("FLOPs per token", f"{flops_per_token(config):,}"),
        ("device", f"{place.device_name()}, {options.precision}"),
        ("backend", place.engine_name()),
        ("text", Source.from_dict(run.description["source"]).name),
        ("", f"{text_size}, sha256 {data.text.sha256[:16]}"),
        ("held out", f"{data.held_out.n_bytes:,} bytes, which cost, in bits per byte:"),
        ("", costs),
        ("tokens", _tokens(work.tokenizer, data)),
        ("training", f"{length}, {batch} x {config.max_len} tokens a step, learning rate {options.learning_rate:g}"),
        ("run", str(run.folder)),
    ]


def finish(course: Course, learner: Learner, narration: Narration, display: Display) -> None:
    """Leave the model, a longer sample and the picture in the run's folder, and say what it came to."""
    run, config = course.work.run, course.work.config
    yardsticks = run.description["yardsticks"]
    curve = [(record["tokens"], record[BITS]) for record in run.records() if {"tokens", BITS} <= set(record)]
    bits = curve[-1][1]
    narration.sample("what it writes now:", FINAL_SAMPLE_TOKENS)
    plot_training(
        run.plot,
        title=f"{run.description['preset']}, {course.step:,} steps",
        curve=curve,
        yardsticks=yardsticks,
        lags=learner.parameters(".mix.lags"),
        config=config,
    )
    if not run.model.is_dir():
        save_model(run.model, config, learner.parameters(), tokenizer=course.work.tokenizer)
    run.describe(finished=True, bits_per_byte=bits)
    display.header(
        f"done: {compared(bits, yardsticks)}",
        [
            ("trained on", _trained(run, curve[-1][0])),
            ("peak memory", peak_memory() + course.place.device_memory()),
            ("curve, lags", str(run.plot)),
            ("metrics", str(run.metrics)),
            ("run", str(run.folder)),
            ("next", f"tmm generate {shlex.quote(str(run.folder))} --prompt 'The '"),
        ],
    )


def resume_command(run: Run) -> str:
    """Return what to type to go on with `run`."""
    return f"tmm train --resume {shlex.quote(str(run.folder))}"


def _tokens(tokenizer: Tokenizer, data: Data) -> str:
    kind = "bytes and an end-of-text" if tokenizer.fingerprint == "bytes" else "subwords"
    return f"{kind}, {tokenizer.vocab_size:,} ids; the training text has {len(data.training_tokens):,}"


def _trained(run: Run, tokens: int) -> str:
    """Return how many tokens a run has seen, and how fast the steps of its last sitting were."""
    rates = [record["tokens_per_second"] for record in run.records() if "tokens_per_second" in record]
    speed = f", {rates[-1]:,.0f} a second while training" if rates else ""
    return f"{tokens:,} tokens{speed}"


def _shape(config: TMMConfig) -> str:
    heads = f"{config.n_heads} heads" if config.n_heads else "flat"
    return f"{config.n_layers} layers, {config.d_model} channels, {heads}, context {config.max_len}"
