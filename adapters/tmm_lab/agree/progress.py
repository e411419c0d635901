"""What is shown on stderr while everything is compared: a bar in a terminal where rich is installed, else a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["shown"]


@contextmanager
def shown(total: int) -> Iterator[Callable[[str], None]]:
    """Show how much of `total` is done; the block is given what `compare` tells."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        print(f"tmm: comparing {total} parts, which takes up to a minute and a half", file=sys.stderr, flush=True)
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reference", total=total)
        yield lambda what: progress.update(task, advance=1, description=what)
