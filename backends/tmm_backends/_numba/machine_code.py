"""Machine code on disk: where it is kept, under which names, and how it is known to be what was written.

Numba's own files are named by the file of a kernel: they notice no edit in another file whose functions it calls, and
damage in them reaches LLVM, which ends the process. Here a folder is named by a hash of all sources of this package and
of what compiles them, and a file by what it was compiled for; each file begins with a hash of the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import logging
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import caching, compiler, serialize

from .memory import DTYPE_TAGS
from .target import NAME, REGISTER_BYTES

__all__ = ["FOLDER", "KeptCode"]

log = logging.getLogger("tmm_core")

HASH = hashlib.blake2b
DIGEST = HASH().digest_size
TAGS = {numba.typeof(number): name for name, number in DTYPE_TAGS.items()}


class KeptCode(caching.NullCache):
    """The code of one kernel, a file for each signature, as Numba's dispatchers load and save it."""

    def __init__(self, function: Callable[..., Any], folder: Path | None) -> None:
        """Keep the code of a function in a folder, or nowhere."""
        self.name, self.folder = function.__name__, folder

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was saved, or None: nothing, or what is not what was written."""
        target_context.refresh()
        kept = None if self.folder is None else _read(self.folder / self._file(sig, target_context.codegen()))
        if kept is not None:
            return compiler.CompileResult._rebuild(target_context, *pickle.loads(kept))
        dtypes = " and ".join(dict.fromkeys(TAGS[tag] for tag in sig[0]))
        where = "no folder to keep it in can be written" if self.folder is None else f"it is kept in {self.folder}"
        log.info("compiling the Numba kernel %s for %s, once; %s", self.name, dtypes, where)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save what was compiled; a full disk is no error."""
        if self.folder is None:
            return
        code = serialize.dumps(data._reduce())
        try:
            _write(self.folder / self._file(sig, data.codegen), HASH(code).digest() + code)
        except OSError as error:
            log.warning("the Numba kernel %s could not be kept on disk: %s", self.name, error)

    def _file(self, sig: Any, codegen: Any) -> str:
        key = HASH(repr((sig, codegen.magic_tuple())).encode(), digest_size=8)
        return f"{self.name}-{key.hexdigest()}"


def _read(path: Path) -> bytes | None:
    """Return the code in a file, or None if it is not what was written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:  # such as pages that a disk has lost
        log.warning("compiling anew what cannot be read: %s", error)
        return None
    code = content[DIGEST:]
    if HASH(code).digest() == content[:DIGEST]:
        return code
    log.warning("compiling anew what is damaged: %s", path)
    return None


def _write(path: Path, content: bytes) -> None:
    """Write a file at once: other processes may read or write it, too."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _sources() -> list[bytes]:
    """Return the sources of this package, wherever they are; their byte code where there is nothing else."""
    files = sorted(importlib.resources.files(__package__).iterdir(), key=lambda file: file.name)
    texts, codes = ([file.read_bytes() for file in files if file.name.endswith(end)] for end in (".py", ".pyc"))
    return texts or codes


def _folder() -> Path | None:
    """Return the folder for machine code: under NUMBA_CACHE_DIR, the user's cache or the temporary folder; or None."""
    sources = _sources()
    if not sources:  # nothing tells whether code that was kept is this package's
        return None
    # The width of registers is part of the machine code, but of no signature.
    versions = f"{numba.__version__} {llvmlite.__version__} {sys.implementation.cache_tag} {NAME} {REGISTER_BYTES}"
    name = f"tmm-numba-{HASH(b''.join([versions.encode(), *sources]), digest_size=8).hexdigest()}"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [Path(parent) / name for parent in (os.environ.get("NUMBA_CACHE_DIR"), cache) if parent]
    with contextlib.suppress(FileNotFoundError):  # there is no temporary folder either
        # Directly in it, since a folder there might be somebody else's; with a name of its own for each user.
        places.append(Path(tempfile.gettempdir()) / (f"{name}-{os.getuid()}" if hasattr(os, "getuid") else name))
    return next((place for place in places if _is_ours(place)), None)


def _is_ours(folder: Path) -> bool:
    """Return whether this user, and nobody else, can write to a folder, whose code will be run.

    By trying it: permissions do not show that a disk is read-only.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            state = folder.lstat()  # not stat: a link might point elsewhere later
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


FOLDER = _folder()
