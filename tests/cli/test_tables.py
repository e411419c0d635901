"""Tables and words are no wider than the terminal, from 60 columns up, and lose nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.commands import printed
from support.index_models import lags_of, make, make_run

from tmm_core import TMMConfig
from tmm_lab.agree.results import ROWS, Result
from tmm_lab.bench import suite, tables
from tmm_lab.cli import main
from tmm_lab.tables import markdown, numbers

WIDTHS = [60, 80]

CONFIG = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8, mix_layers=2)


def a_broken_model(folder: Path) -> Path:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["blocks.0.mix.lags"][1, 3] = np.nan
        tensors["blocks.0.mix.lags"][2] = 0

    return make(folder / "model", spoil, mix_layers=2)


def a_long_run(folder: Path) -> Path:
    return make_run(folder / "run", CONFIG, {100_000 + step: lags_of(CONFIG) for step in range(13)})


def a_folder_of_runs(folder: Path) -> Path:
    (folder / "runs").mkdir()
    for name in ("tmm-default-20261201-003453", "hyena-tuned-default-20261201-003454"):
        make_run(folder / "runs" / name, CONFIG, {100_000: lags_of(CONFIG)})
    return folder / "runs"


COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "index": lambda folder: ["index", a_broken_model(folder), "--no-plot"],
    "index over time": lambda folder: ["index", a_long_run(folder), "--over-time", "--no-plot"],
    "backends": lambda folder: ["backends"],
    "runs": lambda folder: ["runs", a_folder_of_runs(folder).relative_to(folder)],
    "agree": lambda folder: ["agree"],
    "bench": lambda folder: ["bench", "--backend", "numpy"],
}


def results_of_agreement() -> list[Result]:
    names = ("numpy", "numba", "torch", "torch+numba", "jax", "jax+numba", "cupy")
    found = [Result(row, name, dtype, "ok", 0.01) for row in ROWS for name in names for dtype in ("float32", "float64")]
    return [*found, Result("product", "numpy", "float64", "FAIL", reason="ValueError: " + "no such engine " * 12)]


def results_of_benchmarks() -> list[suite.Result]:
    params = {"n": "131072", "allocator": "keeps pages"}
    baselines = ("torch.fft", "jnp.fft, jitted", "dense T @ x", "scipy fftconvolve")
    every = [{**params, "baseline": baseline} for baseline in baselines]
    return [suite.Result("product.compare", "product", tables.RATIO, one, 0.06, 0.06, 0.06) for one in every]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_longer_than_the_terminal(
    name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tmm_lab.agree.compare.compare", lambda chosen, done: results_of_agreement())
    found = results_of_benchmarks(), ["no library " * 9]
    monkeypatch.setattr("tmm_lab.bench.suite.run_benchmarks", lambda patterns, environment: found)
    monkeypatch.chdir(tmp_path)
    command = COMMANDS[name](tmp_path)
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(list(map(str, command)))
    out = capsys.readouterr().out.replace(str(tmp_path), ".")
    assert [line for line in out.splitlines() if len(line) > width] == []


def cells_of(table: str) -> dict[tuple[str, str], str]:
    """Return the cells of a table in parts, by the name of the row, its first column, and of the column."""
    found = {}
    for part in table.split("\n\n"):
        heading, *rows = (re.findall(r"[^|\s]+", line) for line in part.splitlines() if "---" not in line)
        found |= {(row[0], name): cell for row in rows for name, cell in zip(heading, row, strict=True)}
    return found


@pytest.mark.parametrize("form", [markdown, numbers])
def test_parts_of_a_table_hold_all_its_cells(form: Callable[..., str]) -> None:
    rng = np.random.default_rng(0)
    rows = [["name", *(f"column{i}" for i in range(9))]]
    rows += [[f"row{j}", *("x" * int(n) for n in rng.integers(1, 14, 9))] for j in range(4)]
    whole = form(rows, keys=1, width=None)
    assert "\n\n" not in whole
    cells = {(row[0], name): cell for row in rows[1:] for name, cell in zip(rows[0], row, strict=True)}
    for width in WIDTHS:
        table = form(rows, keys=1, width=width)
        assert cells_of(table) == cells_of(whole) == cells
        assert max(map(len, table.splitlines())) <= width
    assert len(form(rows, keys=1, width=1).split("\n\n")) == 9, "a column at least, however narrow"


def test_a_file_has_no_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = printed(capsys, "index", a_long_run(tmp_path), "--over-time", "--no-plot")
    assert len(max(shown.splitlines(), key=len)) > 100, "one row a filter, for programs that read it"
