"""`tmm` without a command."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from tmm_lab.cli import COMMANDS, main


def test_without_a_command_there_is_help_on_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: tmm ")
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\w", out, re.MULTILINE), command


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"tmm-core {version('tmm-core')}\n"
