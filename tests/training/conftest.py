"""Fixtures of runs: each whole run is trained once, whichever tests look at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.training_runs import WHOLE, write_words

from tmm_lab.cli import main

collect_ignore = ["bigram"]  # a distribution to be installed by those tests that ask for it


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def arguments(text: Path) -> Callable[..., list[str]]:
    """What `tmm` is told to train a run of the tests, by framework, folder and further options."""

    def build(framework: str, out: Path, *more: str) -> list[str]:
        return ["train", "--framework", framework, "--text", str(text), "--out", str(out), *WHOLE, *more]

    return build


@pytest.fixture(scope="session")
def finished_by(arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a framework that nothing interrupted; copy it before you change it."""
    found: dict[str, Path] = {}

    def run(framework: str) -> Path:
        if framework not in found:
            out = tmp_path_factory.mktemp(framework) / "whole"
            assert main(arguments(framework, out)) == 0
            found[framework] = out
        return found[framework]

    return run


@pytest.fixture
def finished(framework: str, finished_by: Callable[[str], Path]) -> Path:
    return finished_by(framework)


@pytest.fixture
def in_torch(finished_by: Callable[[str], Path]) -> Path:
    return finished_by("torch")


@pytest.fixture
def in_jax(finished_by: Callable[[str], Path]) -> Path:
    return finished_by("jax")
