"""What is shown while it runs, on stderr: a bar in a terminal where rich is installed, else a line a column."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from .columns import Column
from .inputs import DTYPES
from .measures import TOPICS

__all__ = ["shown"]

Done = Callable[[Column | None, str, str], None]


@contextmanager
def shown(total: int) -> Iterator[Done]:
    """Show how much of `total` is done; the block is given what `compare` tells."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reference", total=total)

        def done(column: Column | None, dtype: str, topic: str) -> None:
            what = topic if column is None else f"{column.name}, {dtype}: {topic}"
            progress.update(task, advance=1, description=what)

        yield done


def _lines() -> Done:
    """Return what says once of each column that it is through."""
    left: Counter[Column] = Counter()

    def done(column: Column | None, dtype: str, topic: str) -> None:
        if column is not None:
            left[column] += 1
            if left[column] == len(TOPICS) * len(DTYPES):
                print(f"tmm: {column.name}: done", file=sys.stderr, flush=True)

    return done
