"""How kernels are compiled: without the GIL, with exact checks for NaN, and kept on disk where a folder can be written.

Numba's own cache notices when the file of a kernel changes, but not another file that the kernel is made of. Here the
folder is named by a hash of all sources of this package, so edited code is never answered from an old cache.
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

from .lanes import DTYPE_TAGS
from .target import FAST, NAME, REGISTER_BYTES

__all__ = ["device_function", "kernel"]

log = logging.getLogger("tmm_core")


def device_function(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; it becomes a part of each."""
    return numba.njit(nogil=True, fastmath=set(FAST), error_model="numpy")(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, for the dtypes that its first argument tells, and keep its machine code."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(FOLDER or before)
    try:
        compiled = numba.njit(nogil=True, fastmath=set(FAST), error_model="numpy", cache=FOLDER is not None)(function)
    finally:
        config.CACHE_DIR = before
    ready: set[tuple[type, ...]] = set()

    def begin(dtype_tags: tuple[Any, ...], *arguments: Any) -> Any:
        """Run for the first time in this process: compile, unless the machine code is at hand."""
        names = {type(number): name for name, number in DTYPE_TAGS.items()}
        dtypes = " and ".join(dict.fromkeys(names[type(number)] for number in dtype_tags))
        mark = None if FOLDER is None else FOLDER / f"{function.__name__} {dtypes}.compiled"
        if mark is None or not mark.exists():
            log.info("compiling the Numba kernel %s for %s, %s", function.__name__, dtypes, KEPT)
        try:
            result = compiled(dtype_tags, *arguments)
        except OSError as error:  # a full disk, say: it is compiled, but could not be kept, and has not run
            log.warning("the Numba kernel %s could not be kept on disk: %s", function.__name__, error)
            return compiled(dtype_tags, *arguments)
        except (EOFError, pickle.UnpicklingError) as error:  # files cut short, by a machine that went down
            log.warning("compiling anew what cannot be read in %s: %s", FOLDER, error)
            shutil.rmtree(FOLDER or "", ignore_errors=True)
            return compiled(dtype_tags, *arguments)
        _touch(mark)
        return result

    @functools.wraps(function)
    def call(dtype_tags: tuple[Any, ...], *arguments: Any) -> Any:
        key = tuple(type(number) for number in dtype_tags)
        if key not in ready:
            with _compiling:  # one thread compiles, others wait for it
                if key not in ready:
                    result = begin(dtype_tags, *arguments)
                    ready.add(key)
                    return result
        return compiled(dtype_tags, *arguments)

    def entry(*arguments: Any) -> Callable[..., Any]:
        """Return what a call with arguments of these types comes down to, once they have been compiled for."""
        signature = tuple(numba.typeof(argument) for argument in arguments)
        result: Any = compiled.overloads[signature]
        found: Callable[..., Any] = result.entry_point
        return found

    call.entry = entry  # type: ignore[attr-defined]
    return call


def _touch(mark: Path | None) -> None:
    """Note that a kernel is kept, so that no later process says that it compiles it."""
    if mark is not None and not mark.exists():
        with contextlib.suppress(OSError):
            mark.touch()


def _folder() -> Path | None:
    """Return where machine code is kept: under NUMBA_CACHE_DIR, the user's cache or the temporary folder; or None."""
    # The width of registers is part of the code, and not of what Numba asks when it looks up machine code.
    machine = f"{numba.__version__} {sys.implementation.cache_tag} {NAME} {REGISTER_BYTES}"
    sources = hashlib.sha256(machine.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(path.read_bytes())
    name = f"tmm-numba-{sources.hexdigest()[:16]}"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [Path(parent) / name for parent in (os.environ.get("NUMBA_CACHE_DIR"), cache) if parent]
    with contextlib.suppress(FileNotFoundError):  # there is no temporary folder, either
        # Not below a folder there, which might be somebody else's; and of another name for each user.
        places.append(Path(tempfile.gettempdir()) / (f"{name}-{os.getuid()}" if hasattr(os, "getuid") else name))
    return next((place for place in places if _is_ours(place)), None)


def _is_ours(folder: Path) -> bool:
    """Return whether we can write there, and nobody else can: what lies there will be run.

    By trying: permissions do not tell of read-only disks.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            state = folder.lstat()  # a link might lead elsewhere later
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


FOLDER = _folder()
KEPT = "once: no folder to keep it in can be written" if FOLDER is None else f"once; it is kept in {FOLDER}"

_compiling = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child that is forked while another thread compiles would wait for ever
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )
