"""Compilation of kernels: without the GIL, with exact checks for NaN, and cached on disk where a folder is writable.

Numba's own cache notices when the file of a kernel changes, but not when another file changes whose functions the
kernel calls. So the folder of the cache is named by a hash of all sources of this package.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from .memory import DTYPE_TAGS
from .target import FAST, NAME, REGISTER_BYTES

__all__ = ["device_function", "kernel"]

log = logging.getLogger("tmm_core")


def device_function(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels and other device functions call."""
    return numba.njit(nogil=True, fastmath=set(FAST), error_model="numpy")(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, for each tuple of dtype tags (its first argument), and cache the code."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(FOLDER or before)
    try:
        compiled = numba.njit(nogil=True, fastmath=set(FAST), error_model="numpy", cache=FOLDER is not None)(function)
    finally:
        config.CACHE_DIR = before
    ready: set[tuple[type, ...]] = set()

    def first_call(dtype_tags: tuple[Any, ...], *arguments: Any) -> Any:
        """Run for the first time in this process: load the machine code, or compile."""
        names = {type(number): name for name, number in DTYPE_TAGS.items()}
        dtypes = " and ".join(dict.fromkeys(names[type(number)] for number in dtype_tags))
        mark = None if FOLDER is None else FOLDER / f"{function.__name__} {dtypes}.compiled"
        if mark is None or not mark.exists():
            log.info("compiling the Numba kernel %s for %s, %s", function.__name__, dtypes, KEPT)
        try:
            result = compiled(dtype_tags, *arguments)
        except OSError as error:  # such as a full disk: it is compiled, but not cached, and has not run yet
            log.warning("the Numba kernel %s could not be kept on disk: %s", function.__name__, error)
            return compiled(dtype_tags, *arguments)
        except (EOFError, pickle.UnpicklingError) as error:  # truncated files, after a crash of the machine
            log.warning("compiling anew what cannot be read in %s: %s", FOLDER, error)
            if FOLDER is not None:
                shutil.rmtree(FOLDER, ignore_errors=True)
                FOLDER.mkdir(mode=0o700, exist_ok=True)
            result = compiled(dtype_tags, *arguments)
        _touch(mark)
        return result

    @functools.wraps(function)
    def call(dtype_tags: tuple[Any, ...], *arguments: Any) -> Any:
        key = tuple(type(number) for number in dtype_tags)
        if key not in ready:
            with _compiling:  # one thread compiles, others wait for it
                if key not in ready:
                    result = first_call(dtype_tags, *arguments)
                    ready.add(key)
                    return result
        return compiled(dtype_tags, *arguments)

    def entry(*arguments: Any) -> Callable[..., Any]:
        """Return the compiled function for arguments of these types, which have been passed before.

        To call it skips the lookup of types.
        """
        signature = tuple(numba.typeof(argument) for argument in arguments)
        result: Any = compiled.overloads[signature]
        found: Callable[..., Any] = result.entry_point
        return found

    call.entry = entry  # type: ignore[attr-defined]
    return call


def _touch(mark: Path | None) -> None:
    """Note that a kernel is cached, so that no later process logs that it compiles it."""
    if mark is not None and not mark.exists():
        with contextlib.suppress(OSError):
            mark.touch()


def _folder() -> Path | None:
    """Return the folder for machine code: under NUMBA_CACHE_DIR, the user's cache or the temporary folder; or None."""
    # The width of registers is part of the machine code, but not of the key by which Numba looks it up.
    machine = f"{numba.__version__} {sys.implementation.cache_tag} {NAME} {REGISTER_BYTES}"
    sources = hashlib.sha256(machine.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(path.read_bytes())
    name = f"tmm-numba-{sources.hexdigest()[:16]}"
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
KEPT = "once: no folder to keep it in can be written" if FOLDER is None else f"once; it is kept in {FOLDER}"

_compiling = threading.RLock()
if hasattr(os, "register_at_fork"):  # else a child that is forked while another thread compiles waits for ever
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )
