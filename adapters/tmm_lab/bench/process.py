"""A process to measure in: its threads, the C library's allocator, and the memory that a call takes."""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "ALLOCATORS",
    "check_allocator",
    "cores",
    "default_backend",
    "default_threads",
    "extra_memory",
    "prepare",
    "wanted",
]

ALLOCATORS = ("default", "keeps pages")
"""The C library's as it is, and told to give no page back: most of the time of a large temporary is page faults."""

# Parameters of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@contextmanager
def wanted(library: str) -> Iterator[None]:
    """Say of a library that cannot be imported in the block that there is nothing to measure, in asv's own way.

    Raises
    ------
    NotImplementedError
        In place of an `ImportError`.
    """
    try:
        yield
    except ImportError as error:
        raise NotImplementedError(f"{library} cannot be imported: {error}") from error


def default_backend() -> str:
    """Return the backend that is measured unless one is named: that of `TMM_BACKEND`, else `numba`."""
    return os.environ.get("TMM_BACKEND", "").strip() or "numba"


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Return how many threads each side gets unless told: two, or one on one core."""
    return min(2, cores())


def check_allocator(allocator: str) -> None:
    """Check that the C library's allocator can be told to do this.

    Raises
    ------
    NotImplementedError
        If the C library is not glibc.
    ValueError
        If the name is unknown.
    """
    if allocator not in ALLOCATORS:
        raise ValueError(f"allocator must be one of {', '.join(map(repr, ALLOCATORS))}, got {allocator!r}")
    if allocator != "default" and not _has_glibc():
        raise NotImplementedError("only glibc's allocator can be told to keep its pages")


def prepare(threads: int, allocator: str = "default") -> None:
    """Let this process compute on `threads` threads, and let malloc do as `allocator` says.

    Call it before anything is computed, in a process that does nothing else.

    Raises
    ------
    NotImplementedError, ValueError
        As `check_allocator`.

    Notes
    -----
    Libraries read variables when they are imported, so that those that are already are told. XLA's thread pool has one
    thread a core and no option for fewer; it reads `NPROC` when it starts, `PJRT_NPROC` in later versions.
    """
    check_allocator(allocator)
    os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads of one library would hold the cores of the next
    for name in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = str(threads)
    os.environ["NPROC"] = os.environ["PJRT_NPROC"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()  # its set_num_threads would start threads that nobody uses
    if allocator != "default":
        libc = ctypes.CDLL(None)
        # Nothing is mapped by itself, to be unmapped when freed, and the heap's end is never given back.
        if not (libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, -1)):
            raise NotImplementedError("this glibc refuses to keep its pages")


def extra_memory(call: Callable[[], Any], result_bytes: int, *, times: int = 3) -> int:
    """Return the bytes that `call` holds at its height, beyond what was there before and its result.

    Parameters
    ----------
    call : callable without arguments
        Called once to warm up, then `times` times.
    result_bytes : int
        Bytes of what it returns.
    times : int
        The median of as many is returned.

    Raises
    ------
    NotImplementedError
        Where the system does not tell a process's peak since a moment: all but Linux.
    """
    call()
    found = []
    for _ in range(times):
        if _has_glibc():
            ctypes.CDLL(None).malloc_trim(0)  # pages that were freed and kept would not be counted again
        try:
            _CLEAR_REFS.write_text("5")  # the peak begins anew
        except OSError as error:
            raise NotImplementedError(f"the peak of memory cannot be measured here: {error}") from error
        before = _resident("VmRSS")
        result = call()
        found.append(_resident("VmHWM") - before - result_bytes)
        del result
    return max(0, int(statistics.median(found)))


def _resident(field: str) -> int:
    """Return a field of `/proc/self/status` in bytes; the file counts in KiB."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _has_glibc() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
