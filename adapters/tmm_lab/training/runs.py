"""The folder of a training run: its files, its configuration and what it measured.

run.json            the configuration: model, options, text; the steps that are planned; whether it is finished
tokenizer.json      what makes tokens of text
data/               the text, and its tokens unless they are its bytes, memory-mapped
initial/            the model that training began from, where it is one that was trained before
checkpoints/        step-00000100, …, each a model folder with what training needs to go on
parameters/         step-00000100.safetensors, …, at every evaluation those that the architecture wants kept
metrics.jsonl       losses and held-out bits per byte, a line a record
samples.txt         what the model wrote at every evaluation
model/              the trained model, once finished
training.png        the curve, and what the architecture draws, once finished

What is read of models, checkpoints, `parameters/` and the tokenizer is what was written: their digests are in the
`SHA256SUMS` beside them, those of the text and its tokens in the descriptions beside them, and `run.json` holds its
own. The pictures and what tells of the course of a run, `metrics.jsonl` and `samples.txt`, have none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.numpy
from numpy.typing import NDArray

from tmm_adapters.architecture import ModelConfig, config_from_dict
from tmm_adapters.checkpoints import CHECKPOINTS, DESCRIPTION, MODEL
from tmm_adapters.files import (
    SUMS,
    WriteError,
    add_sum,
    atomic_write,
    locked,
    open_to_read,
    parse_json,
    require_empty,
    sweep,
)
from tmm_core.errors import ExistingFileError, InputError, MissingFileError

from ..data.config import DataConfig
from .loop_state import LoopState
from .options import EVALUATIONS, TrainingOptions
from .schedule import Revision, Schedule, spread

__all__ = ["DESCRIPTION", "ParsedRun", "Run", "content_digest", "require_new"]

RUNS = Path("runs")
FORMAT, VERSION = "tmm-run", 1
_SHA256 = "sha256"  # in the description: of all else in it
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "preset": lambda value: isinstance(value, str),
    "config": lambda value: isinstance(value, dict),
    "data": lambda value: isinstance(value, dict),
    "options": lambda value: isinstance(value, dict),
    "steps": lambda value: value is None or (isinstance(value, int) and value >= 1),
    "baselines": lambda value: isinstance(value, dict) and all(isinstance(x, float) for x in value.values()),
    "started": lambda value: isinstance(value, float) and 0 <= value < 1e11,
    "vocab_given": lambda value: isinstance(value, bool),
    "start": lambda value: value is None or isinstance(value, str),
    "plan": lambda value: isinstance(value, list) and all(map(_is_revision, value)),
    "prepared": lambda value: isinstance(value, bool),
    "finished": lambda value: isinstance(value, bool),
    "bits_per_byte": lambda value: value is None or isinstance(value, float),
}


class ParsedRun(NamedTuple):
    """The configuration of a run."""

    config: ModelConfig
    data: DataConfig
    options: TrainingOptions


class Run:
    """One training run and its folder."""

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        """Make the object; `Run.create` and `Run.open` are the ways to get one."""
        self.folder = folder
        self.description = description
        self.checkpoints = folder / CHECKPOINTS
        self.data = folder / "data"
        self.initial = folder / "initial"
        self.metrics = folder / "metrics.jsonl"
        self.model = folder / MODEL
        self.parameters = folder / "parameters"
        self.plot = folder / "training.png"
        self.samples = folder / "samples.txt"
        self.tokenizer = folder / "tokenizer.json"

    @classmethod
    def create(cls, out: Path | None, name: str) -> Run:
        """Make the folder of a new run: `out`, or `runs/<name>-<time>`.

        Raises
        ------
        FileExistsError
            If `out` holds anything but a run that was cut short before its first step could begin.
        WriteError
            If the folder cannot be made.
        """
        if out is not None:
            require_new(out)
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WriteError(out, error) from error
            return cls(out, {})
        stem, attempt = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}", 1
        while True:
            folder = RUNS / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:  # two runs that began in the same second
                attempt += 1
            except OSError as error:
                raise WriteError(folder, error) from error
            else:
                return cls(folder, {})

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Return the run in `folder`.

        Raises
        ------
        FileNotFoundError
            If it is not the folder of a run.
        ValueError
            If its description is damaged.
        """
        path = folder / DESCRIPTION
        if not folder.is_dir():
            raise MissingFileError(f"there is no folder {folder}: check the path")
        if not path.is_file():
            raise MissingFileError(f"{folder} is not the folder of a run: it has no {DESCRIPTION}; check the path")
        try:
            with open_to_read(path) as file:
                description = parse_json(file.read())
            if not isinstance(description, dict):
                raise InputError(f"expected an object, got a {type(description).__name__}")
            known = (description.pop("format"), description.pop("version")) == (FORMAT, VERSION)
            sha256 = description.pop(_SHA256, None)
            intact = sha256 in (None, content_digest(description))
        except (ValueError, KeyError, RecursionError) as error:
            raise InputError(
                f"{path} is damaged ({error}): the run cannot be used; its models are in {folder / MODEL} and "
                f"{folder / CHECKPOINTS}"
            ) from error
        if not known:
            raise InputError(f"{path} was written by another version: update tmm-core")
        if not intact:
            raise InputError(
                f"{path} is not what was written: restore it, or, if the change was meant, remove its {_SHA256!r}"
            )
        wrong = [name for name, fits in _FIELDS.items() if name not in description or not fits(description[name])]
        wrong += [name for name in description if name not in _FIELDS]  # such as a digest by another name
        if wrong:
            found = repr(description[wrong[0]]) if wrong[0] in description else "missing"
            raise InputError(f"{path} is damaged: {wrong[0]!r} is {found}; the run cannot be used: begin a new one")
        return cls(folder, description)

    def parsed(self) -> ParsedRun:
        """Return the model, the text and the options of the run.

        Raises
        ------
        LookupError
            If its architecture is not registered.
        ValueError
            If the description, a file that people may edit, tells of none.
        """
        config, data, options = (self.description[name] for name in ("config", "data", "options"))
        try:
            return ParsedRun(config_from_dict(config), DataConfig.from_dict(data), TrainingOptions.from_dict(options))
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(
                f"{self.folder / DESCRIPTION} describes no run that can be used ({error}): restore it, "
                "or begin a new run"
            ) from error

    def describe(self, **changes: Any) -> None:
        """Change the description on the disk; it is there whole at every moment."""
        description = {**self.description, **changes}
        with atomic_write(self.folder / DESCRIPTION) as file:
            fields = {"format": FORMAT, "version": VERSION, **description, _SHA256: content_digest(description)}
            file.write(json.dumps(fields, indent=2).encode() + b"\n")
        self.description = description

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep the run to this process while the block lasts; the system sees to it that no kill leaves it locked.

        Yields
        ------
        bool
            Whether it is: Windows, and some file systems of networks, cannot lock a folder.

        Raises
        ------
        ValueError
            If another process trains it: two would remove each other's checkpoints.
        """
        busy = f"the run {self.folder} is being trained by another process: let it end, or stop it first"
        with locked(self.folder, busy) as held:
            yield held

    def record(self, values: dict[str, Any]) -> None:
        """Add a line to `metrics.jsonl`."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Return the lines of `metrics.jsonl`; those that were cut short or damaged are left out."""
        if not self.metrics.is_file():
            return []
        found = []
        with open_to_read(self.metrics) as file:
            lines = file.read().decode(errors="replace").splitlines()
        for line in lines:
            try:
                record = parse_json(line)
            except ValueError:  # the process was killed while it wrote
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                found.append(record)
        return found

    def log_parameters(self, step: int, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Write parameters, if there are any, into a file of `parameters/`."""
        if parameters:
            self.parameters.mkdir(exist_ok=True)
            path, data = self.parameters / f"step-{step:08d}.safetensors", safetensors.numpy.save(dict(parameters))
            add_sum(path, hashlib.sha256(data).hexdigest())
            with atomic_write(path) as file:
                file.write(data)

    def logged_parameters(self) -> dict[int, Path]:
        """Return the files of `parameters/` by step, ascending."""
        steps = {path.stem.removeprefix("step-"): path for path in self.parameters.glob("step-*.safetensors")}
        return {int(step): steps[step] for step in sorted(filter(str.isdecimal, steps), key=int)}

    def schedule(self, options: TrainingOptions) -> Schedule:
        """Return the learning rate and the evaluations of the run, as far as they are decided."""
        plan = [Revision(*revision) for revision in self.description["plan"]]
        if options.steps is not None and not plan:
            steps = self.description["steps"] or options.steps
            plan = [Revision(0, steps, options.evaluations or spread(EVALUATIONS, steps))]
        return Schedule(plan, options.warmup)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file beside the records that tells of the course of the run, by its name."""
        files = (self.samples, self.parameters / SUMS, *self.logged_parameters().values())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in files if path.is_file()}

    def go_back_to(self, state: LoopState) -> None:
        """Drop what was recorded and written since `state`, which a resumed run does again, and what is half written.

        Of the records those that are damaged go as well, so that the next one begins a line.
        """
        kept = [record for record in self.records() if record["step"] <= state.step][: state.records]
        with atomic_write(self.metrics) as file:
            file.write("".join(json.dumps(record) + "\n" for record in kept).encode())
        state.records = len(kept)
        for name, size in self.sizes().items():
            if name in state.sizes:
                os.truncate(self.folder / name, min(size, state.sizes[name]))
            else:
                (self.folder / name).unlink()
        sweep(self.folder)


def require_new(folder: Path) -> None:
    """Refuse a folder for a new run that holds anything, but for a run that was cut short before its first step.

    Raises
    ------
    FileExistsError
        If it does.
    """
    if not (folder / DESCRIPTION).is_file():
        require_empty(folder)
    elif Run.open(folder).description["prepared"]:
        raise ExistingFileError(
            f"{folder} is not empty: it holds a run; to go on with it, tmm train --resume {shlex.quote(str(folder))}, "
            "or choose another folder"
        )


def _is_revision(value: Any) -> bool:
    return isinstance(value, list) and len(value) == len(Revision._fields) and all(type(x) is int for x in value)


def content_digest(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a description, whatever the order and the layout of its fields."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
