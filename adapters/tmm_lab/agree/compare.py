"""The whole comparison: everything in every column, in this process and beside it, and the verdict."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from .cells import Cell, cells
from .columns import Column
from .inputs import DTYPES
from .measures import TOPICS, Measured, measure
from .reference import Reference
from .worker import Worker

__all__ = ["compare", "count"]

Done = Callable[[Column | None, str, str], None]


def count(chosen: Sequence[Column]) -> int:
    """Return how many times `compare` will say that something is done."""
    return 1 + len(chosen) * len(DTYPES) * len(TOPICS)


def compare(chosen: Sequence[Column], done: Done) -> list[Cell]:
    """Compute everything in the columns that are `chosen`, and hold it against the references.

    Parameters
    ----------
    chosen : sequence of Column
        Where Numba's engine is among them in float64, it is the second reference.
    done : callable
        Told column, dtype and topic when one is through, from any thread; None in place of a column is the reference.

    Returns
    -------
    list of Cell
        Row by row.
    """
    beside = [column for column in chosen if column.library == "jax"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = []
        for dtype in DTYPES if beside else ():
            workers.append(Worker(dtype, beside, folder, done))
            stack.callback(workers[-1].stop)
        reference = Reference()
        done(None, "float64", "reference")
        found: dict[tuple[Column, str], Measured] = {}
        for column in chosen:
            for dtype in DTYPES if column not in beside else ():
                found[column, dtype] = measure(column, dtype, functools.partial(done, column, dtype))
        for worker in workers:
            found |= {(column, worker.dtype): measured for column, measured in worker.results().items()}
        ordered = {(column, dtype): found[column, dtype] for column in chosen for dtype in DTYPES}
        return cells(ordered, reference)
