"""Random damages to the files of runs: what is used is what was written, or one clear line says what is wrong.

`TMM_TEST_DAMAGES=1000 pytest -m slow tests/training/test_random_damages.py` tries 1000 of them; the number of a test is
the seed of its damage, and `TMM_TEST_DAMAGES_SEED` that of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.training_runs import STEPS, WHOLE, unfinished, weights

from tmm_adapters.checkpoints import checkpoints
from tmm_adapters.pretrained import load_params, read_tensors
from tmm_core.errors import TMMError
from tmm_lab.cli import main
from tmm_lab.training.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:skipped")]

DAMAGES = int(os.environ.get("TMM_TEST_DAMAGES", "20"))
FIRST = int(os.environ.get("TMM_TEST_DAMAGES_SEED", "0"))
MORE = 3  # steps that an unfinished run has to go


def flip(data: bytes, rng: random.Random, bits: int) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(bits):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(256) + data[at + 256 :]


def lose_the_middle(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + data[b:]


CHANGES: list[Callable[[bytes, random.Random], bytes]] = [
    lambda data, rng: flip(data, rng, 1),
    lambda data, rng: flip(data, rng, 8),
    overwrite,
    lose_the_middle,
    lambda data, rng: data[: rng.randrange(len(data) + 1)],
    lambda data, rng: b"",
    lambda data, rng: bytes(len(data)),
    lambda data, rng: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    lambda data, rng: data + rng.randbytes(rng.randrange(1, 300)),
    lambda data, rng: re.sub(rb"\d", lambda match: b"%d" % rng.randrange(10), data),  # still text, and other numbers
]


def damage(folder: Path, rng: random.Random) -> str:
    """Damage a file of a run; return what was done."""
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    name, kind = str(path.relative_to(folder)), rng.randrange(len(CHANGES) + 2)
    others = [other for other in sorted(folder.rglob(path.name)) if other.is_file() and other != path]
    if kind == len(CHANGES):
        path.unlink()
    elif kind > len(CHANGES) and others:
        shutil.copyfile(rng.choice(others), path)  # as of another step
    else:
        path.write_bytes(CHANGES[kind % len(CHANGES)](path.read_bytes(), rng))
    return f"{name}, kind {kind}"


def readable(folder: Path) -> dict[str, Path]:
    """Return by name what programs read of a run: its models, and the parameters of each evaluation."""
    names = "model", "checkpoints/step-00000008", "checkpoints/step-00000012"
    lags = (f"parameters/step-{step:08d}.safetensors" for step in (4, 8, 12))
    return {name: folder / name for name in (*names, *lags) if (folder / name).exists()}


def contents(path: Path) -> str:
    """Return the digest of what is loaded from a model folder, a run or a file of tensors, or why nothing is."""
    try:
        params, *others = (read_tensors(path),) if path.is_file() else load_params(path)
    except TMMError as error:
        return str(error)
    found = hashlib.sha256(repr([getattr(other, "fingerprint", other) for other in others]).encode())
    for name in sorted(params):
        found.update(name.encode() + np.ascontiguousarray(params[name]).tobytes())
    return found.hexdigest()


class Runs:
    """A finished run and one to be resumed, as they were written, and what they give."""

    def __init__(self, folder: Path, text: Path) -> None:
        self.finished = folder / "finished"
        assert main(["train", "--text", str(text), "--out", str(self.finished), *WHOLE, "--vocab", "300"]) == 0
        self.unfinished = unfinished(self.finished, folder / "unfinished", steps=STEPS + MORE).folder
        self.text = text
        self.given = {name: contents(path) for name, path in readable(self.finished).items()}
        self.shown: dict[tuple[str, ...], str] = {}
        self.ends: set[bytes] = set()
        for step in (STEPS, 8, None):  # resumed from either checkpoint, or from the beginning
            run = Run.open(shutil.copytree(self.unfinished, folder / f"from-{step}"))
            for path in checkpoints(run.checkpoints):
                if step is None or path.name > f"step-{step:08d}":
                    shutil.rmtree(path)
            assert main(["train", "--resume", str(run.folder)]) == 0
            self.ends.add(weights(run.folder))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    return Runs(tmp_path_factory.mktemp("damages"), text)


def command(runs: Runs, folder: Path, rng: random.Random) -> list[str]:
    """Return a command that uses a run."""
    where = str(rng.choice([folder, *(path.parent for path in sorted(folder.rglob("config.json")))]))
    choices = [
        ["generate", where, "--prompt", "the head", "--temperature", "0", "--tokens", "12"],
        ["eval", where, "--text", str(runs.text)],
        ["index", where, "--json", "--no-plot"],
        ["index", str(folder), "--over-time", "--json", "--no-plot"],
    ]
    return rng.choice(choices)


def shown_by(name: str, out: str) -> set[str]:
    """Return what a command says of weights and texts: the parts that do not name a folder."""
    if name == "generate":
        return {out}
    if name == "index":
        found = json.loads(out)
        return {str(found.get("steps")), *map(str, found["filters"])}
    return set(re.findall(r"^  (.+ \d\.\d+)$", out, re.M))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + DAMAGES))
def test_what_is_used_is_what_was_written(
    seed: int, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    resumed = rng.random() < 0.3
    folder = shutil.copytree(runs.unfinished if resumed else runs.finished, tmp_path / "run")
    done = damage(folder, rng)
    for name, path in readable(folder).items():
        found = contents(path)
        assert found == runs.given[name] or str(path.parent) in found, f"{done}: {found}"
    found = contents(folder)
    assert found in runs.given.values() or str(folder) in found, f"{done}: {found}"
    argv = ["train", "--resume", str(folder)] if resumed else command(runs, folder, rng)
    capsys.readouterr()
    code = main(argv)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2), done
    assert "Traceback" not in out + err, done
    assert "bug" not in err, f"{done}: {err}"
    if code:
        assert err.splitlines()[-1].startswith("tmm: error: "), f"{done}: {err}"
        assert str(folder) in err, f"{done}: {err}"
    elif resumed:
        assert weights(folder) in runs.ends, done
    else:
        assert_shown_as_written(runs, argv, out, err, done, capsys)


def assert_shown_as_written(
    runs: Runs, argv: list[str], out: str, err: str, done: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a command shows is what it shows of the models as they were written, and what is lacking is said."""
    name = argv[0]
    places = ["."] if "--over-time" in argv else ["model", *(f"checkpoints/step-{n:08d}" for n in (8, STEPS))]
    allowed = [shown_by(name, shown(runs, argv, place, capsys)) for place in places]
    found = shown_by(name, out)
    if found in allowed:
        return
    assert name == "eval" or "--over-time" in argv, f"{done}: {argv} shows {out}"
    if name == "eval":
        assert any(found < one for one in allowed), f"{done}: {out}"
        assert "tmm: without n-grams" in err, f"{done}: {err}"
    else:
        assert "parameters" in done, "a lost evaluation is not shown"


def shown(runs: Runs, argv: list[str], place: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what a command says of an intact model, once computed."""
    key = " ".join(argv[2:]), place
    if (argv[0], *key) not in runs.shown:
        assert main([argv[0], str(runs.finished / place), *argv[2:]]) == 0
        runs.shown[argv[0], *key] = capsys.readouterr().out
    return runs.shown[argv[0], *key]
