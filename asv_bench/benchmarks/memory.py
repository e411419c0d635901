"""The memory that a causal Toeplitz product takes beyond its input and output."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import BACKEND, glibc, measures, ready
from ._baselines import PRODUCTS
from .product import HEADS, LENGTHS, Case

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Memory:
    """Bytes at the height of one product."""

    params = (LENGTHS, HEADS, tuple(dict.fromkeys((BACKEND, "numba", "torch", "torch.fft"))))
    param_names = ("n", "heads", "backend")

    def setup(self, n: int, heads: int, backend: str) -> None:
        """Call it once, to compile."""
        if not _CLEAR_REFS.exists():
            raise NotImplementedError("this system does not tell a process's peak of memory since a moment")
        case = Case(n, heads)
        if backend in PRODUCTS:
            self.product = PRODUCTS[backend](*case.arrays())
        else:
            ready(backend)
            self.product = case.product(backend)
        self.product()

    @measures("memory of a product beyond its input and output", "bytes")
    def track_product(self, n: int, heads: int, backend: str) -> int:
        """Multiply."""
        return extra_memory(self.product)


def extra_memory(call: Callable[[], Any], *, times: int = 3) -> int:
    """Return the bytes that `call` holds at its height beyond what was there and its result: the median of some calls.

    Linux only.
    """
    found = []
    for _ in range(times):
        libc = glibc()
        if libc is not None:
            libc.malloc_trim(0)  # pages that were freed and kept would not be counted again
        _CLEAR_REFS.write_text("5")  # the peak begins anew
        before = _resident("VmRSS")
        result = call()
        found.append(_resident("VmHWM") - before - result.nbytes)
        del result
    return max(0, int(statistics.median(found)))


def _resident(field: str) -> int:
    """Return a field of `/proc/self/status` in bytes; the file counts in KiB."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
