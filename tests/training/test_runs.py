"""Training runs of either framework: what they leave, and that nothing is lost when they are cut short."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator
from support.commands import refused
from support.training_runs import (
    COMMON,
    STEPS,
    fail_second,
    recorded,
    records,
    signal_at,
    traces,
    unfinished,
    weights,
)

from tmm_adapters.checkpoints import checkpoints, newest_intact, step_of
from tmm_adapters.files import SUMS, digest
from tmm_adapters.pretrained import read_tensors
from tmm_lab.cli import main
from tmm_lab.evaluation.measure import Batch
from tmm_lab.evaluation.torch_model import TorchModel
from tmm_lab.training.runs import Run
from tmm_lab.training.schedule import learning_rate_factor
from tmm_lab.training.torch.trainer import TorchTrainer

pytestmark = pytest.mark.usefixtures("one_thread")

Arguments = Callable[..., list[str]]


def test_a_run_leaves_what_it_promises(framework: str, finished: Path) -> None:
    run = Run.open(finished)
    assert run.description["finished"]
    assert run.description["options"]["framework"] == framework
    assert run.plot.read_bytes().startswith(b"\x89PNG")
    assert [step_of(path) for path in checkpoints(run.checkpoints)] == [8, 12]
    assert list(run.logged_parameters()) == [4, 8, 12]
    assert {n: p.shape for n, p in read_tensors(run.logged_parameters()[12]).items()} == {"blocks.0.mix.lags": (2, 16)}
    assert run.samples.read_text().count("== ") == 4  # three evaluations and the end
    evaluated = recorded(finished, "eval_bits_per_byte")
    assert list(evaluated) == [4, 8, 12]
    assert evaluated[12] < evaluated[4] < 8.5
    assert records(finished)[-1]["tokens"] == STEPS * 4 * 16


def test_the_learning_rate_of_a_run_follows_the_schedule(finished: Path) -> None:
    width = Run.open(finished).description["config"]["d_model"]
    expected = {step + 1: 0.768 / width * learning_rate_factor(step, STEPS, 200) for step in range(STEPS)}
    assert recorded(finished, "learning_rate") == pytest.approx(expected)


def test_losses_between_two_records_are_averaged(
    framework: str, finished: Path, arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the session before, too."""
    with monkeypatch.context() as patch:
        signal_at(patch, step=6)
        assert main(arguments(framework, tmp_path / "run", "--log-every", "100")) == 130
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    each, averaged = recorded(finished, "loss"), recorded(tmp_path / "run", "loss")
    assert list(averaged) == [1, 4, 8, 12], "the first, and those of evaluations"
    assert averaged[8] == pytest.approx(np.mean([each[step] for step in range(5, 9)]))


def test_the_gradient_is_clipped_to_the_norm_given_and_0_is_no_norm(
    framework: str, arguments: Arguments, tmp_path: Path
) -> None:
    """The first step of AdamW is the same for every scale of the gradient; later ones tell."""
    weights = {}
    for clip in ("0", "1e9", "0.01"):
        out = tmp_path / clip
        assert main(arguments(framework, out, "--clip", clip, "--steps", "3", "--evaluations", "1")) == 0
        weights[clip] = read_tensors(out / "model" / "model.safetensors")
        assert min(recorded(out, "grad_norm").values()) > 0.01, "measured before it is clipped"
    for name, array in weights["0"].items():
        np.testing.assert_allclose(array, weights["1e9"][name], rtol=0, atol=1e-6, err_msg=name)
    largest = max(np.abs(array - weights["0.01"][name]).max() for name, array in weights["0"].items())
    assert largest > 1e-4


# Interrupted and resumed


