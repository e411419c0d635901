"""`tmm index`: table and JSON tell the same, the pictures hold what they say, and bad input is one clear line."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from tmm_adapters import operator_pictures
from tmm_adapters.authors import read_authors
from tmm_adapters.cli import main
from tmm_adapters.cli.index import _counts
from tmm_adapters.folder import read_tensors, save_model, write_tensors
from tmm_adapters.operators import filters_of, judge
from tmm_adapters.training.runs import Run
from tmm_core import TMMConfig, fredholm_index, lm

REFERENCE = Path(__file__).parent / "data"
RNG = np.random.default_rng


def make(folder: Path, change: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None, **fields: Any) -> Path:
    """Write a model folder whose head i is nearly the shift by i tokens, so that its index is -i."""
    config = TMMConfig(**{"d_model": 8, "n_layers": 2, "n_heads": 4, "max_len": 24, "lag_init": "shift", **fields})
    tensors = lm.init_params(config, RNG(0))
    change(tensors)
    save_model(folder, config, tensors)
    return folder


def make_run(folder: Path, config: TMMConfig, logs: dict[int, dict[str, np.ndarray]]) -> Path:
    """Write what `tmm train` leaves of a run that has been evaluated at these steps."""
    folder.mkdir()
    run = Run(folder, {})
    run.describe(
        preset="default",
        config=config.to_dict(),
        source={},
        options={},
        steps=max(logs, default=1),
        yardsticks={},
        started=0.0,
        finished=True,
    )
    run.lags.mkdir()
    for step, lags in logs.items():
        write_tensors(run.lags / f"step-{step:08d}.safetensors", lags)
    return folder


def lags_of(config: TMMConfig, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: p for name, p in lm.init_params(config, RNG(seed)).items() if ".mix.lags" in name}


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `tmm index` with arguments that must do, and return what it prints."""

    def check(*arguments: object) -> str:
        capsys.readouterr()
        code = main(["index", *map(str, arguments)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return check


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `tmm index` with arguments that must fail with one line on stderr; return the line."""

    def check(*arguments: object, code: int = 2) -> str:
        capsys.readouterr()
        found = main(["index", *map(str, arguments)])
        error = capsys.readouterr().err
        assert found == code, error
        assert error.startswith("tmm: error: ")
        assert error.count("\n") == 1
        assert "a bug" not in error
        return error

    return check


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved, drawn."""
    figures: list[Figure] = []
    original = Figure.savefig

    def savefig(self: Figure, *args: object, **kwargs: object) -> None:
        figures.append(self)
        original(self, *args, **kwargs)
        self.canvas.draw()

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of the table in what was printed; a factor "x 2" and a bound "> 3" are one cell."""
    _, body, _ = table.split("\n\n", 2)
    return [line.replace(" x ", " x").replace("> ", ">").split() for line in body.splitlines()]


# The table


def test_table_and_json_tell_the_same(tmp_path: Path, told: Callable[..., str]) -> None:
    model = make(tmp_path / "model")
    heading, *rows = rows_of(told(model, "--no-plot"))
    expected = "layer head index margin certified rank condition inverse/lag lag energy"
    assert heading == expected.split()
    plain = json.loads(told(model, "--no-plot", "--json"))
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


def test_the_verdicts_are_those_of_the_parts(tmp_path: Path, told: Callable[..., str]) -> None:
    model = make(tmp_path / "model", lag_init="normal", max_len=40)
    found = json.loads(told(model, "--no-plot", "--json", "--length", "9"))
    tensors = read_tensors(model / "model.safetensors")
    config = TMMConfig(d_model=8, n_layers=2, n_heads=4, max_len=40)
    verdicts = judge(filters_of(tensors, config), 9)
    assert found["n"] == 9
    for f, v in zip(found["filters"], verdicts, strict=True):
        assert f["index"] == fredholm_index(tensors[f"blocks.{f['layer'] - 1}.mix.lags"])[f["head"] - 1].index
        assert f["rank"] == v.section.rank
        assert f["largest_singular_value"] == v.section.largest


def test_long_models_are_judged_on_512_tokens_unless_told(tmp_path: Path, told: Callable[..., str]) -> None:
    model = make(tmp_path / "model", n_layers=1, n_heads=1, max_len=600)
    assert json.loads(told(model, "--no-plot", "--json"))["n"] == 512
    assert json.loads(told(model, "--no-plot", "--json", "--length", "4100"))["filters"][0]["rank"] == 4100


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
def test_every_kind_of_model_is_judged_and_drawn(
    fields: dict[str, Any], filters: int, tmp_path: Path, told: Callable[..., str], drawn: list[Figure]
) -> None:
    model = make(tmp_path / "model", **fields)
    shown = told(model)
    assert len(rows_of(shown)) == filters + 1
    assert f"index of {filters} filters" in shown
    assert "origin" in shown, "what a reader should see"
    assert shown.endswith(f"picture: {model / 'index.png'}\n")
    assert imread(model / "index.png").ndim == 3
    assert len(drawn[0].axes) == 5 * fields.get("n_layers", 2) * fields.get("mix_layers", 1)


def test_a_checkpoint_in_half_precision_is_judged(tmp_path: Path, told: Callable[..., str]) -> None:
    import torch
    from safetensors.torch import save_file

    model = make(tmp_path / "model")
    tensors = read_tensors(model / "model.safetensors", "pt")
    save_file({name: t.to(torch.bfloat16) for name, t in tensors.items()}, model / "model.safetensors")
    short = read_tensors(model / "model.safetensors")
    assert all((short[name] == tensors[name].to(torch.bfloat16).float().numpy()).all() for name in tensors)
    assert [f["index"] for f in json.loads(told(model, "--no-plot", "--json"))["filters"]] == [0, -1, -2, -3] * 2


def test_lags_that_are_no_numbers_are_a_row_that_says_so(
    tmp_path: Path, told: Callable[..., str], drawn: list[Figure]
) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["blocks.0.mix.lags"][1, 3] = np.nan
        tensors["blocks.0.mix.lags"][2] = 0
        tensors["blocks.1.mix.lags"][:] = np.inf

    model = make(tmp_path / "model", spoil)
    shown = told(model)
    nan, zero = rows_of(shown)[2:4]
    assert " ".join(nan) == "1 2 none 0 no - - - - - 1 of the lags are NaN or infinite"
    assert zero[:6] == ["1", "3", "none", "0", "no", "0"]
    assert " ".join(zero).endswith("not Fredholm: every lag is zero")
    assert re.search(r"index of 8 filters: 0 in 1, -3 in 1, none in 6;", shown)
    broken = json.loads(told(model, "--json"))["filters"][1]
    assert (broken["index"], broken["rank"], broken["dominant_lag"]) == (None, None, None)
    assert "no finite lags" in [t.get_text() for ax in drawn[0].axes for t in ax.texts]


def test_the_authors_files_are_read(tmp_path: Path, told: Callable[..., str], refused: Callable[..., str]) -> None:
    for name in ("flat", "heads4", "kernel3", "two_layer", "two_layer_heads2"):
        tensors = read_tensors(REFERENCE / f"{name}.safetensors")
        config, params = read_authors({n.removeprefix("param."): t for n, t in tensors.items() if "param." in n})
        found = json.loads(told(REFERENCE / f"{name}.safetensors", "--no-plot", "--json"))["filters"]
        lags = [row for n in lm.parameter_shapes(config) if ".mix.lags" in n for row in params[n]]
        assert len(found) == len(lags) > 0
        assert [f["index"] for f in found] == [fredholm_index(row[None])[0].index for row in lags]
    source = REFERENCE / "softplus_heads4.safetensors"
    assert "--mean or --no-mean" in refused(source)
    assert "no layer is a Toeplitz operator" in refused(source, "--mean")
    assert len(json.loads(told(source, "--no-mean", "--no-plot", "--json"))["filters"]) == 12
    copy = tmp_path / "heads.safetensors"
    copy.write_bytes((REFERENCE / "heads4.safetensors").read_bytes())
    assert f"picture: {tmp_path / 'heads-index.png'}" in told(copy)


def test_runs_and_checkpoints_are_found(
    tmp_path: Path, told: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run by its model, in the place of which its picture goes beside the run's own."""
    (tmp_path / "runs").mkdir()
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    run = make_run(tmp_path / "runs" / "one", config, {})
    make(run / "model", n_layers=1, n_heads=2, max_len=8)
    monkeypatch.chdir(tmp_path)
    assert told().endswith(f"picture: {Path('runs/one/index.png')}\n")
    assert told(run).startswith(f"{run / 'model'}: 1 layers of 2 heads, 8 lags; matrices on n = 8 tokens")
    assert told(run / "model", "--plot", tmp_path / "x.PDF").endswith("x.PDF\n")
    assert (tmp_path / "x.PDF").read_bytes().startswith(b"%PDF")


def test_neither_torch_nor_an_engine_is_loaded(tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    code = (
        "import sys; from tmm_adapters.cli import main; assert main(sys.argv[1:]) == 0;"
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


# The picture


def overprinted(axes: Axes) -> list[tuple[str, str]]:
    """Return the pairs of texts in a panel that touch."""
    labels = [t for t in axes.texts if t.get_text()]
    boxes = [(t.get_text(), t.get_window_extent()) for t in labels]
    return [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]


@pytest.mark.parametrize(
    ("fields", "parted", "rows"),
    [
        ({"n_layers": 1, "n_heads": 0}, True, 1),
        ({"n_layers": 4, "n_heads": 4}, True, 4),
        ({"n_layers": 1, "n_heads": 64, "d_model": 64, "max_len": 70}, True, 8),
        ({"n_layers": 1, "n_heads": 64, "d_model": 64, "max_len": 70}, False, 1),
        ({"n_layers": 1, "n_heads": 128, "d_model": 128}, False, 1),
    ],
)
def test_pictures_are_legible(
    fields: dict[str, Any],
    parted: bool,
    rows: int,
    tmp_path: Path,
    told: Callable[..., str],
    drawn: list[Figure],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where more than 512 filters share rows of any number."""
    monkeypatch.setattr(operator_pictures, "_MOST_PARTED", 512 if parted else 0)
    told(make(tmp_path / "model", **fields))
    (figure,) = drawn
    panels = figure.axes
    assert len(panels) == 5 * rows
    assert all(overprinted(ax) == [] for ax in panels)
    frame = figure.get_window_extent()
    boxes = [ax.get_tightbbox() for ax in panels] + [t.get_window_extent() for t in figure.texts]
    for box in boxes:
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_heads_without_a_colour_of_their_own_are_counted(
    tmp_path: Path, told: Callable[..., str], drawn: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_pictures, "_MOST_PARTED", 0)
    told(make(tmp_path / "model", n_layers=1, n_heads=64, d_model=64, max_len=50))
    lines = [t.get_text() for t in drawn[0].axes[0].texts]
    assert lines[:2] == ["layer 1", "0: 2 heads"], "head 51 is the shift by no token, again"
    assert lines[-1] == "others: 42 heads"
    assert sum(int(line.split()[1]) for line in lines[1:]) == 64


def test_each_symbol_turns_around_its_own_origin_as_often_as_its_index(
    tmp_path: Path, told: Callable[..., str], drawn: list[Figure]
) -> None:
    told(make(tmp_path / "model", n_layers=1, n_heads=8, max_len=30))
    key, symbols, lags, magnitudes, _ = drawn[0].axes
    assert symbols.get_aspect() == 1
    assert [t.get_text() for t in key.texts] == ["layer 1", *(f"head {i + 1}: {-i}" for i in range(8))]
    (origins,) = (
        line.get_xydata() for line in symbols.lines if line.get_color() == "black" and line.get_marker() == "+"
    )
    curves = [line.get_xydata() for line in symbols.lines if line.get_color() in [t.get_color() for t in key.texts[1:]]]
    curves = [curve for curve in curves if len(curve) > 8]
    assert len(origins) == len(curves) == 8
    for head, (origin, curve) in enumerate(zip(origins, curves, strict=True)):
        around = (curve - origin) @ [1, 1j]
        turns = np.angle(around[1:] / around[:-1]).sum() / (2 * math.pi)
        assert round(turns) == -head
        assert np.abs(around).max() == pytest.approx(1)
    assert [line.get_ydata()[i] for i, line in enumerate(lags.lines[:8])] == pytest.approx([1] * 8, abs=1e-2)
    assert magnitudes.get_yscale() == "log"


def test_vanishing_singular_values_lie_in_the_band(
    tmp_path: Path, told: Callable[..., str], drawn: list[Figure]
) -> None:
    told(make(tmp_path / "model", n_layers=1, n_heads=4, max_len=64))
    panel = drawn[0].axes[4]
    assert "0 in float64" in [t.get_text() for t in panel.texts]
    (band,) = panel.patches
    top = band.get_y() + band.get_height()
    assert [int((line.get_ydata() <= top).sum()) for line in panel.lines] == [0, 1, 2, 3]


# Over time


def test_over_time_reads_the_logs_of_the_run(tmp_path: Path, told: Callable[..., str], drawn: list[Figure]) -> None:
    config = TMMConfig(d_model=8, n_layers=2, n_heads=2, max_len=16, lag_init="shift")
    start = {name: np.eye(2, 16, dtype=np.float32) for name in lags_of(config)}  # shifts by 0 and 1
    turned = {name: w[:, ::-1].copy() for name, w in start.items()}  # shifts by 15 and 14
    spoilt = {name: w * (np.nan if "blocks.0" in name else 1) for name, w in start.items()}
    run = make_run(tmp_path / "run", config, {100: start, 5: start, 20: turned, 1000: spoilt})
    (run / "lags" / ".step-00000007.safetensors.part").write_bytes(b"half")
    (run / "lags" / "notes.txt").write_text("mine")
    plain = json.loads(told(run, "--over-time", "--json"))
    assert plain["steps"] == [5, 20, 100, 1000]
    assert [f["index"] for f in plain["filters"]] == [
        [0, -15, 0, None],
        [-1, -14, -1, None],
        [0, -15, 0, 0],
        [-1, -14, -1, -1],
    ]
    assert [f["vanishing"] for f in plain["filters"]] == [
        [0, 15, 0, None],
        [1, 14, 1, None],
        [0, 15, 0, 0],
        [1, 14, 1, 1],
    ]
    shown = told(run, "--over-time")
    heading, *rows = rows_of(shown)
    assert heading == ["layer", "head", "5", "20", "100", "1000"]
    assert rows[1] == ["1", "2", "-1", "-14", "-1", "none"]
    assert shown.endswith(f"picture: {run / 'index-over-time.png'}\n")
    key, index, vanishing, heat = drawn[-1].axes[4:]
    assert [t.get_text() for t in key.texts] == ["layer 2", "head 1: 0 to 0", "head 2: -1 to -1"]
    assert [line.get_ydata().round().tolist() for line in index.lines] == [[0, -15, 0, 0], [-1, -14, -1, -1]]
    assert [line.get_ydata().round().tolist() for line in vanishing.lines] == [[0, 15, 0, 0], [1, 14, 1, 1]]
    (mesh,) = heat.collections
    assert mesh.get_array().shape == (8, 16), "a band of four moments for each of two heads"
    assert all(overprinted(ax) == [] for ax in drawn[-1].axes)


def test_a_long_run_has_the_first_and_the_last_step_in_its_table(tmp_path: Path, told: Callable[..., str]) -> None:
    config = TMMConfig(d_model=8, n_layers=1, n_heads=1, max_len=4)
    run = make_run(tmp_path / "run", config, {step: lags_of(config) for step in range(1, 41)})
    heading = rows_of(told(run, "--over-time", "--no-plot"))[0]
    assert (heading[2], heading[-1]) == ("1", "40")
    assert len(heading) == 2 + 12


def test_over_time_needs_a_run_with_logs(tmp_path: Path, refused: Callable[..., str]) -> None:
    model = make(tmp_path / "model")
    assert "is not the folder of a run: it has no run.json" in refused(model, "--over-time")
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    run = make_run(tmp_path / "run", config, {})
    assert "holds no lags yet: train until the first evaluation" in refused(run, "--over-time")
    (run / "lags" / "step-00000001.safetensors").write_bytes(b"")
    assert "is not a whole safetensors file" in refused(run, "--over-time")
    write_tensors(run / "lags" / "step-00000001.safetensors", lags_of(TMMConfig(d_model=8, n_layers=1, max_len=8)))
    assert "have the shape (4, 8), expected (2, 8)" in refused(run, "--over-time")
    mean = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8, softplus=True, mean=True)
    assert "Toeplitz" in refused(make_run(tmp_path / "mean", mean, {1: lags_of(mean)}), "--over-time")
    none = TMMConfig(d_model=8, n_layers=0)
    assert "the model has no layers" in refused(make_run(tmp_path / "none", none, {}), "--over-time")


def test_the_run_of_a_model_is_found(tmp_path: Path, told: Callable[..., str]) -> None:
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    run = make_run(tmp_path / "run", config, {3: lags_of(config)})
    make(run / "model", n_layers=1, n_heads=2, max_len=8)
    assert f"picture: {run / 'index-over-time.png'}" in told(run / "model", "--over-time")


# Bad input


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
    assert main(["index", str(make(tmp_path / "model"))]) == 1
    captured = capsys.readouterr()
    assert "index of 8 filters" in captured.out
    assert "cannot write the picture" in captured.err
    assert "(No space left on device): choose another --plot" in captured.err


def test_a_library_that_is_missing_is_named_with_the_remedy(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(("tmm_adapters.oper", "tmm_adapters.spectra"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    assert "pip install 'tmm-core[train]'" in refused(make(tmp_path / "model"), code=1)


def test_too_many_rows_for_a_png_are_a_pdf(
    tmp_path: Path, told: Callable[..., str], refused: Callable[..., str]
) -> None:
    model = make(tmp_path / "deep", n_layers=201, n_heads=0, max_len=2, d_model=1, d_mlp=1)
    assert "choose a --plot that ends in .pdf" in refused(model)
    assert "index of 201 filters" in told(model, "--no-plot")


def test_counts_are_short() -> None:
    assert _counts([0, -1, -1, None]) == "0 in 1, -1 in 2, none in 1"
    assert _counts([0, -1, -2, -3, -4, -5, -6]) == "0 in 1, -1 in 1, -2 in 1, -3 in 1, -4 in 1, -5 to -6 in 2"


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["index", "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert all(
        option in shown for option in ("DIR", "--json", "--plot", "--no-plot", "--length", "--over-time", "--mean")
    )


def test_a_pdf_has_pages_of_four_rows(tmp_path: Path, told: Callable[..., str]) -> None:
    told(make(tmp_path / "model", n_layers=6, n_heads=1, max_len=8), "--plot", tmp_path / "index.pdf")
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / "index.pdf").read_bytes())) == 2
