"""Plans of transforms, kept for the next call: as many, and with as much memory, as is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Plan", "PlanKey", "Plans"]

PLANS = 64
"""Plans kept on one device: documents take one for every power of two below the length."""


class PlanKey(NamedTuple):
    """What a plan is good for.

    Complex plans serve both directions. The layout is always the same: transforms along the first axis of an array
    `(length, columns)` in C order, in place. A plan computes in memory of its own, so only work that a stream does one
    after the other may share it: CuPy's own cache does not see to that (cupy issue 8079).
    """

    stream: int
    thread: int
    """Set where every thread has a stream of its own under one name."""
    length: int
    columns: int
    dtype: str


class Plan(NamedTuple):
    """A plan, and the bytes of device memory that it holds."""

    plan: Any
    size: int


@dataclass
class Plans:
    """The plans of one device that nobody uses now, least recently used first."""

    most_bytes: int
    most_plans: int = PLANS
    _idle: list[tuple[PlanKey, Plan]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def borrowed(self, key: PlanKey, make: Callable[[], Plan]) -> Iterator[Any]:
        """Lend a plan to this thread alone, made if none is idle, and keep it for others afterwards.

        It is idle again when its work is queued: what the same stream does with it later comes later.
        """
        plan = self._taken(key) or make()
        try:
            yield plan.plan
        finally:
            dropped = self._kept(key, plan)
            del dropped  # outside the lock, since a plan may wait for the device when it ends

    def _taken(self, key: PlanKey) -> Plan | None:
        with self._lock:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] == key:
                    return self._idle.pop(at)[1]
        return None

    def _kept(self, key: PlanKey, plan: Plan) -> list[tuple[PlanKey, Plan]]:
        """Keep a plan, and return those that must go for it."""
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
        """Return how many plans are idle, and their bytes."""
        with self._lock:
            return len(self._idle), self._bytes()
