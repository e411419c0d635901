"""What a run shows: a bar and some lines in a terminal, plain lines in a file, nothing beyond the first process."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn
from rich.table import Column, Table
from rich.text import Text

from ..progress import shown_in

__all__ = ["Display", "PlainDisplay", "Silence", "TerminalDisplay", "duration", "make_display", "printable"]

_PLAIN_SECONDS = 10.0  # between two lines in a file
_WIDE = 80  # columns in which all metrics have room beside a bar; in fewer, some are left out


class Display(Protocol):
    """Shows a run as it goes."""

    def header(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Show what is about to happen, as names and values."""

    def note(self, text: str) -> None:
        """Show one line."""

    def start(self, step: int, total: int | None) -> None:
        """Begin to follow the steps of a run, of which `step` are done; `total` is None while it is unknown."""

    def step(self, step: int, total: int | None, *, loss: float | None, rate: float | None, left: float | None) -> None:
        """Show that `step` is done: last loss (bits per byte), rate (tokens per second), seconds left."""

    def sample(self, caption: str, text: str) -> None:
        """Show what the model wrote."""

    def stop(self) -> None:
        """End what `start` began."""


def make_display(*, silent: bool) -> Display:
    """Return the display that fits where standard output goes."""
    if silent:
        return Silence()
    console = Console(highlight=False, markup=False, emoji=False)
    return TerminalDisplay(console) if console.is_terminal else PlainDisplay()


class TerminalDisplay:
    """Shows a run in a terminal, with a bar that stays below everything else."""

    def __init__(self, console: Console) -> None:
        """Show on `console`."""
        self._console = console
        self._wide = wide = console.width >= _WIDE
        bar = (BarColumn(bar_width=None), TaskProgressColumn("{task.percentage:>3.0f}%")) if wide else ()
        self._progress = Progress(
            *bar,
            *(_Field(name) for name in ("steps", "loss", "rate", "left") if wide or name != "rate"),
            console=console,
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task("", start=True, total=None)
        self._started = ExitStack()

    def header(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Show what is about to happen, as names and values."""
        self._console.print(Text(title, style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text(name), Text(value))
        self._console.print(Padding(table, (0, 0, 0, 2)))

    def note(self, text: str) -> None:
        """Show one line."""
        self._console.print(Text(text), soft_wrap=True)

    def start(self, step: int, total: int | None) -> None:
        """Begin to follow the steps of a run."""
        self.step(step, total, loss=None, rate=None, left=None)
        self._progress.start()
        self._started.enter_context(shown_in(self._progress))

    def step(self, step: int, total: int | None, *, loss: float | None, rate: float | None, left: float | None) -> None:
        """Show that `step` is done."""
        self._progress.update(
            self._task,
            completed=step,
            total=total,
            steps=f"{step}/{total}" if total else f"step {step}, measuring its speed",
            loss="" if loss is None else f"{'loss ' if self._wide else ''}{loss:.3f} bits/byte",
            rate="" if rate is None else f"{rate:,.0f} tok/s",
            left="" if left is None else f"{duration(left)} left",
        )

    def sample(self, caption: str, text: str) -> None:
        """Show what the model wrote."""
        self._console.print(Text(caption, style="bold"))
        self._console.print(Padding(Text(without_blank_lines(text), style="italic", overflow="fold"), (0, 0, 0, 2)))

    def stop(self) -> None:
        """Take the bar away."""
        self._started.close()
        self._progress.stop()


class PlainDisplay:
    """Writes plain lines, one every ten seconds at most for the steps."""

    def __init__(self) -> None:
        """Write to standard output."""
        self._shown = 0.0

    def header(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Show what is about to happen, as names and values."""
        self.note(title)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.note(f"  {name.ljust(width)}  {value}")

    def note(self, text: str) -> None:
        """Write one line."""
        print(text, flush=True)

    def start(self, step: int, total: int | None) -> None:
        """Begin to follow the steps of a run."""
        self._shown = time.monotonic()

    def step(self, step: int, total: int | None, *, loss: float | None, rate: float | None, left: float | None) -> None:
        """Write a line, unless the last is less than ten seconds old."""
        now = time.monotonic()
        if now - self._shown < _PLAIN_SECONDS or loss is None or rate is None:
            return
        self._shown = now
        end = "" if left is None else f"  {duration(left)} left"
        self.note(f"step {step}/{total or '?'}  loss {loss:.3f} bits/byte  {rate:,.0f} tokens/s{end}")

    def sample(self, caption: str, text: str) -> None:
        """Write what the model wrote, indented."""
        self.note(caption)
        for line in without_blank_lines(text).splitlines():
            self.note(f"  {line}")

    def stop(self) -> None:
        """Do nothing: there is no bar."""


class Silence:
    """Shows nothing."""

    def header(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def start(self, step: int, total: int | None) -> None:
        """Do nothing."""

    def step(self, step: int, total: int | None, **metrics: Any) -> None:
        """Do nothing."""

    def sample(self, caption: str, text: str) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


def printable(text: str) -> str:
    """Return `text` with what would steer a terminal replaced: a model may write anything.

    Characters that say how their neighbours are joined and directed belong to the text: many scripts and emoji need
    them.

    >>> printable("a\\x1b[31mb\\tc")
    'a·[31mb\\tc'
    >>> printable("👩\\u200d👧") == "👩\\u200d👧"
    True
    """
    return "".join("·" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text)


def without_blank_lines(text: str) -> str:
    """Return the lines of a sample that say something, and of many bytes that are no text one: a terminal has few.

    >>> without_blank_lines("a\\n\\nb" + 9 * "\ufffd")
    'a\\nb\ufffd…'
    """
    shorter = re.sub("[\ufffd·]{4,}", "\ufffd…", printable(text))
    return "\n".join(line for line in shorter.splitlines() if line.strip())


def duration(seconds: float) -> str:
    """Return a time as minutes and seconds, or hours and minutes.

    >>> duration(75.2), duration(7380)
    ('1:15', '2 h 03')
    """
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


class _Field(ProgressColumn):
    """A column that shows one text of the task; what is waited for is told in place of the steps."""

    max_refresh = 0.25

    def __init__(self, name: str) -> None:
        super().__init__(Column(no_wrap=True))  # the bar is what makes room
        self._name = name

    def render(self, task: Task) -> Text:
        return Text(task.fields.get(self._name, task.description if self._name == "steps" else ""), no_wrap=True)