def test_ctrl_c_saves_and_a_resumed_run_ends_with_the_same_bits(
    framework: str,
    finished: Path,
    arguments: Arguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        signal_at(patch, step=6)
        assert main(arguments(framework, out)) == 130
    assert f"saved after step 6; to go on: tmm train --resume {out}" in capsys.readouterr().out
    assert newest_intact(out / "checkpoints") == (out / "checkpoints" / "step-00000006", [])
    assert main(["train", "--resume", str(out)]) == 0
    assert weights(out) == weights(finished)
    assert traces(out) == traces(finished)


def test_what_came_after_the_checkpoint_is_recorded_once(finished: Path, tmp_path: Path) -> None:
    """A process was killed at the end: records, samples and parameters of steps that are done again are there."""
    run = unfinished(finished, tmp_path / "killed", step=8)
    half_written = [run.folder / ".run.json.0123abcd.part", run.data / ".text.0123abcd.part"]
    half_written += [run.parameters / ".step-00000012.safetensors.89abcdef.part", run.folder / ".model.0a1b2c3d.part"]
    half_written[-1].mkdir()
    for path in half_written[:-1]:
        path.write_bytes(b"{")
    theirs = run.data / ".text.mine.part"
    theirs.write_bytes(b"")
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert weights(run.folder) == weights(finished)
    theirs.unlink()
    assert not list(run.folder.rglob(".*")), "what was half written is swept away"
    assert traces(run.folder) == traces(finished)
    lists = list(run.folder.rglob(SUMS))
    assert {path.parent.name for path in lists} > {run.folder.name, "parameters", "model"}
    for path in lists:  # as sha256sum --check does
        lines = [line.split("  ", 1) for line in path.read_text().splitlines()]
        assert lines == [[digest(path.parent / name), name] for _, name in lines], path


def test_an_evaluation_that_a_signal_cut_short_is_made_up_for(
    arguments: Arguments, in_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nats(self: TorchModel, batch: Batch) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch)

    original, out = TorchModel.nats, tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(TorchModel, "nats", nats)
        assert main(arguments("torch", out)) == 130
    assert newest_intact(out / "checkpoints") == (out / "checkpoints" / "step-00000004", [])
    assert main(["train", "--resume", str(out)]) == 0
    assert traces(out) == traces(in_torch)


def test_sigterm_ends_with_143(arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_at(monkeypatch, step=2, number=signal.SIGTERM)
    assert main(arguments("torch", tmp_path / "run")) == 143
    assert newest_intact(tmp_path / "run" / "checkpoints")[0] is not None


@pytest.mark.parametrize("place", ["__init__", "step"])
def test_a_stop_before_the_first_step_is_compiled_does_not_wait_for_it(
    place: str,
    arguments: Arguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """PyTorch's compiler waits for ever for processes that the same signal has ended; here it is left out."""
    original = getattr(TorchTrainer, place)
    monkeypatch.setattr(Accelerator, "prepare", lambda self, model: model)

    def signalled(*args: object, **kwargs: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        assert place == "__init__", "the step waits for a compiler that is gone"
        return original(*args, **kwargs)

    monkeypatch.setattr(TorchTrainer, place, signalled)
    with pytest.raises(SystemExit) as ended:
        main(arguments("torch", out := tmp_path / "run", "--compile"))
    assert ended.value.code == 143
    assert f"stopped before the first step was compiled; to go on: tmm train --resume {out}" in capsys.readouterr().out


def test_a_run_that_missed_only_its_end_is_finished(finished: Path, tmp_path: Path) -> None:
    run = unfinished(finished, tmp_path / "late")
    run.plot.unlink()
    run.metrics.write_text("".join(run.metrics.read_text().splitlines(keepends=True)[:-1]))  # the last evaluation too
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert weights(run.folder) == weights(finished)
    assert run.plot.exists()
    assert recorded(run.folder, "eval_bits_per_byte") == recorded(finished, "eval_bits_per_byte")


def test_minutes_become_steps_and_are_stored(
    framework: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "minutes"
    signal_at(monkeypatch, step=30)
    command = ["train", "--framework", framework, "--text", str(text), "--out", str(out), "--minutes", "5", *COMMON]
    assert main([*command, "--accumulate", "2"]) == 130
    assert Run.open(out).description["steps"] > 100
    assert Run.open(out).description["plan"][0][0] <= 30
    assert (out / "checkpoints" / "step-00000030").is_dir()


# What goes wrong


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(("tmm_lab.training.{}.trainer.write_model",), marks=pytest.mark.slow),
        ("tmm_lab.training.{}.trainer.write_moments",),
        pytest.param(("tmm_adapters.files._write_sums",), marks=pytest.mark.slow),
        ("pathlib.Path.rename", "step-"),
    ],
    ids=["model", "moments", "complete", "rename"],
)
def test_a_full_disk_leaves_the_earlier_checkpoint(
    framework: str,
    arguments: Arguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    point: tuple[str, ...],
) -> None:
    out = tmp_path / "full"
    fail_second(monkeypatch, point[0].format(framework), *point[1:])
    assert main(arguments(framework, out)) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert f"make room, then tmm train --resume {out}" in said
    assert "Traceback" not in said
    assert newest_intact(out / "checkpoints") == (out / "checkpoints" / "step-00000004", [])
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000004"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.txt", "checkpoints", "parameters", "training.png"])
def test_what_is_in_the_way_is_named(
    name: str, in_torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder where a file is to be, or a file where a folder is."""
    run = unfinished(in_torch, tmp_path / "run", step=8)
    path = run.folder / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("in the way")
    else:
        path.unlink()
        (path / "in the way").mkdir(parents=True)
    said = refused(capsys, "train", "--resume", run.folder, code=1)
    assert f"cannot write {path}" in said
    assert f"move away what is in its place, then tmm train --resume {run.folder}" in said
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["train", "--resume", str(run.folder)]) == 0


def test_divergence_ends_the_run(
    framework: str,
    arguments: Arguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tmm_lab.training.schedule.learning_rate_factor", lambda *_: 1e30)
    assert main(arguments(framework, tmp_path / "run")) == 2
    assert "training has diverged: the loss is" in capsys.readouterr().err


def test_divergence_between_two_records_is_noticed_by_the_evaluation(
    arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the last step makes the model one that knows nothing, and its loss was measured before."""
    monkeypatch.setattr(
        "tmm_lab.training.schedule.learning_rate_factor", lambda step, *_: float("nan") if step == 3 else 1.0
    )
    assert main(arguments("torch", tmp_path / "run", "--steps", "4", "--evaluations", "1")) == 2
    assert "training has diverged: the loss is nan at step 4" in capsys.readouterr().err
    assert recorded(tmp_path / "run", "loss").keys() == {1, 2, 3, 4}
