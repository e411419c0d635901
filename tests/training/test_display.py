"""What a run shows, in a terminal and in a file."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tmm_lab.training.display import Display, PlainDisplay, Silence, TerminalDisplay, make_display


def show(display: Display) -> None:
    """Go through a whole run."""
    display.header("Toeplitz MLP Mixer", [("model", "4 layers"), ("baselines", "unigram 4.756, " * 8)])
    display.start(0, None)
    display.step(1, None, loss=None, rate=None, left=180.0)
    display.step(60, 12000, loss=2.3456, rate=12345.6, left=75.0)
    display.sample("step 60: 2.5 bits per byte", "The [bold]list[/bold] \x1b[31m\n\n\n:smile: " + "word " * 40)
    display.note("resuming from " + "runs/" * 30)
    display.stop()


@pytest.mark.parametrize(
    ("width", "numbers"),
    [
        (36, ["60/12000", "2.346 bits/byte", "1:15 left"]),
        (80, ["60/12000", "loss 2.346 bits/byte", "12,346 tok/s", "1:15 left"]),
        (200, ["60/12000", "loss 2.346 bits/byte", "12,346 tok/s", "1:15 left"]),
    ],
)
def test_a_terminal_is_never_overrun_and_no_number_cut_short(width: int, numbers: list[str]) -> None:
    file = io.StringIO()
    show(
        TerminalDisplay(
            Console(file=file, force_terminal=True, width=width, highlight=False, markup=False, emoji=False)
        )
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines = re.split(r"[\r\n]+", plain)
    assert all(len(line) <= width for line in lines if "resuming" not in line), (
        "a note may be copied, so it is not folded"
    )
    assert any(all(number in line for number in numbers) for line in lines)
    assert "[bold]list[/bold] ·[31m" in plain, "what a model writes is text, not markup"
    assert ":smile:" in plain
    assert "resuming from " + "runs/" * 30 in plain


def test_a_file_has_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 11.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    show(PlainDisplay())
    said = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said)
    assert "step 60/12000  loss 2.346 bits/byte  12,346 tokens/s  1:15 left\n" in said
    assert "  The [bold]list[/bold] ·[31m\n  :smile: word" in said, "blank lines are left out"


def test_other_processes_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show(make_display(silent=True))
    assert capsys.readouterr().out == ""
    assert isinstance(make_display(silent=True), Silence)
    assert isinstance(make_display(silent=False), PlainDisplay), "captured output is no terminal"
