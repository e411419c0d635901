"""`tmm index`: table and JSON tell the same, of every kind of model."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
from matplotlib.figure import Figure
from matplotlib.image import imread
from scipy.sparse.linalg import ArpackNoConvergence
from support.index_models import lags_of, make, make_run, rows_of

from tmm_adapters.files import SUMS
from tmm_adapters.pretrained import read_tensors
from tmm_adapters.research_code import from_research_code
from tmm_core import TMMConfig, fredholm_index, lm
from tmm_lab.cli import main
from tmm_lab.operators import spectra
from tmm_lab.operators.filters import analyse, filters_of
from tmm_lab.operators.tables import _counts

REFERENCE = Path(__file__).parent.parent / "reference"


def test_table_and_json_tell_the_same(tmp_path: Path, printed: Callable[..., str]) -> None:
    model = make(tmp_path / "model")
    heading, *rows = rows_of(printed(model, "--no-plot"))
    expected = "layer head index margin certified rank condition inverse/lag lag energy"
    assert heading == expected.split()
    plain = json.loads(printed(model, "--no-plot", "--json"))
    assert (plain["model"], plain["n"], len(plain["filters"]), len(rows)) == (str(model), 24, 8, 8)
    for row, f in zip(rows, plain["filters"], strict=True):
        layer, head, index, margin, certified, rank, condition, growth, lag, energy = row
        assert (int(layer), int(head)) == (f["layer"], f["head"])
        assert (int(index), certified) == (f["index"], "yes" if f["certified"] else "no")
        assert float(margin) == pytest.approx(f["margin"], rel=0.06)
        assert int(rank) == f["rank"]
        assert int(lag) == f["dominant_lag"] == f["head"] - 1
        assert float(energy.rstrip("%")) / 100 == pytest.approx(f["dominant_share"], abs=1e-3)
        assert float(growth.removeprefix("x")) == pytest.approx(f["inverse_growth"], rel=0.01)
        assert f["index"] == 1 - f["head"], "nearly the shift by head - 1 tokens"
        assert f["rank"] == 24 - (f["head"] - 1), "which forgets as many"
        if f["condition"] is None:
            assert float(condition.removeprefix(">")) == pytest.approx(1 / (24 * np.finfo(float).eps), rel=0.5)
        else:
            assert float(condition) == pytest.approx(f["condition"], rel=0.06)
            assert f["condition"] == pytest.approx(f["largest_singular_value"] / f["smallest_singular_value"])


def test_the_reports_are_those_of_the_parts(tmp_path: Path, printed: Callable[..., str]) -> None:
    model = make(tmp_path / "model", lag_init="normal", max_len=40)
    found = json.loads(printed(model, "--no-plot", "--json", "--length", "9"))
    tensors = read_tensors(model / "model.safetensors")
    config = TMMConfig(d_model=8, n_layers=2, n_heads=4, max_len=40)
    reports = analyse(filters_of(tensors, config), 9)
    assert found["n"] == 9
    for f, r in zip(found["filters"], reports, strict=True):
        assert f["index"] == fredholm_index(tensors[f"blocks.{f['layer'] - 1}.mix.lags"])[f["head"] - 1].index
        assert f["rank"] == r.section.rank
        assert f["largest_singular_value"] == r.section.largest


def test_long_models_are_analysed_on_512_tokens_unless_told(tmp_path: Path, printed: Callable[..., str]) -> None:
    model = make(tmp_path / "model", n_layers=1, n_heads=1, max_len=600)
    assert json.loads(printed(model, "--no-plot", "--json"))["n"] == 512
    assert json.loads(printed(model, "--no-plot", "--json", "--length", "4100"))["filters"][0]["rank"] == 4100


@pytest.mark.parametrize(
    ("fields", "filters"),
    [
        ({"n_heads": 0}, 2),
        ({"n_heads": 0, "mix_layers": 2}, 4),
        ({"mix_layers": 2, "n_heads": 2}, 8),
        ({"kernel_size": 3, "n_heads": 2}, 4),
        ({"softplus": True}, 8),
        ({"n_lags": 1}, 8),
        ({"n_lags": 40}, 8),
        ({"max_len": 1}, 8),
    ],
)
def test_every_kind_of_model_is_analysed_and_drawn(
    fields: dict[str, Any], filters: int, tmp_path: Path, printed: Callable[..., str], figures: list[Figure]
) -> None:
    model = make(tmp_path / "model", **fields)
    shown = printed(model)
    assert len(rows_of(shown)) == filters + 1
    assert f"index of {filters} filters" in shown
    assert "turns around 0" in shown, "what a reader should see"
    assert shown.endswith(f"picture: {model / 'index.png'}\n")
    assert imread(model / "index.png").ndim == 3
    assert len(figures[0].axes) == 5 * fields.get("n_layers", 2) * fields.get("mix_layers", 1)


def test_a_checkpoint_in_half_precision_is_analysed(tmp_path: Path, printed: Callable[..., str]) -> None:
    import torch
    from safetensors.torch import save_file

    model = make(tmp_path / "model")
    tensors = read_tensors(model / "model.safetensors", "pt")
    (model / SUMS).unlink()  # as of another tool
    save_file({name: t.to(torch.bfloat16) for name, t in tensors.items()}, model / "model.safetensors")
    short = read_tensors(model / "model.safetensors")
    assert all((short[name] == tensors[name].to(torch.bfloat16).float().numpy()).all() for name in tensors)
    assert [f["index"] for f in json.loads(printed(model, "--no-plot", "--json"))["filters"]] == [0, -1, -2, -3] * 2


def test_lags_that_are_no_numbers_are_a_row_that_says_so(
    tmp_path: Path, printed: Callable[..., str], figures: list[Figure]
) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["blocks.0.mix.lags"][1, 3] = np.nan
        tensors["blocks.0.mix.lags"][2] = 0
        tensors["blocks.1.mix.lags"][:] = np.inf

    model = make(tmp_path / "model", spoil)
    shown = printed(model)
    nan, zero = rows_of(shown)[2:4]
    assert " ".join(nan) == "1 2 none 0 no - - - - - 1 of the lags are NaN or infinite"
    assert zero[:6] == ["1", "3", "none", "0", "no", "0"]
    assert " ".join(zero).endswith("not Fredholm: every lag is zero")
    assert re.search(r"index of 8 filters: 0 in 1, -3 in 1, none in 6;", shown)
    broken = json.loads(printed(model, "--json"))["filters"][1]
    assert (broken["index"], broken["rank"], broken["dominant_lag"]) == (None, None, None)
    assert "no finite lags" in [t.get_text() for ax in figures[0].axes for t in ax.texts]


def test_a_filter_too_hard_for_arpack_is_a_row_that_says_so(
    tmp_path: Path, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other rows, and the picture, are there as well."""
    calls = itertools.count()

    def eigsh(*args: object, **kwargs: object) -> object:
        if next(calls) >= 2:  # the first filter's two ends are found
            raise ArpackNoConvergence("No convergence (41001 iterations)", np.empty(0), np.empty((0, 0)))
        return scipy.sparse.linalg.eigsh(*args, **kwargs)

    monkeypatch.setattr(spectra, "eigsh", eigsh)
    monkeypatch.setattr(spectra, "DENSE", 8)

    def diagonal(tensors: dict[str, np.ndarray]) -> None:
        tensors["blocks.0.mix.lags"][:, 0] = 9

    model = make(tmp_path / "model", diagonal, n_layers=1, n_heads=2)
    first, second = rows_of(printed(model))[1:]
    assert first[5] == "24"
    assert second[5:7] == ["-", "-"]
    assert " ".join(second).endswith("the largest and the smallest singular values not found: ARPACK did not converge")
    calls = itertools.count()
    found = json.loads(printed(model, "--json", "--no-plot"))["filters"]
    assert [f["rank"] for f in found] == [24, None]
    assert (found[1]["condition"], found[1]["smallest_singular_value"]) == (None, None)
    assert [f["missing"] for f in found] == ["", " ".join(second[10:])]


