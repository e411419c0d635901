"""Files and folders that appear under their names only when they are complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tmm_core.errors import ExistingFileError

__all__ = ["atomic_folder", "atomic_write", "require_empty"]


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for writing; rename it to `path` if the block succeeds, else remove it."""
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Make a temporary folder beside `folder`; rename it to `folder` if the block succeeds, else remove it.

    Every file is on the disk before it is renamed, so that a crash at any moment leaves the whole folder or none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(folder)
    try:
        temporary.mkdir()
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            _sync(path)
        if folder.is_dir():
            folder.rmdir()  # an empty one; not every system renames onto it
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(folder.parent)


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds anything: it might be somebody's."""
    if folder.is_dir() and any(folder.iterdir()):
        raise ExistingFileError(f"{folder} is not empty: choose another folder, or remove it first")
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise ExistingFileError(f"{path} is a file: choose another name for the folder {folder}")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # threads and other machines may write too


def _sync(path: Path) -> None:
    """Write a file or the entries of a folder to the disk."""
    if os.name == "nt":
        return  # it cannot open folders, and syncs only what is open for writing
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
