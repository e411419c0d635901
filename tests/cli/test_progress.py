"""Whatever takes long says what it is: as it goes in a terminal, in lines elsewhere, and never in another program."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console, ConsoleOptions
from rich.progress import Progress
from rich.text import Text
from support.commands import REQUIRED, TINY, printed

from tmm_lab import progress, slow_imports
from tmm_lab.cli import COMMANDS, main
from tmm_lab.evaluation import measure
from tmm_lab.evaluation.measure import Writing
from tmm_lab.progress import note, shown, shown_in, waiting
from tmm_lab.slow_imports import TITLES
from tmm_lab.training.display import TerminalDisplay

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None, int]]:
    """What commands say that they wait for: in which words, how much of it there is, and how much is said to be done.

    They have to be in this list before anything of the kind has been waited for.
    """
    found: list[tuple[str, int | None, int]] = []

    class Shower:
        @contextlib.contextmanager
        def waiting(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
            place, done = len(found), 0
            found.append((what, total, 0))

            def advance(n: int) -> None:
                nonlocal done
                done += n
                found[place] = what, total, done

            yield advance

    monkeypatch.setattr(progress, "_OnStderr", Shower)
    monkeypatch.setattr(progress, "_InTerminal", lambda _: Shower())
    return found


def test_lines_begin_after_two_seconds_and_come_every_ten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_FIRST", 0.01)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with shown(), waiting("reading", 500) as advance:
        end = time.perf_counter() + 10
        while not (said := capsys.readouterr().err) and time.perf_counter() < end:
            time.sleep(0.01)
        assert said == "tmm: reading\n"
        for now[0] in (9.0, 10.0, 15.0, 20.0):
            advance(100)
    assert capsys.readouterr().err == "tmm: reading, 200 of 500\ntmm: reading, 400 of 500\n"
    monkeypatch.setattr(progress, "_FIRST", 0.3)
    with shown(), waiting("nothing"):
        pass
    time.sleep(0.4)
    assert capsys.readouterr().err == "", "what is short is not told"


def test_a_note_parts_no_word_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is one line elsewhere, whatever standard output is."""
    monkeypatch.setenv("COLUMNS", "30")
    for terminal in (True, False):
        stderr = io.StringIO()
        monkeypatch.setattr(stderr, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setattr("sys.stderr", stderr)
        with shown():
            note("of this text, every word is in /a/folder/with/a/rather/long/name")
        lines = stderr.getvalue().splitlines()
        assert len(lines) == (3 if terminal else 1)
        assert " ".join(lines) == "tmm: of this text, every word is in /a/folder/with/a/rather/long/name"


def test_only_the_command_line_and_its_first_process_speak(
    monkeypatch: pytest.MonkeyPatch, waits: list[tuple[str, int | None, int]]
) -> None:
    with waiting("in a notebook") as advance:
        advance(1)

    def run(arguments: object) -> int:
        with waiting("in a process"):
            return 0

    monkeypatch.setattr("tmm_lab.cli.backends.run", run)
    for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert main(["backends"]) == 0
        assert len(waits) == (rank == "0")


def test_in_a_terminal_waits_are_lines_that_go_away() -> None:
    file = io.StringIO()
    display = Progress(console=Console(file=file, force_terminal=True, width=60), transient=True)
    with shown(), shown_in(display), waiting("reading", 4) as advance:
        advance(2)
        with waiting("measuring"):
            assert [(task.description, task.completed, task.total) for task in display.tasks] == [
                ("reading", 2, 4),
                ("measuring", 0, None),
            ]
            display.refresh()
        assert display.live.is_started
    assert display.tasks == []
    assert not display.live.is_started
    assert "reading" in file.getvalue()
    assert not re.search("[a-z]{2}", file.getvalue().rpartition("\x1b[2K")[2]), "nothing is left of them"


def test_what_is_printed_stays_while_waits_come_and_go() -> None:
    """Whenever Rich's other thread draws: it may do so between a line's being laid out and its being written."""
    file = io.StringIO()
    display = Progress(console=Console(file=file, force_terminal=True, width=60), transient=True, auto_refresh=False)

    class Line:
        def __init__(self, text: str) -> None:
            self.text = text

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
            other = threading.Thread(target=display.refresh)
            other.start()
            other.join()
            yield Text(self.text)

    with shown(), shown_in(display), waiting("training"):
        for depth in range(3):
            with contextlib.ExitStack() as waits:
                for _ in range(depth):
                    waits.enter_context(waiting("measuring"))
                display.console.print(Line(f"before {depth}"))
            display.console.print(Line(f"after {depth}"))
    assert screen(file.getvalue()) == [f"{when} {depth}" for depth in range(3) for when in ("before", "after")]


def test_a_text_is_not_broken_by_what_is_waited_for_later(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[tuple[str, int | None, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal has no place for it: the line of the text has not ended."""
    pieces = 0

    def slower(*arguments: object, on_text: Callable[[int, str], None], **options: object) -> Writing:
        def told(row: int, piece: str) -> None:
            nonlocal pieces
            pieces += 1
            with waiting(f"piece {pieces}"):
                on_text(row, piece)

        return original(*arguments, on_text=told, **options)

    original = measure.continuations
    monkeypatch.setattr(measure, "continuations", slower)
    text = printed(capsys, "generate", model, "--framework", "torch", "--prompt", "a", "--tokens", "30")
    assert pieces > 2
    assert text.startswith("a")
    assert [what for what, _, _ in waits if what.startswith("piece")] == ["piece 1", "piece 2"]


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows in the end, without the empty ones after them."""
    lines, row = [""], 0
    for text, control in re.findall(r"([^\x1b\r\n]+)|(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", written):
        lines[row] += text
        match control:
            case "\r":
                pass  # what follows is an erasure or a line below
            case "\n":
                row += 1
                lines += [""] * (row == len(lines))
            case "\x1b[1A":
                row -= 1
            case "\x1b[2K":
                lines[row] = ""
            case _:
                assert not control or control[-1] in "mhl", f"what is {control!r}?"
    return "\n".join(lines).rstrip().split("\n")


@pytest.fixture
def slow_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`slowness`, a package that takes long to import, part of which is imported later than the rest."""
    folder = tmp_path / "slowness"
    folder.mkdir()
    (folder / "__init__.py").write_text("import slowness.part")
    (folder / "part.py").write_text("import slowness")
    (folder / "later.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TITLES, "slowness", "Slowness")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowness"]:
        del sys.modules[name]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("slow_library")
def test_every_command_says_what_it_imports(
    command: str, monkeypatch: pytest.MonkeyPatch, waits: list[tuple[str, int | None, int]]
) -> None:
    """Once for what is imported together, and with the words for people; what is there already is not told of."""

    def run(arguments: argparse.Namespace) -> int:
        for name in ("slowness", "slowness.part", "slowness.later", "slowness"):
            importlib.import_module(name)
        return 0

    monkeypatch.setattr(f"tmm_lab.cli.{command}.run", run)
    assert main([command, *REQUIRED.get(command, [])]) == 0
    assert waits == [("loading Slowness", None, 0)] * 2
    before = list(sys.meta_path)
    assert not [finder for finder in before if isinstance(finder, slow_imports._Finder)], "only in a command"


@pytest.mark.parametrize("width", [60, 80])
def test_the_bar_of_a_run_tells_what_it_waits_for(width: int) -> None:
    file = io.StringIO()
    display = TerminalDisplay(Console(file=file, force_terminal=True, width=width))
    with shown():
        display.start(7, None)
        display.step(8, None, loss=None, rate=None, left=170.0)
        with waiting("compiling the first step"):
            display._progress.refresh()
        display.stop()
        with waiting("in lines again"):
            pass
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines = re.split(r"[\r\n]+", plain)
    assert any("compiling the first step" in line for line in lines)
    assert any("step 8, measuring its speed" in line for line in lines)
    assert all(len(line) <= width and "0%" not in line for line in lines)


def test_training_and_evaluation_say_what_they_wait_for(
    text: Path,
    tmp_path: Path,
    waits: list[tuple[str, int | None, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    options = ["--framework", "torch", "--steps", "2", "--evaluations", "1", "--held-out-bytes", "500"]
    printed(capsys, "train", *TINY, *options, "--text", text, "--out", run)
    said = [what for what, _, _ in waits]
    for what in ("reading words.txt", "compiling the first step", "evaluating", "writing a sample", "saving"):
        assert what in said
    assert all(total in (None, done) for _, total, done in waits), "where the length is known, all of it is gone"
    waits.clear()
    printed(capsys, "eval", run, "--framework", "torch", "--text", text)
    said = [what for what, _, _ in waits]
    assert said.index("reading words.txt") < said.index("loading the model") < said.index("evaluating")
    waits.clear()
    printed(capsys, "generate", run, "--framework", "torch", "--prompt", "a", "--tokens", "2")
    assert [what for what, _, _ in waits] == ["loading the model", "computing the first tokens"]
    waits.clear()
    printed(capsys, "index", run)
    assert ("analysing filters", 2, 2) in waits
    assert "drawing" in [what for what, _, _ in waits]
