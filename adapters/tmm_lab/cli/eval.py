"""`tmm eval`: bits per byte of a text under a model, beside baselines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tmm_adapters.checkpoints import CONFIG, DESCRIPTION
from tmm_adapters.pretrained import joins_documents, read_config
from tmm_adapters.words import counted
from tmm_core.errors import InputError

from ..data.config import TextConfig
from ..progress import note, waiting
from .fields import CommandParser, add_fields, given_fields
from .model_options import add_model_options, check_backend, model_folder

if TYPE_CHECKING:
    from ..data.text import Part
    from ..training.runs import Run

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "eval",
        help="measure the bits per byte of a text under a model",
        description="Measure the bits per byte of a text under a model, under n-gram models of the run's training text "
        "and under zlib. Each token is predicted once, from at least half a context before it.",
    )
    add_model_options(parser)
    parser.stray = "--text"
    add_fields(parser.add_argument_group("text"), TextConfig)
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="windows in a batch (default: 8)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a table, the cheapest first."""
    if arguments.batch < 1:
        raise InputError(f"--batch must be at least 1, and is {arguments.batch}")
    folder, source = _model_and_text(arguments)
    source.check_files()
    from ..training.listing import run_of

    check_backend()
    folder = model_folder(folder)
    run = run_of(folder)
    from tmm_adapters.tokenizers import require_tokenizer

    from ..data.dataset import evaluation_windows
    from ..data.overlap import MUCH, shared_part
    from ..data.text import write_text
    from ..data.tokens import bits_per_byte, write_tokens
    from ..evaluation.measure import held_out_nats
    from ..training.frameworks import choose, open_model

    tokenizer = require_tokenizer(folder)
    framework = choose(arguments.framework, read_config(folder).model_type)
    training = _training_part(run)
    with tempfile.TemporaryDirectory() as scratch:
        with waiting(f"reading {source.name}", source.size()) as advance:
            text = write_text(source.documents(advance), Path(scratch, "text"))
        model = open_model(framework, folder, device=arguments.device)
        part = text.whole()
        if training is not None and (shared := shared_part(part, training)) > MUCH:
            note(f"{shared:.0%} of this text is, word for word, in the text that the run was trained on")
        tokens = write_tokens(part, tokenizer, Path(scratch, "tokens.npy"))
        joined = joins_documents(folder)  # the model reads texts as in its training
        windows = evaluation_windows(tokens, model.max_len, None if joined else tokenizer.end_of_text)
        nats = held_out_nats(model, windows, batch=arguments.batch)
        if not math.isfinite(nats):
            raise InputError(f"model {folder} has no finite loss on this text: its weights are damaged, or diverged")
        costs = {"this model": bits_per_byte(nats, part), **_baselines(training, part)}
        del windows, tokens  # the mapped file must be closed before Windows can remove it
    costs = dict(sorted(costs.items(), key=lambda item: item[1]))
    if arguments.json:
        size = {"bytes": part.n_bytes, "documents": part.n_documents, "sha256": text.sha256}
        print(json.dumps({"model": str(folder), "text": size, "bits_per_byte": costs}, indent=2))
        return 0
    print(f"text: {counted(part.n_bytes, 'byte')}, {counted(part.n_documents, 'document')}, sha256 {text.sha256[:16]}")
    print(f"model: {folder}")
    print("bits per byte, lower is better:")
    for name, cost in costs.items():
        print(f"  {name:<12} {cost:.4f}")
    return 0


def _model_and_text(arguments: argparse.Namespace) -> tuple[Path | None, TextConfig]:
    """Return the folder that was given, if any, and the text: `--text FILE ... DIR` takes the folder for a text."""
    folder, source = arguments.dir, TextConfig(**given_fields(arguments, TextConfig))
    if folder is None and source.text and _is_model(Path(source.text[-1])):
        folder = Path(source.text[-1])
        source = dataclasses.replace(source, text=source.text[:-1])
    if not source.text:
        meant = "" if folder is None or _is_model(folder) else f"; did you mean --text {shlex.quote(str(folder))}?"
        raise InputError(f"there is no text to measure: name its files, tmm eval DIR --text FILE ...{meant}")
    return folder, source


def _is_model(folder: Path) -> bool:
    """Return whether a folder is that of a run or of a model."""
    return any((folder / name).is_file() for name in (DESCRIPTION, CONFIG))


def _training_part(run: Run | None) -> Part | None:
    """Return what a run was trained on, which n-grams are counted in; None, and why, where there is none."""
    from ..data.text import open_text

    if run is None:
        note("without n-grams, which are counted in the training text of a run: this model is in none")
        return None
    held_out_bytes = run.parsed().data.held_out_bytes
    try:
        with waiting("reading the training text"):
            return open_text(run.data / "text").split(held_out_bytes)[0]
    except FileNotFoundError:
        note(f"without n-grams, as {run.data} has lost the training text")
    except InputError as error:
        note(f"without n-grams: {error}")
    return None


def _baselines(training: Part | None, part: Part) -> dict[str, float]:
    """Return the baselines: n-grams need a training text, zlib does not."""
    from ..evaluation.baselines import baseline_costs, zlib_cost

    return {"zlib": zlib_cost(part)} if training is None else baseline_costs(training, part)
