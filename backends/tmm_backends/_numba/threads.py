"""A parallel loop on Python threads, for kernels that run without the GIL.

It may be called by several threads at once and after a fork, and no thread spins while it waits. Numba's threading
layers do not offer all of that: `workqueue` aborts the process when two threads call at once, `omp` kills a forked
child.
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
    """Return how many threads may compute: the least of NUMBA_NUM_THREADS, OMP_NUM_THREADS and PyTorch's number."""
    counts = [_config.NUMBA_NUM_THREADS]
    openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if openmp.isdigit() and int(openmp) > 0:
        counts.append(int(openmp))
    torch: Any = sys.modules.get("torch")  # its users set the threads of their process there
    if hasattr(torch, "get_num_threads"):
        counts.append(torch.get_num_threads())
    return int(min(counts))


def parallel_for(jobs: int, worker: Callable[[], Work], *, threads: int) -> None:
    """Do jobs 0 to `jobs - 1` in at most `threads` threads, in ranges of jobs: `work(first, last)`.

    `worker` is called once by each thread and returns its `work`, which may hold memory of the thread. Returns when all
    threads have finished, or raises the first exception of one of them.
    """
    threads = min(threads, jobs)
    if threads == 1:
        worker()(0, jobs)
        return
    pieces = min(jobs, 8 * threads)  # more than threads, since other processes slow some threads down
    counter = itertools.count()
    state = threading.Condition()
    running, closed = 0, False
    failures: list[BaseException] = []

    def run_pieces() -> None:
        work = worker()
        while not closed and (piece := next(counter)) < pieces:
            work(piece * jobs // pieces, (piece + 1) * jobs // pieces)

    def help_out() -> None:
        nonlocal running
        with state:
            if closed:  # too late: all pieces are done
                return
            running += 1
        try:
            run_pieces()
        except BaseException as error:  # raised in the thread of the caller
            failures.append(error)
        finally:
            with state:
                running -= 1
                state.notify()

    for _ in range(threads - 1):
        _submit(help_out)
    try:
        run_pieces()
    finally:
        with state:
            closed = True
            while running:
                state.wait()
    if failures:
        raise failures[0]


def _submit(work: Callable[[], None]) -> None:
    """Submit work to the pool; an interpreter that is ending starts no thread, and the caller then does all jobs."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, _config.NUMBA_NUM_THREADS - 1), thread_name_prefix="tmm-numba")
        with contextlib.suppress(RuntimeError):
            _pool.submit(work)


def _forget_pool() -> None:
    """Drop the pool in a forked child, which has none of its parent's threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
