"""Benchmarks for asv, one file a topic; `tmm bench` runs them and prints tables.

Comparisons are tracked as our time over theirs, a sample a turn: asv takes less for better. Environment variables:
`TMM_BACKEND` is the engine that is measured (Numba's unless given), `TMM_BENCH_THREADS` the number of threads of
both (2), `TMM_BENCH_LENGTHS` lengths in place of those of each benchmark.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

# Libraries read these when they are imported; XLA's thread pool has no other option.
_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = int(os.environ.get("TMM_BENCH_THREADS") or min(2, _cores))
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC", "PJRT_NPROC"):
    os.environ[_name] = str(THREADS)
os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads of one library would hold the cores of the next

import numpy as np  # noqa: E402

import tmm_core  # noqa: E402

Measured = TypeVar("Measured", bound=Callable[..., Any])

BACKEND = os.environ.get("TMM_BACKEND", "").strip() or "numba"
ALLOCATORS: tuple[str, ...] = ("default", "keeps pages")
"""glibc's malloc as it is, and told to give no page back: most of the time of a large temporary is page faults."""
RATIO = "of its time"
"""The unit of our time over another's."""
AGREEMENT = 1e-4
"""Of the largest result: float32 sums in another order differ by 1e-6, a wrong result by all of it."""


def require(library: str) -> Any:
    """Return a library.

    Raises
    ------
    NotImplementedError
        If it cannot be imported; raised in a `setup`, asv skips the benchmark.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise NotImplementedError(f"{library} cannot be imported: {error}") from error


# Imported once, where asv forks a process for each measurement; nothing is computed before.
warnings.filterwarnings("ignore", r"os\.fork", RuntimeWarning)  # of JAX
for _name in ("torch", "jax", "numba", "scipy.signal"):
    with suppress(NotImplementedError):
        require(_name)


def measures(title: str, unit: str = "seconds") -> Callable[[Measured], Measured]:
    """Return a decorator that tells asv, and so `tmm bench`, what a benchmark measures; asv times in seconds only."""

    def decorate(function: Measured) -> Measured:
        function.pretty_name, function.unit = title, unit  # type: ignore[attr-defined]
        return function

    return decorate


def lengths(*usual: int) -> tuple[int, ...]:
    """Return the lengths to measure: those of `TMM_BENCH_LENGTHS`, or else the usual ones."""
    return tuple(map(int, os.environ.get("TMM_BENCH_LENGTHS", "").split())) or usual


def ready(backend: str = BACKEND, allocator: str = "default") -> None:
    """Check that a backend is here, and choose what malloc does, in a process that asv has started.

    Raises
    ------
    NotImplementedError
        If there is no such backend, or the C library is not glibc and pages are to be kept.
    """
    if backend not in tmm_core.available_backends():
        raise NotImplementedError(f"backend {backend!r} is not installed")
    if allocator == "keeps pages":
        trim_threshold, mmap_max = -1, -4  # names of mallopt's parameters in malloc.h
        libc = glibc()
        # No block is mapped by itself, to be unmapped when freed, and the heap's end is never given back.
        if libc is None or not (libc.mallopt(mmap_max, 0) and libc.mallopt(trim_threshold, -1)):
            raise NotImplementedError("only glibc's malloc can be told to keep its pages")


def glibc() -> ctypes.CDLL | None:
    """Return the C library, if it is glibc."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def samples(values: Iterable[float]) -> dict[str, Any]:
    """Return what a `track_` function returns to have asv compute the median and quartiles."""
    return {"samples": [float(f"{value:.4g}") for value in values], "number": 1}


def check_same(baseline: str, ours: Any, theirs: Any) -> None:
    """Check that two results are one.

    Raises
    ------
    RuntimeError
        If they differ by more than rounding, or are not finite: the time of a wrong result is not worth knowing.
    """
    mine, other = np.asarray(ours), np.asarray(theirs)
    scale, difference = float(np.abs(other).max()), float(np.abs(mine - other).max())
    if not difference <= AGREEMENT * scale < np.inf:  # NaN is refused as well
        raise RuntimeError(f"{baseline} and ours differ by {difference:.1e} where the largest result is {scale:.1e}")
