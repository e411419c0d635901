"""Run a command of `tmm` that must do, or one that must be refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmm_core import TMMConfig
from tmm_lab.cli import main

REFERENCE = Path(__file__).parent.parent / "reference"
SMALL = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=32)
TINY = ["--d-model", "8", "--n-layers", "1", "--n-heads", "2", "--max-len", "16", "--batch", "2", "--device", "cpu"]
REQUIRED = {
    "generate": ["--prompt", "a"],
    "eval": ["--text", "a"],
    "convert": ["a", "b"],
    "study": ["efficiency", "--quick"],
}
"""What a command cannot do without."""


def printed(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    """Run a command that must do; return what it prints."""
    capsys.readouterr()
    code = main(list(map(str, command)))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], *command: object, code: int | None = None) -> str:
    """Run a command that must fail with one line on stderr that calls it no bug, after notes; return the line."""
    capsys.readouterr()
    found = main(list(map(str, command)))
    error = capsys.readouterr().err
    assert found in ((1, 2) if code is None else (code,)), error
    *told, error = error.splitlines(keepends=True)
    assert error.startswith("tmm: error: ")
    assert all(line.startswith("tmm: ") for line in told), f"more than one line: {error}"
    assert "this is a bug" not in error
    return error
