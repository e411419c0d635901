"""The figures of `tmm bench`: measured one by one in processes of their own, and printed as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_all_start_methods, get_context
from typing import TYPE_CHECKING, Any, cast

from .measure import HEADS, LENGTHS, Case, compare_gradients, compare_products, product_memory
from .process import prepare
from .rivals import RIVALS
from .training import CONTEXTS, REPLACEMENTS, TRAINING, compare_training
from .turns import FULL, QUICK, Pace, Ratio

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["COLUMNS", "TITLES", "Figure", "Task", "figures", "heading", "plan", "table_row"]

COLUMNS = {
    "product": tuple(RIVALS),
    "gradients": ("torch.fft",),
    "memory": ("ours", "torch.fft"),
    "training": tuple(REPLACEMENTS),
}
"""By topic, what a table has a column for."""

TITLES = {
    "product": "product, as much of it as (8, 1024, 512): how many times as fast as the others ours is",
    "gradients": "product with both gradients: how many times as fast as the same under autograd ours is",
    "memory": "memory of the product beyond its input and output, in MiB",
    "training": "training (d 512, 4 layers, vocabulary 8000): how many times as fast as with another mixing ours is",
}


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
        pace, tokens = (QUICK, 2048) if self.quick else (TRAINING, 8192)
        return compare_training(self.n, self.heads, self.column, self.backend, pace, tokens)


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
    # Where there are forks, libraries are imported once, in a process that never computes: a figure then costs 0.2 s.
    context: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    context.set_forkserver_preload(["torch", "jax", "numba", "scipy.signal", __name__])
    for row in rows:
        yield [_measured(context, task, threads, allocator) for task in row]


def _measured(context: Any, task: Task, threads: int, allocator: str) -> Figure:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, task, threads, allocator), daemon=True)
    process.start()
    sender.close()
    try:
        found = receiver.recv()
        process.join()
    except EOFError as error:
        raise OSError(f"the measuring process died at {task}: was it out of memory?") from error
    finally:
        process.terminate()  # where it has not ended by itself
        receiver.close()
    if isinstance(found, ValueError | LookupError):  # raised over there on purpose: said again here, as our own
        raise type(found)(str(found)) from found
    if isinstance(found, Exception):
        raise found
    return cast(Figure, found)


def _measure(sender: Connection, task: Task, threads: int, allocator: str) -> None:
    """Measure in this process, and send the figure, or the error."""
    found: Figure | Exception
    try:
        prepare(threads, allocator)
        value = task.run()
        found = Figure(task, bytes=value) if isinstance(value, int) else Figure(task, ratio=value)
    except NotImplementedError as error:
        found = Figure(task, missing=str(error))
    except KeyboardInterrupt:  # the parent says so
        return
    except Exception as error:
        found = error
    sender.send(found)


def heading(topic: str) -> list[str]:
    """Return the first two lines of a topic's table, in Markdown."""
    return [_line(topic, _head(topic)), _line(topic, ["---"] * len(_head(topic)))]


def table_row(found: Sequence[Figure]) -> str:
    """Return one line of a table, in Markdown."""
    task = found[0].task
    cells = [str(task.n), str(task.heads)]
    if task.topic != "memory":
        times = [figure.ratio.ours for figure in found if figure.ratio is not None]
        cells.append(f"{1000 * statistics.median(times):.1f} ms" if times else "n/a")
    return _line(task.topic, [*cells, *map(_cell, found)])


def _head(topic: str) -> list[str]:
    return ["n", "heads", *([] if topic == "memory" else ["ours"]), *COLUMNS[topic]]


def _line(topic: str, cells: Sequence[str]) -> str:
    """Return the cells, padded to what a column of the topic holds."""
    widths = [6, 5, *(max(len(name), 9 if name == "ours" else 20) for name in _head(topic)[2:])]
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _cell(figure: Figure) -> str:
    if figure.ratio is not None:
        r = figure.ratio
        return f"{_short(r.median)} ({_short(r.low)} to {_short(r.high)})"
    return "n/a" if figure.bytes is None else f"{figure.bytes / 2**20:.1f}"


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"
