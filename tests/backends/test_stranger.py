"""A backend of somebody else's, in a distribution of its own: it is found, passes the laws, and serves everybody."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.requirements import import_or_skip
from support.strangers import forget_backends, install_project

import tmm_core
from tmm_core.testing import check_backend, check_gradients, get_library
from tmm_lab.cli import main

FOLDER = Path(__file__).parent / "stranger"
W, X = np.asarray([1.0, 2.0]), np.asarray([1.0, 10.0, 100.0])


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install the distribution as its `pyproject.toml` says, for one test."""
    import_or_skip("scipy")
    name = install_project(tmp_path, FOLDER)
    for folder in (tmp_path, FOLDER):
        monkeypatch.syspath_prepend(folder)
    forget_backends()
    yield name
    monkeypatch.undo()
    sys.modules.pop("tmm_scipy", None)
    forget_backends()


def test_it_is_one_file_of_under_a_hundred_lines_over_one_module_of_the_core() -> None:
    source = (FOLDER / "tmm_scipy.py").read_text()
    assert source.count("\n") < 100
    assert {line.split()[1] for line in source.splitlines() if "tmm_core" in line and "import" in line} == {
        "tmm_core.backend"
    }


def test_it_is_described_without_its_library(stranger: str, tmp_path: Path) -> None:
    code = "import sys, tmm_core; print(tmm_core.available_backends(), 'scipy' in sys.modules, 'numpy' in sys.modules)"
    environment = {"PYTHONPATH": f"{tmp_path}:{FOLDER}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "'scipy'" in done.stdout
    assert done.stdout.endswith("False False\n")


def test_it_passes_every_law(stranger: str) -> None:
    check_backend(stranger, get_library("numpy-bfloat16"))


def test_the_command_lists_it(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("scipy"))
    assert lines[place].endswith(": cpu")
    assert lines[place + 1].startswith("    arrays")
    assert main(["backends", "--json"]) == 0
    told = {backend["name"]: backend for backend in json.loads(capsys.readouterr().out)}
    assert (told["scipy"]["devices"], told["scipy"]["reason"]) == (["cpu"], None)


def test_auto_takes_it_where_it_ranks_first(stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, calls = tmm_core.get_backend(stranger).engine, []
    real = engine.matmul
    monkeypatch.setattr(engine, "matmul", lambda *arrays, **options: calls.append(1) or real(*arrays, **options))
    np.testing.assert_allclose(tmm_core.causal_toeplitz_matmul(W, X), [1.0, 12.0, 120.0])
    assert calls == [1]
    torch = import_or_skip("torch")
    tmm_core.causal_toeplitz_matmul(torch.asarray(W), torch.asarray(X))
    assert calls == [1], "it has no rank for tensors"


@pytest.mark.parametrize("library", ["torch", "torch-compiled", "jax-jit"])
def test_bridges_differentiate_through_it(stranger: str, library: str) -> None:
    import_or_skip(library.partition("-")[0])
    check_gradients(get_library(library), stranger)
