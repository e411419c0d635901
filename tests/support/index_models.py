"""Models and runs for `tmm index`, and its table as cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tmm_adapters.pretrained import save_params
from tmm_core import TMMConfig, lm
from tmm_lab.data.config import DataConfig
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.preparation import description_of
from tmm_lab.training.runs import Run

RNG = np.random.default_rng


def make(folder: Path, change: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None, **fields: Any) -> Path:
    """Write a model folder whose head i is nearly the shift by i tokens, so that its index is -i."""
    config = TMMConfig(**{"d_model": 8, "n_layers": 2, "n_heads": 4, "max_len": 24, "lag_init": "shift", **fields})
    tensors = lm.init_params(config, RNG(0))
    change(tensors)
    save_params(folder, tensors, config)
    return folder


def make_run(folder: Path, config: TMMConfig, logs: dict[int, dict[str, np.ndarray]]) -> Path:
    """Write what `tmm train` leaves of a run that has been evaluated at these steps."""
    folder.mkdir()
    run = Run(folder, {})
    parts = {"config": config, "data": DataConfig(), "options": TrainingOptions(steps=max(logs, default=1))}
    run.describe(**description_of(preset="default", vocab_given=False, start=None, **parts))
    run.describe(prepared=True, finished=True)
    run.parameters.mkdir()
    for step, lags in logs.items():
        run.log_parameters(step, lags)
    return folder


def lags_of(config: TMMConfig, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: p for name, p in lm.init_params(config, RNG(seed)).items() if ".mix.lags" in name}


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of the table in what was printed; a factor "x 2" and a bound "> 3" are one cell."""
    _, body, _ = table.split("\n\n", 2)
    return [line.replace(" x ", " x").replace("> ", ">").split() for line in body.splitlines()]
