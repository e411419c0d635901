"""Runs whose files were damaged or edited: what can go on goes on, what cannot is refused in one clear line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tmm_adapters.checkpoints import checkpoints, newest_intact, step_of
from tmm_lab.cli import main
from tmm_lab.data.dataset import TrainingSamples
from tmm_lab.training.listing import find_runs
from tmm_lab.training.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 6
OPTIONS = [
    *("--d-model", "8", "--n-layers", "1", "--n-heads", "2", "--max-len", "16", "--batch", "2", "--device", "cpu"),
    *("--steps", str(STEPS), "--evaluations", "1", "--checkpoint-steps", "3", "--log-every", "2"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "words.txt").write_text("the head mixes every token with those before it. " * 60)
    out = folder / "run"
    assert main(["train", *OPTIONS, "--text", str(folder / "words.txt"), "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    """A run that has two steps to go, of the kind that an interruption leaves."""
    shutil.copytree(finished, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    run.describe(finished=False, steps=STEPS + 2, options={**run.description["options"], "steps": STEPS + 2})
    shutil.rmtree(run.model)
    return run


def resume(run: Run, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["train", "--resume", str(run.folder)])
    return code, capsys.readouterr().err


def edit(**changes: object) -> Callable[[dict[str, object]], None]:
    return lambda description: description.update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit(config=None), "is damaged: 'config' is None"),
        (edit(data=3), "is damaged: 'data' is 3"),
        (edit(options=[]), "is damaged: 'options' is []"),
        (edit(steps="x"), "is damaged: 'steps' is 'x'"),
        (edit(steps=-1), "is damaged: 'steps' is -1"),
        (edit(baselines={"zlib": "cheap"}), "is damaged: 'baselines' is {'zlib': 'cheap'}"),
        (edit(finished="no"), "is damaged: 'finished' is 'no'"),
        (lambda d: d.pop("preset"), "is damaged: 'preset' is missing"),
        (edit(started=1e300), "is damaged: 'started' is 1e+300"),
        (edit(sha357="0"), "is damaged: 'sha357' is '0'"),
        (lambda d: d["data"].update(colour="red"), "describes no run that can be used"),
        (lambda d: d["data"].update(held_out_bytes="x"), "describes no run that can be used"),
        (lambda d: d["options"].update(precision="float16"), "precision must be one of auto, float32, bfloat16"),
        (lambda d: d["options"].update(learning_rate=None), "the options of the run have no learning_rate"),
        (lambda d: d["options"].update(batch="x"), "describes no run that can be used"),
        (lambda d: d["config"].update(d_model=-1), "describes no run that can be used (d_model must be"),
        (lambda d: d["config"].update(d_mlp=5), "its d_mlp is 5, there it is None"),
    ],
)
def test_a_description_that_was_edited_is_refused(
    change: Callable[[dict[str, object]], None], message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.folder / "run.json"
    description = json.loads(path.read_text())
    change(description)
    path.write_text(json.dumps(description))
    assert "is not what was written: restore it, or, if the change was meant, remove" in resume(run, capsys)[1]
    del description["sha256"]
    path.write_text(json.dumps(description))
    code, error = resume(run, capsys)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "damage",
    [
        shutil.rmtree,
        lambda data: (data / "text").unlink(),
        lambda data: (data / "text.json").unlink(),
        lambda data: (data / "text.json").write_bytes(b"\xff"),
        lambda data: (data / "text").write_bytes((data / "text").read_bytes()[:-9]),
        lambda data: (data / "text").write_bytes((data / "text").read_bytes().replace(b"mixes", b"mixer")),
        lambda data: (data / "text").write_bytes(b"\xfe" * (data / "text").stat().st_size),
    ],
)
def test_a_text_that_is_not_the_one_trained_on_is_refused(
    damage: Callable[[Path], None], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run.data)
    code, error = resume(run, capsys)
    assert code == 2
    assert "the text of the run cannot be used" in error
    assert error.count("\n") == 1
    assert [step_of(path) for path in checkpoints(run.checkpoints)] == [3, STEPS]


@pytest.mark.parametrize("command", [["eval", "--text", __file__], ["index", "--over-time"]], ids=["eval", "index"])
def test_a_description_that_was_edited_is_refused_wherever_it_is_read(
    command: list[str], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.describe(data={"text": 3})
    assert main([command[0], str(run.folder), *command[1:]]) == 2
    assert "describes no run that can be used" in capsys.readouterr().err


def test_a_step_of_another_size_goes_on_after_the_last_sample(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another number of devices: no sample is left out or read twice, and all that are read are counted."""
    read: list[int] = []

    def batch(self: TrainingSamples, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        read.extend(indices)
        return original(self, indices)

    original = TrainingSamples.batch
    monkeypatch.setattr(TrainingSamples, "batch", batch)
    run.describe(options={**run.description["options"], "batch": 3})
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert "tmm: a step trains on 3 samples here, and did on 2:" in capsys.readouterr().err
    done = 2 * STEPS
    assert read == list(range(done, done + 3 * 3)), "two steps, and the batch that is read ahead"
    last = run.records()[-1]
    assert last["tokens"] == (done + 2 * 3) * 16
    assert last["epoch"] == pytest.approx(last["tokens"] / tokens_per_pass(run))


def tokens_per_pass(run: Run) -> float:
    """Return the tokens of a pass, from the records of before."""
    first = run.records()[0]
    return first["tokens"] / first["epoch"]


def test_a_run_that_was_told_to_end_earlier_ends_where_it_is(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.describe(steps=STEPS - 1)
    assert resume(run, capsys)[0] == 0
    assert Run.open(run.folder).records()[-1]["step"] == STEPS


def test_records_outlive_a_damaged_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = run.records()
    first, rest = run.metrics.read_bytes().split(b"\n", 1)
    run.metrics.write_bytes(first + b"\n" + b'{"st\xb8ep": 1\n[]\n{"loss": 2.0}\n' + rest)
    assert run.records() == before
    assert resume(run, capsys)[0] == 0
    assert run.records()[: len(before)] == before


def test_damaged_checkpoints_do_not_crowd_out_intact_ones(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """They have higher numbers than the checkpoints of a run that begins again because of them."""
    for path in checkpoints(run.checkpoints):
        (path / "model.safetensors").write_bytes(b"")
        path.rename(path.with_name(f"step-{1000 + step_of(path):08d}"))
    (run.checkpoints / "step-by-step").mkdir()  # the user's own
    assert resume(run, capsys)[0] == 0
    newest, skipped = newest_intact(run.checkpoints)
    assert newest is not None
    assert (step_of(newest), skipped) == (STEPS + 2, [])
    assert len(checkpoints(run.checkpoints)) == 2
    assert (run.checkpoints / "step-by-step").is_dir()


def test_a_run_without_its_text_is_measured_without_n_grams(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text = str(run.folder.parent / "other.txt")
    Path(text).write_text("another text " * 9)
    shutil.rmtree(run.data)
    capsys.readouterr()
    assert main(["eval", str(run.folder), "--text", text]) == 0
    said = capsys.readouterr()
    assert "has lost the training text" in said.err
    assert set(re.findall(r"^  (this model|zlib|\S+) +\d", said.out, re.M)) == {"this model", "zlib"}


@pytest.mark.parametrize(
    ("data", "reason"), [("[" * 200_000, "nested too deeply"), ("[1]", "expected an object, got a list")]
)
def test_a_description_that_is_no_object_hides_no_other_run(data: str, reason: str, finished: Path) -> None:
    other = finished.parent / "other"
    other.mkdir(exist_ok=True)
    (other / "run.json").write_text(data)
    runs, (wrong,) = find_runs(finished.parent)
    assert [run.folder for run in runs] == [finished]
    assert reason in wrong
    assert str(other / "model") in wrong
