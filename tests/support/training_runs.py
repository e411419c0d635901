"""What tests of training share: a text, and ways to look at runs and to disturb them."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmm_lab.data.dataset import TrainingSamples

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
MODEL = ["--d-model", "8", "--n-layers", "2", "--n-heads", "2", "--max-len", "16"]
CHEAP = [*MODEL, "--batch", "2", "--device", "cpu", "--held-out-bytes", "400"]
SETTLED = [*CHEAP, "--accumulate", "2", "--evaluations", "3", "--checkpoint-steps", "4"]


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
    """Return a figure of a run by step."""
    return {int(record["step"]): record[name] for record in records(folder) if name in record}


def signal_at(monkeypatch: pytest.MonkeyPatch, batch: int, number: int = signal.SIGINT) -> None:
    """Send this process a signal when training asks for its `batch`-th batch."""
    original, asked = TrainingSamples.__getitems__, []

    def getitems(self: TrainingSamples, indices: Any) -> Any:
        asked.append(indices)
        if len(asked) == batch:
            os.kill(os.getpid(), number)
        return original(self, indices)

    monkeypatch.setattr(TrainingSamples, "__getitems__", getitems)


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
