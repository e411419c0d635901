"""Threads of our own: safe from many threads at once and after a fork, and none that spins while it waits.

Numba's layers are not all of these: `workqueue` aborts the process when two threads call at once, `omp` kills a forked
child. Kernels run without the GIL, so Python's threads are as good.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numba

__all__ = ["share_out", "thread_count"]

Work = Callable[[int, int], None]

_pool: ThreadPoolExecutor | None = None


def thread_count() -> int:
    """Return how many threads may compute: as NUMBA_NUM_THREADS, OMP_NUM_THREADS and PyTorch allow."""
    config: Any = numba.config
    counts = [config.NUMBA_NUM_THREADS]
    openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if openmp.isdigit() and int(openmp) > 0:
        counts.append(int(openmp))
    torch: Any = sys.modules.get("torch")  # whose users set the threads of their process there
    if hasattr(torch, "get_num_threads"):
        counts.append(torch.get_num_threads())
    return int(min(counts))


def share_out(jobs: int, worker: Callable[[], Work], *, threads: int) -> None:
    """Do the jobs below `jobs` in ranges, `work(first, last)`; `worker` makes the `work` of a thread, with memory."""
    threads = min(threads, jobs)
    pieces = jobs if threads == 1 else min(jobs, 8 * threads)  # small ones at the end even out what threads lose
    if threads == 1:
        worker()(0, jobs)
        return
    counter = itertools.count()

    def go() -> None:
        work = worker()
        while (piece := next(counter)) < pieces:
            work(piece * jobs // pieces, (piece + 1) * jobs // pieces)

    others = [_submit(go) for _ in range(threads - 1)]
    go()
    for other in others:
        if other is not None and not other.cancel():  # one that never started has left its pieces to the others
            other.result()


def _submit(go: Callable[[], None]) -> Future[None] | None:
    """Start a thread's work; None where the interpreter is ending and starts no more threads."""
    global _pool
    if _pool is None:
        config: Any = numba.config
        _pool = ThreadPoolExecutor(max(1, config.NUMBA_NUM_THREADS - 1), thread_name_prefix="tmm-numba")
    try:
        return _pool.submit(go)
    except RuntimeError:
        return None


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
