"""Fixtures: `tmm index` run well, refused, and what it draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from matplotlib.figure import Figure
from support import commands


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return partial(commands.printed, capsys, "index")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return partial(commands.refused, capsys, "index")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The pictures that were saved, drawn."""
    figures: list[Figure] = []
    original = Figure.savefig

    def savefig(self: Figure, *args: object, **kwargs: object) -> None:
        figures.append(self)
        original(self, *args, **kwargs)
        self.canvas.draw()

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures
