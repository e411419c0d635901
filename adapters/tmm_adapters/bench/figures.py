"""The figures of `tmm bench`, measured one by one in processes of their own."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import forkserver, get_all_start_methods, get_context
from typing import TYPE_CHECKING, Any, cast

from .measure import HEADS, LENGTHS, Case, compare_gradients, compare_products, product_memory
from .process import prepare
from .rivals import RIVALS
from .training import CONTEXTS, REPLACEMENTS, TRAINING, compare_training
from .turns import FULL, QUICK, Pace, Ratio

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["COLUMNS", "Figure", "Task", "figures", "plan"]

COLUMNS = {
    "product": tuple(RIVALS),
    "gradients": ("torch.fft",),
    "memory": ("ours", "torch.fft"),
    "training": tuple(REPLACEMENTS),
}
"""By topic, what a table has a column for."""

GRID: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "product": (LENGTHS, HEADS),
    "gradients": ((1024, 2048, 4096, 8192), HEADS),
    "memory": (LENGTHS, HEADS),
    "training": (CONTEXTS, (4,)),
}
"""By topic, lengths and heads."""

QUICK_GRID: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "product": ((1024,), HEADS),
    "gradients": ((1024,), HEADS),
    "memory": ((1024,), HEADS),
    "training": ((1024,), (4,)),
}


@dataclass(frozen=True)
class Task:
    """One figure to measure: a cell of a table."""

    topic: str
    n: int
    heads: int
    column: str
    backend: str
    quick: bool = False

    def run(self) -> Ratio | int:
        """Return the ratio, or the bytes where the topic is memory.

        Raises
        ------
        NotImplementedError
            If there is nothing to measure.
        """
        pace: Pace = QUICK if self.quick else FULL
        case = Case(self.n, self.heads)
        if self.topic == "product":
            return compare_products(case, self.column, self.backend, pace)
        if self.topic == "gradients":
            return compare_gradients(case, self.backend, pace)
        if self.topic == "memory":
            return product_memory(case, self.backend if self.column == "ours" else None)
        pace = QUICK if self.quick else TRAINING
        return compare_training(self.n, self.heads, self.column, self.backend, pace, self.tokens)

    @property
    def tokens(self) -> int:
        """Tokens of a step of training."""
        return max(self.n, 1024 if self.quick else 8192)


@dataclass(frozen=True)
class Figure:
    """What was found: a ratio, bytes, or why there is nothing."""

    task: Task
    ratio: Ratio | None = None
    bytes: int | None = None
    missing: str | None = None

    def as_json(self, allocator: str) -> dict[str, Any]:
        """Return the figure for `json.dumps`, of what it has only."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        return {**found.pop("task"), "allocator": allocator, **found}


def plan(
    topics: Iterable[str], lengths: Sequence[int] | None, backend: str, *, quick: bool = False
) -> list[list[Task]]:
    """Return the tasks of each row of the topics' tables, at `lengths` or else at those that a topic has."""
    rows = []
    for topic in topics:
        usual, heads = QUICK_GRID[topic] if quick else GRID[topic]
        for n, h in product(lengths or usual, heads):
            rows.append([Task(topic, n, h, column, backend, quick) for column in COLUMNS[topic]])
    return rows


def figures(rows: Iterable[Sequence[Task]], threads: int, allocator: str) -> Iterator[list[Figure]]:
    """Yield the figures of one row after the other, each measured in a process of its own.

    What malloc does with a large block depends on those that were freed before: figures of one process would depend on
    their order.

    Raises
    ------
    OSError
        If such a process dies.
    ValueError, LookupError
        If the backend cannot be used.
    """
    context = _processes()
    for row in rows:
        yield [_measured(context, task, threads, allocator) for task in row]


def _processes() -> Any:
    """Return how processes are made: where there are forks, by one that has imported all and never computes (0.2 s)."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "jax", "numba", "scipy.signal", __name__])
    # Ctrl-C is for us, who end the others; ignored from the start, since they would die of it with a traceback.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
    return context


def _measured(context: Any, task: Task, threads: int, allocator: str) -> Figure:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, task, threads, allocator), daemon=True)
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError as error:
        raise OSError(f"the measuring process died at {task}: was it out of memory?") from error
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        receiver.close()
    if isinstance(found, Exception):
        raise found
    return cast(Figure, found)


def _measure(sender: Connection, task: Task, threads: int, allocator: str) -> None:
    """Measure in this process, and send the figure, or the error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # libraries hold semaphores, to be given back
    found: Figure | Exception
    try:
        prepare(threads, allocator)
        value = task.run()
        found = Figure(task, bytes=value) if isinstance(value, int) else Figure(task, ratio=value)
    except NotImplementedError as error:
        found = Figure(task, missing=str(error))
    except Exception as error:
        error.add_note(traceback.format_exc())  # the traceback itself does not travel
        found = error
    with suppress(BrokenPipeError):  # nobody waits any more
        sender.send(found)
