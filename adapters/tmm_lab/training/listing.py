"""Which runs there are, how far each has come, and which run a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tmm_adapters.checkpoints import DESCRIPTION, newest_intact, step_of
from tmm_core.errors import InputError, MissingFileError, TMMError

from .reporter import BITS
from .runs import RUNS, Run

__all__ = ["Progress", "find_runs", "newest_run", "progress_of", "run_of"]


class Progress(NamedTuple):
    """How far a run has come."""

    state: Literal["finished", "training", "stopped"]
    """`stopped` can be resumed."""
    step: int
    """Optimiser steps: of a stopped run, those of the checkpoint that it would go on from; else those recorded."""
    bits_per_byte: float | None
    """Held-out cost at the last evaluation until then."""


def progress_of(run: Run) -> Progress:
    """Return how far a run has come; whether a process trains it is known where folders can be locked.

    The checkpoints of a stopped run are read, to see which is whole.
    """
    records = run.records()
    step = max((record["step"] for record in records), default=0)
    if run.description["finished"]:
        return Progress("finished", step, run.description["bits_per_byte"])
    try:
        with run.locked():
            pass
    except InputError:  # by the process that trains it
        return Progress("training", step, _bits(records))
    checkpoint, _ = newest_intact(run.checkpoints)
    step = 0 if checkpoint is None else step_of(checkpoint)
    return Progress("stopped", step, _bits([record for record in records if record["step"] <= step]))


def _bits(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the held-out cost that was recorded last."""
    costs = [record[BITS] for record in records if isinstance(record.get(BITS), float)]
    return costs[-1] if costs else None


def find_runs(root: Path = RUNS) -> tuple[list[Run], list[str]]:
    """Return the runs in `root`, the one that began last first, and what is wrong with those that cannot be used.

    The folder of a run stands for that run.
    """
    runs: list[Run] = []
    wrong: list[str] = []
    for path in [root / DESCRIPTION] if (root / DESCRIPTION).is_file() else sorted(root.glob(f"*/{DESCRIPTION}")):
        try:
            runs.append(Run.open(path.parent))
        except (TMMError, OSError) as error:
            wrong.append(str(error))
    return sorted(runs, key=lambda run: (run.description["started"], run.folder.name), reverse=True), wrong


def newest_run(root: Path = RUNS, *, unfinished: bool = False) -> tuple[Run, list[str]]:
    """Return the run in `root` that began last, by request of those that are not finished.

    Returns
    -------
    Run, list of str
        And what is wrong with runs that cannot be used, and were passed over.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    runs, wrong = find_runs(root)
    found = [run for run in runs if not (unfinished and run.description["finished"])]
    if found:
        return found[0], wrong
    passed = f" ({'; '.join(wrong)})" if wrong else ""
    if runs:
        raise MissingFileError(
            f"every run in {root.absolute()} is finished{passed}, the newest is {runs[0].folder}: nothing is left to "
            "resume"
        )
    raise MissingFileError(
        f"there is no run in {root.absolute()}{' that can be used' + passed if wrong else ''}: start one (tmm train), "
        "or name a folder"
    )


def run_of(model: Path) -> Run | None:
    """Return the run that the model folder `model` belongs to, however its path is written, or None."""
    model = model.resolve()
    for folder in (model.parent, model.parent.parent):  # the trained model, or a checkpoint
        if (folder / DESCRIPTION).is_file():
            return Run.open(folder)
    return None
