"""A cache of cuFFT plans, bounded in number and in device memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["CufftPlan", "PlanKey", "Plans"]

PLANS = 64
"""Plans kept for one device: packed documents need one for each power of two below the length."""


class PlanKey(NamedTuple):
    """What a plan can be used for.

    Complex plans serve both directions. The layout is always the same: transforms along the first axis of an array
    `(length, columns)` in C order, in place. A plan has work memory of its own, so only calls that one stream executes
    one after the other may share it; CuPy's own cache does not ensure that (cupy issue 8079).
    """

    stream: int
    thread: int
    """0, or the thread, where each thread has a stream of its own with the same number."""
    length: int
    columns: int
    dtype: str


class CufftPlan(NamedTuple):
    """A plan of cuFFT, and the bytes of device memory that it holds."""

    plan: Any
    size: int


@dataclass
class Plans:
    """The plans of one device that are not in use, least recently used first."""

    most_bytes: int
    most_plans: int = PLANS
    _idle: list[tuple[PlanKey, CufftPlan]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def borrowed(self, key: PlanKey, make: Callable[[], CufftPlan]) -> Iterator[Any]:
        """Give this thread an idle plan, or a new one, for the block, and keep it for other calls afterwards.

        It is idle again as soon as its work is queued, since the same stream executes later work later.
        """
        plan = self._taken(key) or make()
        try:
            yield plan.plan
        finally:
            dropped = self._kept(key, plan)
            del dropped  # outside the lock: to destroy a plan may wait for the device

    def _taken(self, key: PlanKey) -> CufftPlan | None:
        with self._lock:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] == key:
                    return self._idle.pop(at)[1]
        return None

    def _kept(self, key: PlanKey, plan: CufftPlan) -> list[tuple[PlanKey, CufftPlan]]:
        """Keep a plan, and return those that are dropped for it."""
        with self._lock:
            self._idle.append((key, plan))
            dropped = []
            while self._idle and (len(self._idle) > self.most_plans or self._bytes() > self.most_bytes):
                dropped.append(self._idle.pop(0))
            return dropped

    def _bytes(self) -> int:
        return sum(plan.size for _, plan in self._idle)

    @property
    def held(self) -> tuple[int, int]:
        """The number of idle plans, and their bytes."""
        with self._lock:
            return len(self._idle), self._bytes()