def test_the_authors_files_are_read(tmp_path: Path, printed: Callable[..., str], refused: Callable[..., str]) -> None:
    for name in ("flat", "heads4", "kernel3", "two_layer", "two_layer_heads2"):
        config, params = from_research_code(read_tensors(REFERENCE / f"{name}.safetensors"))
        found = json.loads(printed(REFERENCE / f"{name}.safetensors", "--no-plot", "--json"))["filters"]
        lags = [row for n in lm.parameter_shapes(config) if ".mix.lags" in n for row in params[n]]
        assert len(found) == len(lags) > 0
        assert [f["index"] for f in found] == [fredholm_index(row[None])[0].index for row in lags]
    source = REFERENCE / "softplus_heads4.safetensors"
    assert "--mean or --no-mean" in refused(source)
    assert "no layer is a Toeplitz operator" in refused(source, "--mean")
    assert len(json.loads(printed(source, "--no-mean", "--no-plot", "--json"))["filters"]) == 12
    copy = tmp_path / "heads.safetensors"
    copy.write_bytes((REFERENCE / "heads4.safetensors").read_bytes())
    assert f"picture: {tmp_path / 'heads-index.png'}" in printed(copy)


def test_runs_and_checkpoints_are_found(
    tmp_path: Path, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run by its model, in the place of which its picture goes beside the run's own."""
    (tmp_path / "runs").mkdir()
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    run = make_run(tmp_path / "runs" / "one", config, {})
    make(run / "model", n_layers=1, n_heads=2, max_len=8)
    monkeypatch.chdir(tmp_path)
    assert printed().endswith(f"picture: {Path('runs/one/index.png')}\n")
    assert printed(run).startswith(f"{run / 'model'}: 1 layer of 2 heads, 8 lags; matrices on n = 8 tokens")
    assert printed(run / "model", "--plot", tmp_path / "x.PDF").endswith("x.PDF\n")
    assert (tmp_path / "x.PDF").read_bytes().startswith(b"%PDF")


def test_neither_torch_nor_an_engine_is_loaded(tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    code = (
        "import sys; from tmm_lab.cli import main; assert main(sys.argv[1:]) == 0;"
        "print([m for m in ('torch', 'jax', 'numba', 'transformers', 'matplotlib.pyplot') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "index", str(model)],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "TMM_BACKEND"},
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_time_is_told_beforehand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the matrices of a model, and of those at every evaluation of a run."""
    config = TMMConfig(d_model=8, n_layers=2, n_heads=4, max_len=24)
    run = make_run(tmp_path / "run", config, {step: lags_of(config) for step in (1, 2, 3)})
    make(run / "model")

    def said(*options: str) -> str:
        assert main(["index", str(run), "--no-plot", "--json", *options]) == 0
        return capsys.readouterr().err

    assert said() == said("--over-time") == ""
    monkeypatch.setattr("tmm_lab.cli.index._SLOW", 8 * 24**3)
    assert said() == ""
    assert said("--over-time") == "tmm: 24 matrices on 24 tokens take a while\n"
    assert said("--length", "25") == "tmm: 8 matrices on 25 tokens take a while\n"
    monkeypatch.setattr("tmm_lab.cli.index._LENGTH", 16)
    assert said("--over-time", "--length", "24").endswith("; --length 16 is quicker\n")


@pytest.mark.parametrize(
    ("choice", "used"), [(None, "array_api"), (" ", "array_api"), ("auto", "none"), ("numpy", "none")]
)
def test_an_empty_choice_of_a_backend_is_none(
    choice: str | None, used: str, tmp_path: Path, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["none"]
    monkeypatch.setattr("tmm_core.use_backend", lambda name: nullcontext(asked.append(name)))
    monkeypatch.delenv("TMM_BACKEND", raising=False)
    if choice is not None:
        monkeypatch.setenv("TMM_BACKEND", choice)
    printed(make(tmp_path / "model"), "--no-plot")
    assert asked[-1] == used


def test_counts_are_short() -> None:
    assert _counts([0, -1, -1, None]) == "0 in 1, -1 in 2, none in 1"
    assert _counts([0, -1, -2, -3, -4, -5, -6]) == "0 in 1, -1 in 1, -2 in 1, -3 in 1, -4 in 1, -5 to -6 in 2"
