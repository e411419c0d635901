"""Checkpoints: model folders with what training needs to go on; complete or absent, and checked before use."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from tmm_adapters.architecture import ModelConfig, config_to_dict
from tmm_adapters.files import atomic_folder
from tmm_adapters.pretrained import read_config, write_json
from tmm_core.errors import InputError

__all__ = ["check_model", "checkpoints", "damage", "keep_newest", "newest_intact", "step_of", "write_checkpoint"]

COMPLETE = "complete.json"
_PREFIX = "step-"
_KEPT = 2  # the newest, and one before it should that be damaged
_CHUNK = 1 << 20  # bytes read at a time


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

    Notes
    -----
    The files are written into a temporary folder. `complete.json`, with the size and checksum of each, is the last of
    them; then the folder gets its name.
    """
    path = folder / f"{_PREFIX}{step:08d}"
    if path.exists():
        if damage(path) is None:
            return path
        shutil.rmtree(path)  # the run went on from an earlier step because of it
    with atomic_folder(path) as temporary:
        write(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        write_json(temporary / COMPLETE, {file.relative_to(temporary).as_posix(): _fingerprint(file) for file in files})
    keep_newest(folder, _KEPT, step)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first."""
    found = folder.glob(_PREFIX + "*") if folder.is_dir() else ()
    return sorted((path for path in found if path.is_dir() and path.name[len(_PREFIX) :].isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the optimiser steps done when `checkpoint` was written."""
    return int(checkpoint.name.removeprefix(_PREFIX))


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


def newest_intact(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that can be used, and what is wrong with each newer one."""
    skipped: list[str] = []
    for path in reversed(checkpoints(folder)):
        reason = damage(path)
        if reason is None:
            return path, skipped
        skipped.append(f"{path}: {reason}")
    return None, skipped


def damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None where every file is as it was written."""
    try:
        expected = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        files = {str(name): (int(size), int(crc)) for name, (size, crc) in expected.items()}
    except FileNotFoundError:
        return "incomplete, writing it was cut short"
    except (ValueError, TypeError, AttributeError) as error:
        return f"{COMPLETE} is damaged ({error})"
    for name, (size, crc) in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} is truncated: {path.stat().st_size} bytes, expected {size}"
        if _fingerprint(path)[1] != crc:
            return f"{name} is damaged: its checksum is wrong"
    return None


def keep_newest(folder: Path, keep: int, step: int) -> None:
    """Keep `keep` checkpoints up to that of `step`; remove what an earlier process left half written.

    Later ones go: they were damaged, which is why the run went on from an earlier one, and would pass for the newest.
    """
    found = checkpoints(folder)
    kept = [path for path in found if step_of(path) <= step][-keep:]
    for path in found:
        if path not in kept:
            shutil.rmtree(path)
    for path in folder.glob(f".{_PREFIX}*.part"):
        shutil.rmtree(path, ignore_errors=True)


def _fingerprint(path: Path) -> tuple[int, int]:
    """Return size and CRC-32 of a file: enough against truncation and bit rot, and fast beside writing."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return path.stat().st_size, crc
