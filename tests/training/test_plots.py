"""The picture of a run: it is drawn for every kind of model, and says what it is about."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from tmm_adapters.tmm import TMM
from tmm_core import TMMConfig, lm
from tmm_lab.training import plots

BASELINES = {"unigram": 4.8, "bigram": 3.86, "trigram": 2.884, "4-gram": 2.15, "zlib": 2.88}

CONFIGS = {
    "heads": TMMConfig(d_model=8, n_layers=4, n_heads=4, max_len=64),
    "one head": TMMConfig(d_model=8, n_layers=1, n_heads=1, max_len=16),
    "flat": TMMConfig(d_model=8, n_layers=2, n_heads=0, max_len=16),
    "kernel": TMMConfig(d_model=8, n_layers=2, n_heads=2, kernel_size=3, max_len=16),
    "two layers": TMMConfig(d_model=8, n_layers=2, n_heads=2, mix_layers=2, max_len=16),
    "softplus": TMMConfig(d_model=8, n_layers=1, n_heads=2, softplus=True, mean=True, max_len=16),
    "deep": TMMConfig(d_model=8, n_layers=16, n_heads=8, max_len=32),
    "one lag": TMMConfig(d_model=8, n_layers=1, n_heads=2, n_lags=1, max_len=16),
    "no layers": TMMConfig(d_model=8, n_layers=0, max_len=16),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    original = Figure.savefig

    def savefig(self: Figure, *args: object, **kwargs: object) -> None:
        figures.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def draw(path: Path, config: TMMConfig, curve: list[tuple[int, float]]) -> None:
    heatmap = TMM().heatmap(config, lm.init_params(config, np.random.default_rng(0)))
    training = [(tokens, bits - 0.1) for tokens, bits in curve]
    plots.plot_training(path, title="run", curve=curve, training=training, baselines=BASELINES, heatmap=heatmap)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_model_has_a_row_for_each_filter(name: str, tmp_path: Path, drawn: list[Figure]) -> None:
    config = CONFIGS[name]
    draw(tmp_path / "training.png", config, [(1000, 5.0), (2000, 3.0)])
    assert imread(tmp_path / "training.png").ndim == 3
    filters = config.n_layers * config.mix_layers * config.heads * config.kernel_size
    if filters == 0:
        assert len(drawn[0].axes) == 1, "there is nothing to draw but the curve"
        return
    right = drawn[0].axes[1]
    meshes = [c for c in right.collections if hasattr(c, "get_coordinates")]
    assert meshes[0].get_array().shape == (filters, config.lags)
    labels = [t.get_text() for t in right.get_yticklabels()]
    assert len(labels) == len(set(labels))
    assert len(labels) <= 40
    assert labels[0].startswith("layer 1")


def test_rows_hold_the_effective_lags_over_their_largest(tmp_path: Path, drawn: list[Figure]) -> None:
    config = CONFIGS["softplus"]
    draw(tmp_path / "training.png", config, [(1000, 5.0)])
    raw = lm.init_params(config, np.random.default_rng(0))["blocks.0.mix.lags"].astype(float)
    effective = np.log1p(np.exp(raw))
    mesh = drawn[0].axes[1].collections[0]
    np.testing.assert_allclose(mesh.get_array(), effective / effective.max(axis=1, keepdims=True), rtol=1e-6)


def test_baselines_are_named_and_do_not_overprint(tmp_path: Path, drawn: list[Figure]) -> None:
    draw(tmp_path / "training.png", CONFIGS["heads"], [(1000, 5.0), (2_000_000, 2.5)])
    left = drawn[0].axes[0]
    drawn[0].canvas.draw()
    boxes = [t.get_window_extent() for t in left.texts]
    assert {t.get_text().split()[0] for t in left.texts} == {*BASELINES, "2.500"}
    named = boxes[: len(BASELINES)]
    for i, a in enumerate(named):
        for b in named[i + 1 :]:
            assert not a.overlaps(b)
    assert all(box.x1 <= drawn[0].axes[1].get_window_extent().x0 for box in named)
    heights = [line.get_ydata()[0] for line in left.lines[: len(BASELINES)]]
    assert heights == list(BASELINES.values())
    assert list(left.lines[-1].get_xdata()) == [0.001, 2.0]
    assert left.get_xlabel() == "training tokens (millions)"


@pytest.mark.parametrize("end", [[2.5, 2.4], [2.5, 2.6], [2.15, 2.14], [9.0, 9.5]])
def test_the_last_value_is_named_beside_the_curve(end: list[float], tmp_path: Path, drawn: list[Figure]) -> None:
    bits = [4.5, 3.5, 3.0, 2.8, 2.7, 2.6, *end]
    draw(tmp_path / "training.png", CONFIGS["heads"], [(10_000 * i, b) for i, b in enumerate(bits, 1)])
    drawn[0].canvas.draw()
    axes = drawn[0].axes[0]
    label = next(t for t in axes.texts if t.get_text() == f"{bits[-1]:.3f}").get_window_extent()
    points = axes.transData.transform(np.column_stack(axes.lines[-1].get_data()))
    along = np.concatenate([np.linspace(a, b, 200) for a, b in itertools.pairwise(points)])
    assert not any(label.contains(x, y) for x, y in along)
    box = axes.get_window_extent()
    assert box.y0 <= label.y0
    assert label.y1 <= box.y1
