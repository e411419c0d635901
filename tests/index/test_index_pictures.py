"""The pictures of `tmm index` hold what they say, and those over time tell what its table and JSON do."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.index_models import lags_of, make, make_run, rows_of
from support.processes import run_python

from tmm_core import TMMConfig
from tmm_lab.operators import pictures
from tmm_lab.training.runs import Run


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
    printed: Callable[..., str],
    figures: list[Figure],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where more than 512 filters share rows of any number."""
    monkeypatch.setattr(pictures, "_MOST_PARTED", 512 if parted else 0)
    printed(make(tmp_path / "model", **fields))
    (figure,) = figures
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
    tmp_path: Path, printed: Callable[..., str], figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "_MOST_PARTED", 0)
    printed(make(tmp_path / "model", n_layers=1, n_heads=64, d_model=64, max_len=50))
    lines = [t.get_text() for t in figures[0].axes[0].texts]
    assert lines[:2] == ["layer 1", "0: 2 heads"], "head 51 is the shift by no token, again"
    assert lines[-1] == "others: 42 heads"
    assert sum(int(line.split()[1]) for line in lines[1:]) == 64


def test_each_symbol_turns_around_its_own_origin_as_often_as_its_index(
    tmp_path: Path, printed: Callable[..., str], figures: list[Figure]
) -> None:
    printed(make(tmp_path / "model", n_layers=1, n_heads=8, max_len=30))
    key, symbols, lags, magnitudes, _ = figures[0].axes
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
    tmp_path: Path, printed: Callable[..., str], figures: list[Figure]
) -> None:
    printed(make(tmp_path / "model", n_layers=1, n_heads=4, max_len=64))
    panel = figures[0].axes[4]
    assert "0 in float64" in [t.get_text() for t in panel.texts]
    (band,) = panel.patches
    top = band.get_y() + band.get_height()
    assert [int((line.get_ydata() <= top).sum()) for line in panel.lines] == [0, 1, 2, 3]


def test_a_pdf_has_pages_of_four_rows(tmp_path: Path, printed: Callable[..., str]) -> None:
    printed(make(tmp_path / "model", n_layers=6, n_heads=1, max_len=8), "--plot", tmp_path / "index.pdf")
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / "index.pdf").read_bytes())) == 2


# Over time


def test_over_time_reads_the_logs(tmp_path: Path, printed: Callable[..., str], figures: list[Figure]) -> None:
    config = TMMConfig(d_model=8, n_layers=2, n_heads=2, max_len=16, lag_init="shift")
    start = {name: np.eye(2, 16, dtype=np.float32) for name in lags_of(config)}  # shifts by 0 and 1
    turned = {name: w[:, ::-1].copy() for name, w in start.items()}  # shifts by 15 and 14
    spoilt = {name: w * (np.nan if "blocks.0" in name else 1) for name, w in start.items()}
    run = make_run(tmp_path / "run", config, {100: start, 5: start, 20: turned, 1000: spoilt})
    (run / "parameters" / ".step-00000007.safetensors.part").write_bytes(b"half")
    (run / "parameters" / "notes.txt").write_text("mine")
    plain = json.loads(printed(run, "--over-time", "--json"))
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
    shown = printed(run, "--over-time")
    heading, *rows = rows_of(shown)
    assert heading == ["layer", "head", "5", "20", "100", "1000"]
    assert rows[1] == ["1", "2", "-1", "-14", "-1", "none"]
    assert shown.endswith(f"picture: {run / 'index-over-time.png'}\n")
    key, index, vanishing, heat = figures[-1].axes[4:]
    assert [t.get_text() for t in key.texts] == ["layer 2", "head 1: 0 to 0", "head 2: -1 to -1"]
    assert [line.get_ydata().round().tolist() for line in index.lines] == [[0, -15, 0, 0], [-1, -14, -1, -1]]
    assert [line.get_ydata().round().tolist() for line in vanishing.lines] == [[0, 15, 0, 0], [1, 14, 1, 1]]
    (mesh,) = heat.collections
    assert mesh.get_array().shape == (8, 16), "a band of four moments for each of two heads"
    assert all(overprinted(ax) == [] for ax in figures[-1].axes)


