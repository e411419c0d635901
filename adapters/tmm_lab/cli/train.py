"""`tmm train`: train a language model, or resume a run."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tmm_adapters.architecture import ModelConfig, architectures, get_architecture
from tmm_core.errors import InputError

from ..data.config import DataConfig
from ..training.environment import launched
from ..training.options import TrainingOptions
from .fields import CommandParser, add_fields, as_text, fields_told_by_options, given_fields, option_of, path
from .model_options import check_backend, model_folder, newest_run

__all__ = ["add_parser"]

# What may change when a run is resumed.
_OF_A_SESSION = ("framework", "device", "backend", "compile", "report_to", "steps")
_NO_OPTIONS = ("run", "debug", "resume")
_DEFAULT = "tmm"


def add_parser(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "train",
        help="train a language model, or resume a run",
        description="Train a language model. Without options it is a Toeplitz MLP Mixer, trained for three minutes on "
        "the documentation of Python. --arch chooses the model, and with it the last group of options below.",
        epilog="On several devices: JAX uses all that it finds; PyTorch is started by torchrun --nproc-per-node N "
        "--no-python tmm train ...",
        usage="tmm train [options]\n       tmm train --from DIR [options]\n       tmm train --resume [DIR] [--steps N]",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--arch",
        metavar="NAME",
        help=f"architecture of the model: {', '.join(architectures())} (default: {_DEFAULT})",
    )
    parser.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        help="folder of the run, new or empty (default: runs/<architecture>-<preset>-<time>)",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        type=path,
        const=None,
        metavar="DIR",
        help="resume the run in DIR, or the newest that is not finished, from its newest intact checkpoint; --steps "
        "gives it another length, and lets a finished one go on",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=path,
        metavar="DIR",
        help="begin a new run with the parameters and the tokenizer of the model in DIR, folder of a run or a model",
    )
    add_fields(parser.add_argument_group("text and tokens"), DataConfig)
    add_fields(parser.add_argument_group("training"), TrainingOptions)
    parser.stray = "--text"
    parser.prepare = functools.partial(_add_model_options, parser)
    parser.set_defaults(run=run)


def _add_model_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add the options of the architecture that the arguments name."""
    only = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    only.add_argument("--arch", default=_DEFAULT)
    architecture = get_architecture(only.parse_known_args(arguments)[0].arch)
    title = f"model ({architecture.title})"
    model = parser.add_argument_group(title, "each option changes a field of the preset; shown are the default's")
    presets = tuple(architecture.config_class.presets)
    model.add_argument("--preset", choices=presets, help="named model that the options below change (default: default)")
    add_fields(model, architecture.config_class, defaults=architecture.config_class.preset())


def run(arguments: argparse.Namespace) -> int:
    """Begin a run, or resume one."""
    check_backend(getattr(arguments, "backend", None))
    given = {name: value for name, value in vars(arguments).items() if name not in _NO_OPTIONS}
    if "resume" in arguments:
        decided = sorted(set(given) - set(_OF_A_SESSION))
        if decided:
            options = ", ".join(_option(name) for name in decided)
            raise InputError(f"--resume continues a run with its own options: leave out {options}, or begin a new run")
        from ..training.runs import Run

        old = (
            newest_run(unfinished="steps" not in arguments) if arguments.resume is None else Run.open(arguments.resume)
        )
        from ..training import session

        return session.resume(old, **given)
    new = _new_run(arguments)
    from ..training import session

    return session.begin(**new)


def _new_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `session.begin`; whatever can be refused without reading a text is refused here."""
    if "steps" in arguments and "minutes" in arguments:
        raise InputError("--steps and --minutes are both given, and each is the length of the run: choose one")
    preset = getattr(arguments, "preset", "default")
    if "prompt" in arguments:
        arguments.prompt = as_text("--prompt", arguments.prompt)
    start = getattr(arguments, "start", None)
    new = _new_model(arguments, preset) if start is None else _known_model(arguments, start)
    data: DataConfig = new["data"]
    data.check_files()
    out = getattr(arguments, "out", None)
    if out is not None and not launched():  # under torchrun, another process may have made it already
        from ..training.runs import require_new

        require_new(out)
    return {**new, "options": TrainingOptions(**given_fields(arguments, TrainingOptions)), "out": out}


def _new_model(arguments: argparse.Namespace, preset: str) -> dict[str, Any]:
    """Return the arguments of `session.begin` that tell of a model with initial parameters, and of its text."""
    architecture = get_architecture(getattr(arguments, "arch", _DEFAULT))
    fields = given_fields(arguments, architecture.config_class)
    with fields_told_by_options(architecture.config_class):
        config: ModelConfig = architecture.config_class.preset(preset, **fields)
    data = DataConfig(**given_fields(arguments, DataConfig))
    if data.tokenizer is None and data.vocab is None and "vocab_size" not in fields:
        # A preset with a larger vocabulary than bytes stands for a BPE of that size.
        from tmm_adapters.tokenizers import ByteTokenizer

        larger = config.vocab_size > ByteTokenizer.vocab_size
        data = dataclasses.replace(data, vocab=config.vocab_size if larger else None)
    return {"preset": preset, "config": config, "vocab_given": "vocab_size" in fields, "data": data}


def _known_model(arguments: argparse.Namespace, start: Path) -> dict[str, Any]:
    """Return the same arguments for the model in a folder."""
    from ..training.pretrained_start import pretrained_start

    architecture = get_architecture(getattr(arguments, "arch", _DEFAULT))
    decided = sorted({"arch", "preset", *given_fields(arguments, architecture.config_class)} & set(vars(arguments)))
    if decided:
        options = ", ".join(_option(name) for name in decided)
        raise InputError(f"--from takes the model as it is: leave out {options}, or begin with a new model")
    return pretrained_start(model_folder(start), DataConfig(**given_fields(arguments, DataConfig)))


def _option(name: str) -> str:
    """Return the option whose value is kept under a name."""
    return "--from" if name == "start" else option_of(name)
