"""Files and folders that appear under their names only when they are complete, and that are read only as written.

A folder that is written at once holds `SHA256SUMS`, the digest of each of its files, as `sha256sum --check` reads it;
others grow one with the files that `add_sum` is told of. Whoever reads a file of either kind asks `check` first. A
folder without digests, as other tools write it, is read as it is, unless it is in the folder of a run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from tmm_core.errors import (
    ExistingFileError,
    InputError,
    MissingFileError,
    NotAFileError,
    NotAllowedError,
    TMMError,
)

__all__ = [
    "DESCRIPTION",
    "SUMS",
    "WriteError",
    "add_sum",
    "as_json",
    "atomic_folder",
    "atomic_write",
    "check",
    "damage",
    "digest",
    "discard",
    "locked",
    "open_to_read",
    "parse_json",
    "require_empty",
    "sweep",
]

SUMS = "SHA256SUMS"
"""The name of the file with the digests of the files beside it."""
DESCRIPTION = "run.json"
"""The name of the file that makes a folder that of a run."""

_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}\.part")  # names that `_temporary` gives
_LINE = re.compile(rb"([0-9a-f]{64})  ([ -~]{1,255})")
_REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EROFS: "nothing can be written there, so choose another place",
    errno.EACCES: "choose another place, or let it be written",
    errno.EPERM: "choose another place, or let it be written",
    errno.EEXIST: "move away what is in its place",
    errno.ENOTEMPTY: "move away what is in its place",
    errno.EISDIR: "move away what is in its place",
    errno.ENOTDIR: "move away what is in its place",
    errno.EFBIG: "let files be larger (ulimit -f)",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class WriteError(OSError):
    """A file or folder that cannot be written: which, why, and what to do.

    `errno` is that of the failure, None where a library hides it.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        """Say what `error` means for the file or folder `path`."""
        super().__init__(error.errno, error.strerror or str(error), str(path))

    def __str__(self) -> str:
        """Return a sentence."""
        remedy = _REMEDIES.get(self.errno or 0)
        return f"cannot write {self.filename}: {self.strerror}" + (f"; {remedy}" if remedy else "")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for writing; rename it to `path` if the block succeeds, else remove it.

    Raises
    ------
    WriteError
        If it cannot be written; what was there before remains.
    """
    temporary = _temporary(path)
    with _as_write_errors(path, temporary):
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

    Every file is on the disk, and its digest in `SHA256SUMS`, before the folder is renamed, so that a crash at any
    moment leaves the whole folder or none.

    Raises
    ------
    WriteError
        If it cannot be written; nothing is left then.
    """
    target = Path(os.path.realpath(folder))  # a link to an empty folder stays a link
    temporary = _temporary(target)
    with _as_write_errors(folder, temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            yield temporary
            _write_sums(temporary)
            for path in (*temporary.rglob("*"), temporary):
                _sync(path)
            if target.is_dir():
                target.rmdir()  # an empty one; not every system renames onto it
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync(target.parent)


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds anything, but for what was half written: it might be somebody's."""
    if folder.is_dir() and not all(_HALF_WRITTEN.fullmatch(path.name) for path in folder.iterdir()):
        raise ExistingFileError(f"{folder} is not empty: choose another folder, or remove it first")
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise ExistingFileError(
                f"{path} is a link to {os.readlink(path)}, which does not exist: make that folder, or choose another"
            )
        if path.exists() and not path.is_dir():
            raise ExistingFileError(f"{path} is a file: choose another name for the folder {folder}")


def discard(folder: Path) -> None:
    """Remove a folder such that at every moment it is there whole, or not at all."""
    temporary = _temporary(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def sweep(folder: Path) -> None:
    """Remove what was half written in `folder` and in the folders in it, when processes were killed.

    Nobody may be writing there.
    """
    for place in (folder, *(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())):
        for path in place.iterdir() if place.is_dir() else ():
            if _HALF_WRITTEN.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[bool]:
    """Keep a folder to this process while the block lasts; the system sees to it that no kill leaves it locked.

    Yields
    ------
    bool
        Whether it is: Windows, and some file systems of networks, cannot lock a folder.

    Raises
    ------
    ValueError
        If another process has locked it; the message is `busy`.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(busy) from error
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


# What was written is what is read


def open_to_read(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises
    ------
    IsADirectoryError
        If it is a folder.
    PermissionError
        If the file is there and must not be read; libraries that open files themselves may call it missing.
    """
    try:
        return path.open("rb")
    except IsADirectoryError as error:
        raise NotAFileError(f"{path} is a folder, and a file is read there: name one") from error
    except PermissionError as error:
        raise NotAllowedError(f"{path} is there, but you may not read it: ask its owner to let you") from error


def as_json(value: Any) -> str:
    """Return plain data as JSON that people read."""
    return json.dumps(value, indent=2) + "\n"


def parse_json(data: str | bytes) -> Any:
    """Return what JSON of unknown origin says.

    Raises
    ------
    ValueError
        If it is none, or lists in lists go deeper than Python can follow.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise InputError("it is nested too deeply: write it anew") from error


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add_sum(path: Path, sha256: str) -> None:
    """Tell the folder of `path` the digest of a file that is about to get that name.

    Until then the one that has it is intact as well, so no moment is one at which neither is.
    """
    sums = path.parent / SUMS
    with _as_write_errors(sums, sums), sums.open("ab") as file:
        file.write(f"{sha256}  {path.name}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def check(path: Path) -> None:
    """Refuse a file that is not what was written, where its folder tells, as every folder of a run does.

    Raises
    ------
    FileNotFoundError
        If it is missing, and was there.
    PermissionError
        If it must not be read.
    ValueError
        If its digest, or the list of digests, is another than was written.
    """
    sums = (_read_sums(path.parent) or {}).get(path.name)
    if sums is not None:
        reason = _wrong(path, sums)
    else:
        reason = f"is not listed in {SUMS} beside it" if path.exists() and _is_of_a_run(path) else None
    if reason is not None:
        kind = InputError if path.exists() else MissingFileError
        raise kind(
            f"{path} {reason}: copy both again from where they are whole; if the change was meant, list the new "
            f"checksum there as well (sha256sum {shlex.quote(path.name)} >> {SUMS})"
        )


def damage(folder: Path) -> str | None:
    """Return what is wrong with a folder that `atomic_folder` wrote, or None where every file is as it was written."""
    try:
        sums = _read_sums(folder)
        if sums is None:
            return f"{SUMS} is missing, so it may be incomplete"
        reasons = ((name, _wrong(folder / name, digests)) for name, digests in sums.items())
        return next((f"{name} {reason}" for name, reason in reasons if reason is not None), None)
    except (InputError, NotAllowedError) as error:
        return str(error)


def _wrong(path: Path, sums: set[str]) -> str | None:
    """Return what is wrong with a file, given the digests that it may have."""
    if not path.is_file():
        return f"is missing, and {SUMS} beside it lists it"
    return None if digest(path) in sums else f"is damaged: its checksum is not the one in {SUMS}"


def _is_of_a_run(path: Path) -> bool:
    """Return whether a file is in the folder of a run, of one of its models, or of one of its checkpoints."""
    return any((folder / DESCRIPTION).is_file() for folder in list(path.absolute().parents)[:3])


def _read_sums(folder: Path) -> dict[str, set[str]] | None:
    """Return the digests of the files in a folder by name, several where a file was written again; None without any."""
    path = folder / SUMS
    if not os.path.lexists(path):
        return None
    # What follows the last line is one that was cut short; without lines the file was.
    lines = (path.read_bytes().split(b"\n")[:-1] if path.is_file() else []) or [b""]
    sums: dict[str, set[str]] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path} is damaged: copy it again from where it is whole, or, where all files are as they are meant, "
                f"write it anew (sha256sum FILES > {SUMS})"
            )
        sums.setdefault(match[2].decode(), set()).add(match[1].decode())
    return sums


def _write_sums(folder: Path) -> None:
    """List the digests of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS).write_bytes("".join(lines).encode())


@contextmanager
def _as_write_errors(path: Path, temporary: Path) -> Iterator[None]:
    """Tell of a failure to write with the name that was asked for; what else fails in the block stays as it is."""
    try:
        yield
    except OSError as error:
        name = "" if error.filename is None else os.fsdecode(error.filename)
        ours = not name or str(temporary) in name or Path(name) in (path, temporary.parent, *temporary.parents)
        if isinstance(error, TMMError) or not ours:
            raise
        raise WriteError(path, error) from error


def _temporary(path: Path) -> Path:
    # Threads and other machines may write too; and names have a limit, which is near where that of the file is long.
    return path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.part")


def _sync(path: Path) -> None:
    """Write a file or the entries of a folder to the disk."""
    if os.name == "nt":
        return  # it cannot open folders, and syncs only what is open for writing
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
