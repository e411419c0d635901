"""Writing checkpoints: model folders with what training needs to go on, complete or absent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tmm_adapters.architecture import ModelConfig, config_to_dict
from tmm_adapters.checkpoints import PREFIX, checkpoints, step_of
from tmm_adapters.files import atomic_folder, damage
from tmm_adapters.pretrained import read_config
from tmm_core.errors import InputError

__all__ = ["check_model", "keep_newest", "write_checkpoint"]

_KEPT = 2  # the newest, and one before it should that be damaged


def write_checkpoint(folder: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Write the checkpoint of `step` into `folder` and remove all but the two newest.

    Parameters
    ----------
    folder : Path
        Holds the checkpoints of one run.
    step : int
        Optimiser steps done.
    write : callable
        Writes the files into the folder that it is given.

    Raises
    ------
    OSError
        If it cannot be written, for example on a full disk. Nothing of it is left then, and the earlier ones stay.
    """
    path = folder / f"{PREFIX}{step:08d}"
    if path.exists():
        if damage(path) is None:
            return path
        shutil.rmtree(path)  # the run went on from an earlier step because of it
    with atomic_folder(path) as temporary:
        write(temporary)
    keep_newest(folder, _KEPT, step)
    return path


def check_model(checkpoint: Path, config: ModelConfig) -> None:
    """Refuse a checkpoint of another model than `config`.

    Raises
    ------
    ValueError
        If a field differs.
    """
    ours, theirs = config_to_dict(config), config_to_dict(read_config(checkpoint))
    for name in ours:
        if ours[name] != theirs.get(name):
            raise InputError(
                f"run.json describes another model than {checkpoint} holds: its {name} is {ours[name]!r}, "
                f"there it is {theirs.get(name)!r}; restore run.json, or begin a new run"
            )


def keep_newest(folder: Path, keep: int, step: int) -> None:
    """Keep `keep` checkpoints up to that of `step`.

    Later ones go: they were damaged, which is why the run went on from an earlier one, and would pass for the newest.
    """
    found = checkpoints(folder)
    kept = [path for path in found if step_of(path) <= step][-keep:]
    for path in found:
        if path not in kept:
            shutil.rmtree(path)
