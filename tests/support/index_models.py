"""Models and runs to be judged by `tmm index`, and what fixtures that call it are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tmm_adapters.pretrained import save_model, write_tensors
from tmm_core import TMMConfig, lm
from tmm_lab.cli import main
from tmm_lab.data.config import Source
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run

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
        source=Source().to_dict(),
        options=TrainingOptions().to_dict(),
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


def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `tmm index` with arguments that must do, and return what it prints."""

    def check(*arguments: object) -> str:
        capsys.readouterr()
        code = main(["index", *map(str, arguments)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return check


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
