"""Benchmarks for asv, one file a topic; what they measure, and how, is `tmm_lab.bench`, as for `tmm bench`.

Ratios are tracked as our time over theirs, a sample a turn: asv takes less for better when it compares commits.
"""

from __future__ import annotations

from typing import Any

import tmm_core
from tmm_lab.bench import Ratio, default_backend, default_threads, prepare

BACKEND = default_backend()


def ready(backend: str = BACKEND, allocator: str = "default") -> None:
    """Prepare the process that asv has started for one measurement."""
    if backend not in tmm_core.available_backends():
        raise NotImplementedError(f"backend {backend!r} is not installed")
    prepare(default_threads(), allocator)


def samples(ratio: Ratio) -> dict[str, Any]:
    """Return our time over theirs, a sample a turn."""
    return {"samples": [round(1 / turn, 4) for turn in ratio.turns], "number": 1}
