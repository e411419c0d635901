"""`tmm train`: train a language model, or take a run up again."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

from tmm_adapters.files import require_empty
from tmm_core.config import PRESETS, TMMConfig
from tmm_core.errors import InputError

from ..data.config import Source
from ..training.frameworks import choose
from ..training.options import TrainingOptions
from .fields import add_fields, as_text, given_fields

__all__ = ["add_parser"]

# A resumed run may compute elsewhere, and tell others; everything else was settled when it began.
_OF_A_SITTING = ("framework", "device", "backend", "compile", "report_to")
_NO_OPTIONS = ("run", "debug", "resume")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "train",
        help="train a language model, or take a run up again",
        description="Train a Toeplitz MLP Mixer. Without options: three minutes, on the documentation of Python.",
        epilog="On several devices: JAX takes those it finds, PyTorch those of torchrun --nproc-per-node N --no-python "
        "tmm train ...",
        usage="tmm train [options]\n       tmm train --resume [DIR]",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), help="the model to begin from (default: default)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the run, new or empty (default: runs/<preset>-<time>)"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        type=Path,
        const=None,
        metavar="DIR",
        help="take up the run in DIR, or the newest one, from its newest intact checkpoint",
    )
    add_fields(parser.add_argument_group("text and tokens"), Source)
    add_fields(parser.add_argument_group("training"), TrainingOptions)
    model = parser.add_argument_group("model", "each option changes a field of the preset; shown are the default's")
    add_fields(model, TMMConfig, defaults=TMMConfig.preset("default"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Begin a run, or resume one."""
    given = {name: value for name, value in vars(arguments).items() if name not in _NO_OPTIONS}
    if "resume" in arguments:
        settled = sorted(set(given) - set(_OF_A_SITTING))
        if settled:
            options = ", ".join("--" + name.replace("_", "-") for name in settled)
            raise InputError(f"--resume goes on with what the run was told: leave out {options}, or begin a new run")
        from ..training.runs import Run, newest_run

        old = newest_run() if arguments.resume is None else Run.open(arguments.resume)
        if old.description["finished"]:
            raise InputError(f"the run {old.folder} is finished, nothing is left to resume: its model is {old.model}")
        _say_starting(given.get("framework") or old.description["options"].get("framework", "auto"))
        from ..training import session

        return session.resume(old, **given)
    plan = _plan(arguments)
    _say_starting(plan["options"].framework)
    from ..training import session

    return session.begin(session.Plan(**plan))


def _plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `session.Plan`; whatever can be refused without reading a text is refused here."""
    if "steps" in arguments and "minutes" in arguments:
        raise InputError("--steps and --minutes are both given, and each says how long the run is: choose one")
    preset = getattr(arguments, "preset", "default")
    if "prompt" in arguments:
        arguments.prompt = as_text("--prompt", arguments.prompt)
    fields = given_fields(arguments, TMMConfig)
    config = TMMConfig.preset(preset, **fields)
    source = Source(**given_fields(arguments, Source))
    if source.tokenizer is None and source.vocab is None and "vocab_size" not in fields:
        # A preset with a larger vocabulary than bytes stands for a BPE of that size.
        larger = config.vocab_size > TMMConfig.preset("default").vocab_size
        source = dataclasses.replace(source, vocab=config.vocab_size if larger else None)
    source.check_files()
    out = getattr(arguments, "out", None)
    if out is not None and "RANK" not in os.environ:  # under torchrun, another process may have made it already
        require_empty(out)
    return {
        "preset": preset,
        "config": config,
        "vocab_given": "vocab_size" in fields,
        "source": source,
        "options": TrainingOptions(**given_fields(arguments, TrainingOptions)),
        "out": out,
    }


def _say_starting(framework: str) -> None:
    """Say that something happens, unless it cannot: importing the Trainer takes seconds."""
    libraries = {"torch": "PyTorch and the Trainer", "jax": "JAX"}
    name = choose(framework, training=True)
    if os.environ.get("RANK", "0") == "0":
        print(f"starting: loading {libraries[name]}", flush=True)
