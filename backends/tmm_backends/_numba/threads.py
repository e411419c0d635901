"""Threads of our own: safe from many threads at once and after a fork, and none that spins while it waits.

Numba's layers are not all of these: `workqueue` aborts the process when two threads call at once, `omp` kills a forked
child. Kernels run without the GIL, so Python's threads are as good.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba

__all__ = ["parallel_for", "thread_count"]

Work = Callable[[int, int], None]

_config: Any = numba.config
_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def thread_count() -> int:
    """Return how many threads may compute: as NUMBA_NUM_THREADS, OMP_NUM_THREADS and PyTorch allow."""
    counts = [_config.NUMBA_NUM_THREADS]
    openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if openmp.isdigit() and int(openmp) > 0:
        counts.append(int(openmp))
    torch: Any = sys.modules.get("torch")  # whose users set the threads of their process there
    if hasattr(torch, "get_num_threads"):
        counts.append(torch.get_num_threads())
    return int(min(counts))


def parallel_for(jobs: int, worker: Callable[[], Work], *, threads: int) -> None:
    """Do the jobs below `jobs` in ranges, `work(first, last)`; `worker` makes the `work` of a thread, with memory.

    Returns, or raises what a thread raised, when no thread works any more.
    """
    threads = min(threads, jobs)
    if threads == 1:
        worker()(0, jobs)
        return
    pieces = min(jobs, 8 * threads)  # small ones, to even out what threads lose to other processes
    counter = itertools.count()
    state = threading.Condition()
    running, closed = 0, False
    failures: list[BaseException] = []

    def go() -> None:
        work = worker()
        while not closed and (piece := next(counter)) < pieces:
            work(piece * jobs // pieces, (piece + 1) * jobs // pieces)

    def lend_a_hand() -> None:
        nonlocal running
        with state:
            if closed:  # too late: the others have done it all
                return
            running += 1
        try:
            go()
        except BaseException as error:  # raised where the call was made
            failures.append(error)
        finally:
            with state:
                running -= 1
                state.notify()

    for _ in range(threads - 1):
        _submit(lend_a_hand)
    try:
        go()
    finally:
        with state:
            closed = True
            while running:
                state.wait()
    if failures:
        raise failures[0]


def _submit(work: Callable[[], None]) -> None:
    """Let another thread work, unless the interpreter is ending and starts none: then the caller does it all."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, _config.NUMBA_NUM_THREADS - 1), thread_name_prefix="tmm-numba")
        with contextlib.suppress(RuntimeError):
            _pool.submit(work)


def _forget_pool() -> None:
    """Begin anew in a forked child, which has none of its parent's threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
