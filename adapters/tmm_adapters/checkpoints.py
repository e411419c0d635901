"""Where the models of a training run are: the trained one, and checkpoints by their steps."""

from __future__ import annotations

import os
from pathlib import Path

from tmm_core.errors import MissingFileError

from .files import DESCRIPTION, damage

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "DESCRIPTION",
    "MODEL",
    "PREFIX",
    "WEIGHTS",
    "checkpoints",
    "find_model",
    "newest_intact",
    "step_of",
]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
"""The files of a model folder."""
MODEL, CHECKPOINTS, PREFIX = "model", "checkpoints", "step-"
"""In the folder of a run: the trained model, the folder of its checkpoints, and how their names begin."""


def find_model(folder: Path) -> tuple[Path, list[str]]:
    """Return the model folder that `folder` stands for, and what is wrong with each newer one that was passed over.

    A model folder stands for itself, the folder of a run for its trained model, or for its newest checkpoint until it
    has one; what is damaged is passed over.

    Raises
    ------
    FileNotFoundError
        If there is no folder, or no model in it that can be used.
    """
    if (folder / CONFIG).is_file():
        return folder, []
    if not folder.is_dir():
        raise MissingFileError(f"there is no folder {folder}: check the path")
    if not (folder / DESCRIPTION).is_file():
        raise MissingFileError(
            f"{folder} is neither the folder of a run nor of a model: it has no {DESCRIPTION} and no {CONFIG}"
        )
    trained, skipped = folder / MODEL, []
    if os.path.lexists(trained):  # a link may lead nowhere
        reason = damage(trained)
        if reason is None:
            return trained, []
        skipped.append(f"{trained}: {reason}")
    checkpoint, more = newest_intact(folder / CHECKPOINTS)
    skipped += more
    if checkpoint is None:
        wrong = f" ({'; '.join(skipped)})" if skipped else ""
        raise MissingFileError(f"{folder} has no intact checkpoint yet{wrong}: train longer, or name another folder")
    return checkpoint, skipped


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first."""
    found = folder.glob(PREFIX + "*") if folder.is_dir() else ()
    return sorted((path for path in found if path.is_dir() and path.name[len(PREFIX) :].isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the optimiser steps done when `checkpoint` was written."""
    return int(checkpoint.name.removeprefix(PREFIX))


def newest_intact(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that can be used, and what is wrong with each newer one."""
    skipped: list[str] = []
    for path in reversed(checkpoints(folder)):
        reason = damage(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path}: {reason}")
    return None, skipped
