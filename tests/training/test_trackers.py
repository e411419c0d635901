"""The trackers that follow a run, such as TensorBoard, under either framework."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking

from tmm_lab.cli import main
from tmm_lab.training import trackers


@pytest.mark.parametrize(
    ("usable", "name", "message"),
    [
        ([], "abacus", "there is no such tracker: choose from .*tensorboard"),
        ([], "tensorboard", "its library is not installed: pip install tensorboard$"),
        (
            ["wandb"],
            "wandb,tensorboard",
            "tensorboard is not .*: pip install tensorboard, or choose from wandb",
        ),
    ],
)
def test_trackers_that_are_not_there_are_refused(
    usable: list[str], name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: usable)
    with pytest.raises(ValueError, match=message):
        trackers.check_trackers(name)


def test_trackers_need_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.tracking", None)
    trackers.check_trackers("none")
    with pytest.raises(LookupError, match=r"--report-to wandb needs accelerate: pip install 'tmm-core\[train\]'"):
        trackers.check_trackers("wandb")


def test_trackers_follow_a_run(
    framework: str, arguments: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of accelerate's own kind, as none of its trackers is installed here."""
    told: list[tuple[str, Any]] = []

    class Tracker(tracking.GeneralTracker):  # type: ignore[misc]
        name, requires_logging_directory = "abacus", True

        def __init__(self, run_name: str, logging_dir: str, **kwargs: object) -> None:
            super().__init__()
            told.append(("dir", logging_dir))

        @property
        def tracker(self) -> None:
            return None

        @tracking.on_main_process
        def store_init_configuration(self, values: dict[str, object]) -> None:
            told.append(("config", values))

        @tracking.on_main_process
        def log(self, values: dict[str, float], step: int | None = None, **kwargs: object) -> None:
            told.append(("log", (step, values.keys())))

        @tracking.on_main_process
        def finish(self) -> None:
            told.append(("finish", None))

    monkeypatch.setattr(tracking, "get_available_trackers", lambda: ["abacus"])
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "abacus", Tracker)
    out = tmp_path / "run"
    few = ["--steps", "2", "--evaluations", "1", "--accumulate", "1", "--backend", "numpy"]
    assert main(arguments(framework, out, "--report-to", "abacus", *few)) == 0
    assert [kind for kind, _ in told] == ["dir", "config", "log", "log", "log", "finish"]
    assert told[0][1] == str(out)
    config = told[1][1]
    assert (config["d_model"], config["steps"], config["model_type"]) == (8, 2, "tmm")
    assert all(isinstance(value, (bool, int, float, str)) for value in config.values()), "TensorBoard takes no others"
    assert told[4][1] == (2, {"eval_bits_per_byte", "tokens", "epoch"})
