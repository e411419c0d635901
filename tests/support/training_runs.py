"""What tests of training share: a text, a model, and ways to look at runs and to disturb them."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmm_adapters.checkpoints import checkpoints, step_of
from tmm_lab.data.dataset import TrainingSamples
from tmm_lab.training.runs import Run

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
MODEL = ["--d-model", "8", "--n-layers", "1", "--n-heads", "2", "--max-len", "16", "--position-bias"]
COMMON = [*MODEL, "--batch", "2", "--device", "cpu", "--held-out-bytes", "400", "--seed", "3", "--precision", "float32"]
STEPS = 12
# What a whole run of the tests is told: evaluations and checkpoints after 4, 8 and 12 steps, and a record of each step.
WHOLE = [
    *COMMON,
    *("--steps", str(STEPS), "--accumulate", "2"),
    *("--evaluations", "3", "--checkpoint-steps", "4", "--log-every", "1"),
]


def write_words(folder: Path) -> Path:
    """Write a few kilobytes of words."""
    rng = np.random.default_rng(7)
    words = ["the", "of", "model", "token", "head", "lag", "mixes", "a", "causal", "product"]
    path = folder / "words.txt"
    path.write_text("\n".join(" ".join(rng.choice(words, 12)) + "." for _ in range(150)))
    return path


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def records(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def recorded(folder: Path, name: str) -> dict[int, float]:
    """Return a metric of a run by step."""
    return {int(record["step"]): record[name] for record in records(folder) if name in record}


def traces(folder: Path) -> tuple[list[dict[str, float]], bytes, dict[str, bytes]]:
    """Return all that a run tells of its course, but for times and speeds: records, samples, logged parameters."""
    untimed = [
        {name: value for name, value in record.items() if name not in ("time", "tokens_per_second")}
        for record in records(folder)
    ]
    logged = {path.name: path.read_bytes() for path in (folder / "parameters").glob("*.safetensors")}
    return untimed, (folder / "samples.txt").read_bytes(), logged


def unfinished(whole: Path, out: Path, *, step: int = STEPS, steps: int | None = None) -> Run:
    """Return a copy of a run that was ended after `step`, and that is to have `steps`."""
    shutil.copytree(whole, out)
    run = Run.open(out)
    longer = {} if steps is None else {"steps": steps, "options": {**run.description["options"], "steps": steps}}
    run.describe(finished=False, **longer)
    shutil.rmtree(run.model)
    for path in checkpoints(run.checkpoints):
        if step_of(path) > step:
            shutil.rmtree(path)
    return run


def signal_at(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGINT) -> None:
    """Send this process a signal during a step of training, which reads the batch of the next one."""
    original, asked = TrainingSamples.batch, []

    def batch(self: TrainingSamples, indices: Any) -> Any:
        asked.append(indices)
        if len(asked) == step + 1:
            os.kill(os.getpid(), number)
        return original(self, indices)

    monkeypatch.setattr(TrainingSamples, "batch", batch)


def fail_second(monkeypatch: pytest.MonkeyPatch, place: str, argument: str | None = None) -> None:
    """Let the disk be full at the second call of `place`, counting those whose last argument names `argument`."""
    owner, name = place.rsplit(".", 1)
    target = pkgutil.resolve_name(owner)
    original, calls = getattr(target, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        if argument is None or argument in str(args[-1]):
            calls.append(args)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, failing)