def test_a_long_run_has_the_first_and_the_last_step_in_its_table(tmp_path: Path, printed: Callable[..., str]) -> None:
    config = TMMConfig(d_model=8, n_layers=1, n_heads=1, max_len=4)
    run = make_run(tmp_path / "run", config, {step: lags_of(config) for step in range(1, 41)})
    heading = rows_of(printed(run, "--over-time", "--no-plot"))[0]
    assert (heading[2], heading[-1]) == ("1", "40")
    assert len(heading) == 2 + 12


def test_over_time_needs_a_run_with_logs(tmp_path: Path, refused: Callable[..., str]) -> None:
    model = make(tmp_path / "model")
    assert "is not the folder of a run: it has no run.json" in refused(model, "--over-time")
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    run = make_run(tmp_path / "run", config, {})
    assert "holds no lags yet: train until the first evaluation" in refused(run, "--over-time")
    (run / "parameters" / "step-00000001.safetensors").write_bytes(b"")
    assert "is not listed in SHA256SUMS beside it" in refused(run, "--over-time")
    Run(run, {}).log_parameters(1, lags_of(TMMConfig(d_model=8, n_layers=1, max_len=8)))
    assert "have the shape (4, 8), expected (2, 8)" in refused(run, "--over-time")
    mean = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8, softplus=True, mean=True)
    assert "Toeplitz" in refused(make_run(tmp_path / "mean", mean, {1: lags_of(mean)}), "--over-time")
    none = TMMConfig(d_model=8, n_layers=0)
    assert "the model has no layers" in refused(make_run(tmp_path / "none", none, {}), "--over-time")


def test_the_run_of_a_model_is_found(tmp_path: Path, printed: Callable[..., str]) -> None:
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    run = make_run(tmp_path / "run", config, {3: lags_of(config)})
    make(run / "model", n_layers=1, n_heads=2, max_len=8)
    assert f"picture: {run / 'index-over-time.png'}" in printed(run / "model", "--over-time")


def test_symbols_of_many_lags_are_drawn_by_their_turns_which_end_at_the_index(
    tmp_path: Path, printed: Callable[..., str], figures: list[Figure]
) -> None:
    """Random lags, whose symbols pass the origin more closely than a grid of angles shows."""
    model = make(tmp_path / "model", n_layers=2, n_heads=4, max_len=100, lag_init="normal")
    plain = json.loads(printed(model, "--json"))["filters"]
    ends = [line.get_ydata()[-1] for row in (0, 1) for line in figures[0].axes[5 * row + 1].lines[:4]]
    np.testing.assert_allclose(ends, [f["index"] for f in plain], atol=1e-6)
    assert len({f["index"] for f in plain}) > 4


def test_neither_backend_nor_style_of_the_environment_touches_a_picture(tmp_path: Path) -> None:
    """Notebooks hand a backend to the commands of their cells; a style may ask for a TeX that is not there."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 40\nfigure.dpi: 13\n")
    code = f"""
        from pathlib import Path
        from support.index_models import make
        from tmm_lab.cli import main
        from tmm_lab.training.plots import plot_training
        folder = Path({str(tmp_path)!r})
        assert main(["index", str(make(folder / "model"))]) == 0
        curve = [(1, 2.0), (2, 1.0)]
        plot_training(folder / "run.png", title="run", curve=curve, training=curve, baselines={{}}, heatmap=None)
        import matplotlib, os
        assert os.environ["MPLBACKEND"] == "module://nowhere.at_all", "what others are told stays"
        assert matplotlib.rcParams["font.size"] == 40, "and so does the style of other pictures"
        """
    run_python(
        code,
        MPLBACKEND="module://nowhere.at_all",
        MATPLOTLIBRC=str(tmp_path),
        PYTHONPATH=str(Path(__file__).parent.parent),
    )
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
