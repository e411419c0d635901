"""What a command is doing, and what else its user should know: on stderr; waits as they go in a terminal.

Whatever may take longer than two seconds stands in a `waiting` block, wherever it is; imports do by themselves
(`slow_imports`). The command line has all of it shown (`shown`); in other programs it does nothing.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TypeAlias

from .tables import filled

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Advance", "hidden", "note", "nothing", "shown", "shown_in", "waiting"]

_FIRST, _NEXT = 2.0, 10.0  # seconds until the first line of a wait, and from one line to the next


Advance: TypeAlias = Callable[[int], None]
"""Tells that so much more of a wait is done."""


class _Shower(Protocol):
    """Shows waits."""

    def waiting(self, what: str, total: int | None) -> AbstractContextManager[Advance]:
        """Show one while the block lasts."""


_shower: _Shower | None = None


def nothing(n: int) -> None:
    """Tell nobody that so much more is done: an `Advance`."""


@contextmanager
def waiting(what: str, total: int | None = None) -> Iterator[Advance]:
    """Say what the block does, and how much of it is done.

    Parameters
    ----------
    what : str
        In words, such as "evaluating".
    total : int, optional
        How much there is to do, where that is known; the block is given a function to tell what is done.
    """
    if _shower is None:
        yield nothing
        return
    with _shower.waiting(what, total) as advance:
        yield advance


def note(text: str) -> None:
    """Say on stderr what a user of the command line should know; in other programs nothing.

    A bar in a terminal lets the line through above itself.
    """
    if _shower is not None:
        print(filled(f"tmm: {text}", to=sys.stderr), file=sys.stderr, flush=True)


@contextmanager
def shown() -> Iterator[None]:
    """Show what is waited for in the block on stderr."""
    with _shown_by(_OnStderr()):
        yield


@contextmanager
def shown_in(progress: Progress) -> Iterator[None]:
    """Show what is waited for in the block as further lines of a display that is there already."""
    with _shown_by(None if _shower is None else _InTerminal(progress)):
        yield


@contextmanager
def hidden() -> Iterator[None]:
    """Show nothing of what the block waits for or notes: it writes a line, and is in the middle of it."""
    with _shown_by(None):
        yield


@contextmanager
def _shown_by(shower: _Shower | None) -> Iterator[None]:
    global _shower
    before, _shower = _shower, shower
    try:
        yield
    finally:
        _shower = before


class _OnStderr:
    """Shows waits on stderr, whatever that is; nothing is imported before the first."""

    def waiting(self, what: str, total: int | None) -> AbstractContextManager[Advance]:
        """Show one while the block lasts."""
        return self._shower.waiting(what, total)

    @cached_property
    def _shower(self) -> _Shower:
        if not sys.stderr.isatty() or find_spec("rich") is None:
            return _InLines()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if console.is_dumb_terminal:
            return _InLines()
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn()
        return _InTerminal(
            Progress(
                *columns,
                TimeElapsedColumn(),
                console=console,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # what goes into a file stays there
            )
        )


class _InTerminal:
    """Shows each wait as a line that is taken away at its end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def waiting(self, what: str, total: int | None) -> Iterator[Advance]:
        """Show one while the block lasts."""
        progress = self._progress
        outermost = not progress.live.is_started
        task = progress.add_task(what, total=total)
        if outermost:
            progress.start()
        try:
            yield functools.partial(progress.advance, task)
        finally:
            progress.remove_task(task)
            # Now: Rich's thread draws as well, and a line that is printed while the display shrinks would be erased.
            progress.refresh()
            if outermost:
                progress.stop()


class _InLines:
    """Writes a line where a wait is long, and where it is very long, more."""

    @contextmanager
    def waiting(self, what: str, total: int | None) -> Iterator[Advance]:
        """Show one while the block lasts."""
        done, last = 0, time.monotonic()

        def say() -> None:
            nonlocal last
            last = time.monotonic()
            so_far = "" if total is None or not done else f", {done:,} of {total:,}"
            note(f"{what}{so_far}")

        def advance(n: int) -> None:
            nonlocal done
            done += n
            if time.monotonic() - last >= _NEXT:
                say()

        with _later(_FIRST, say):
            yield advance


@contextmanager
def _later(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call something after some seconds, unless the block has ended by then."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
