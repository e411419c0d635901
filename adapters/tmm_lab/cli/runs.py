"""`tmm runs`: the runs of a folder, how far each has come, and what it is worth."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from tmm_core.errors import MissingFileError, TMMError

from ..progress import note, waiting
from ..tables import numbers, terminal_width
from .fields import path

if TYPE_CHECKING:
    from ..training.runs import Run

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "runs",
        help="list training runs, how far each has come, and its bits per byte",
        description="List the training runs in a folder, the newest first: whether each is finished, in training or "
        "stopped, its steps (of one that is stopped, those that resuming it goes on from), and the bits per byte of "
        "its held-out text at the last evaluation; lower is better where the text is the same.",
    )
    parser.add_argument(
        "dir", nargs="?", type=path, metavar="DIR", help="folder that holds the runs, or that of a run (default: runs)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a row a run; one that cannot be used is a note, not an error."""
    from ..training.listing import find_runs
    from ..training.runs import RUNS

    root = RUNS if arguments.dir is None else arguments.dir
    if arguments.dir is not None and not root.is_dir():
        raise MissingFileError(f"there is no folder {root}: check the path")
    runs, wrong = find_runs(root)
    facts = []
    with waiting("looking for the newest intact checkpoints", len(runs)) as advance:
        for found in runs:
            try:
                facts.append(_facts(found))
            except (TMMError, OSError) as error:
                wrong.append(str(error))
            advance(1)
    if arguments.json:
        print(json.dumps({"runs": facts, "damaged": wrong}, indent=2))
        return 0
    for reason in wrong:
        note(reason)
    if not facts:
        print(f"no runs in {root.absolute()}; tmm train begins one")
        return 0
    rows = [("run", "state", "steps", "bits per byte"), *map(_row, facts)]
    print(numbers(rows, keys=1, width=terminal_width(), names=True))
    return 0


def _facts(run: Run) -> dict[str, Any]:
    """Return what there is to tell of a run, fit for JSON."""
    from ..training.listing import progress_of

    progress = progress_of(run)
    return {
        "run": str(run.folder),
        "architecture": run.description["config"].get("model_type"),
        "preset": run.description["preset"],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.description["started"])),
        "total_steps": run.description["steps"],
        **progress._asdict(),
    }


def _row(facts: dict[str, Any]) -> tuple[str, str, str, str]:
    steps = f"{facts['step']:,}" + (f" of {facts['total_steps']:,}" if facts["total_steps"] else "")
    bits = "-" if facts["bits_per_byte"] is None else f"{facts['bits_per_byte']:.3f}"
    return facts["run"], facts["state"], steps, bits
