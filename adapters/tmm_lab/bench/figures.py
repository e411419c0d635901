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

from .process import prepare
from .topics import TOPICS, Task
from .turns import Ratio

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Figure", "figures", "plan"]


@dataclass(frozen=True)
class Figure:
    """What was found: a ratio, bytes, seconds, or why there is nothing."""

    task: Task
    ratio: Ratio | None = None
    bytes: int | None = None
    seconds: float | None = None
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
    for name in topics:
        topic = TOPICS[name]
        usual = topic.quick_lengths if quick else topic.lengths
        for n, h in product(lengths or usual, topic.heads):
            columns = topic.columns_at(n, usual=not (lengths or quick))
            row = [Task(name, n, h, column, backend, quick) for column in columns]
            rows += [[task] for task in row] if topic.listed else [row]
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
        if isinstance(value, Ratio):
            found = Figure(task, ratio=value)
        else:
            found = Figure(task, bytes=value) if isinstance(value, int) else Figure(task, seconds=value)
    except NotImplementedError as error:
        found = Figure(task, missing=str(error))
    except Exception as error:
        error.add_note(traceback.format_exc())  # the traceback itself does not travel
        found = error
    with suppress(BrokenPipeError):  # nobody waits any more
        sender.send(found)
