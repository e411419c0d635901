"""`tmm index`: bad input, a full disk and a missing library are one clear line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.index_models import make

from tmm_adapters.files import SUMS
from tmm_adapters.pretrained import read_tensors, write_tensors
from tmm_lab.cli import main


def test_bad_input_is_one_clear_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    model = make(tmp_path / "model")
    assert "there is no folder" in refused(tmp_path / "nowhere")
    assert "is neither the folder of a run nor of a model" in refused(tmp_path)
    assert "--length must be at least 1, and is 0" in refused(model, "--length", 0)
    assert "must be a .png or a .pdf: choose another --plot" in refused(model, "--plot", tmp_path / "x.svg")
    assert "there is no folder" in refused(model, "--plot", tmp_path / "no" / "x.png")
    (tmp_path / "dir.png").mkdir()
    assert "is a folder: choose another --plot" in refused(model, "--plot", tmp_path / "dir.png")
    assert "choose one" in refused(model, "--plot", "x.png", "--no-plot")
    assert "leave it out" in refused(model, "--mean")
    (tmp_path / "notes.txt").write_text("dear")
    assert "is not a whole safetensors file" in refused(tmp_path / "notes.txt")
    write_tensors(tmp_path / "other.safetensors", {"x": np.zeros(3, np.float32)})
    assert "expected a state dict of the authors' research code" in refused(tmp_path / "other.safetensors")
    assert "running sum of the lags" in refused(make(tmp_path / "mean", softplus=True, mean=True))
    assert "the model has no layers" in refused(make(tmp_path / "none", n_layers=0))
    tensors = read_tensors(model / "model.safetensors")
    (model / SUMS).unlink()  # as of another tool
    write_tensors(model / "model.safetensors", {n: t for n, t in tensors.items() if n != "blocks.1.mix.lags"})
    assert "too few for n_layers=2" in refused(model)
    write_tensors(model / "model.safetensors", {**tensors, "blocks.1.mix.lags": tensors["blocks.1.mix.lags"][:3]})
    assert "have the shape (3, 24), expected (4, 24)" in refused(model)


def test_a_picture_that_cannot_be_written_costs_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Figure, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    picture = tmp_path / "before.png"
    picture.write_bytes(b"an earlier one")
    assert main(["index", str(make(tmp_path / "model")), "--plot", str(picture)]) == 1
    captured = capsys.readouterr()
    assert "index of 8 filters" in captured.out
    assert f"cannot write {picture}: No space left on device; make room" in captured.err
    assert picture.read_bytes() == b"an earlier one"


def test_a_library_that_is_missing_is_named_with_the_remedy(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("tmm_lab.operators")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    assert "pip install 'tmm-core[train]'" in refused(make(tmp_path / "model"), code=1)


def test_too_many_rows_for_a_png_are_a_pdf(
    tmp_path: Path, printed: Callable[..., str], refused: Callable[..., str]
) -> None:
    model = make(tmp_path / "deep", n_layers=201, n_heads=0, max_len=2, d_model=1, d_mlp=1)
    assert "choose a --plot that ends in .pdf" in refused(model)
    assert "index of 201 filters" in printed(model, "--no-plot")
