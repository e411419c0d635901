"""Training goes on from anything: a run that was hardly begun, a finished one, a model; and as was planned."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.commands import refused
from support.requirements import import_or_skip
from support.training_runs import COMMON, STEPS, recorded, records, traces, unfinished, weights

from tmm_adapters.checkpoints import checkpoints, step_of
from tmm_adapters.pretrained import load_params, read_tensors, save_params
from tmm_lab.cli import main
from tmm_lab.training.runs import Run
from tmm_lab.training.schedule import learning_rate_factor

pytestmark = pytest.mark.usefixtures("one_thread")

Arguments = Callable[..., list[str]]


# A run that was hardly begun


def abandon(out: Path, whole: Path, *files: str) -> None:
    """Leave what a process leaves that was killed while it prepared the run: the description, and some files."""
    out.mkdir()
    half = {"prepared": False, "finished": False, "baselines": {}, "plan": []}
    Run(out, {}).describe(**Run.open(whole).description | half)
    for name in files:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(b"half")


@pytest.mark.parametrize("files", [(), ("data/.text.0123abcd.part",), ("data/text", "tokenizer.json", "data/x.npy")])
@pytest.mark.parametrize("command", ["--out", "--resume"])
def test_what_was_killed_while_it_was_prepared_begins_again(
    command: str, files: tuple[str, ...], arguments: Arguments, in_torch: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    abandon(out, in_torch, *files)
    assert main(arguments("torch", out) if command == "--out" else ["train", "--resume", str(out)]) == 0
    assert weights(out) == weights(in_torch)
    assert traces(out) == traces(in_torch)
    assert not (out / "data" / "x.npy").exists()
    assert not list(out.rglob(".*"))


def test_a_folder_that_has_not_even_a_description_is_new(arguments: Arguments, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".run.json.0123abcd.part").write_bytes(b"{")
    assert main(arguments("torch", out, "--steps", "1", "--evaluations", "1")) == 0
    assert not list(out.rglob(".*"))


def test_a_run_that_has_begun_is_not_begun_again(
    in_torch: Path, arguments: Arguments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(in_torch, tmp_path / "run")
    said = refused(capsys, *arguments("torch", run.folder))
    assert f"it holds a run; to go on with it, tmm train --resume {run.folder}" in said


# A run that gets another length


def test_a_finished_run_goes_on(framework: str, finished: Path, tmp_path: Path) -> None:
    """Its first part stays, and from there on it is a run of that many steps."""
    out, steps = tmp_path / "longer", STEPS + 4
    shutil.copytree(finished, out)
    assert main(["train", "--resume", str(out), "--steps", str(steps)]) == 0
    assert records(out)[: len(records(finished))] == records(finished)
    rates, peak = recorded(out, "learning_rate"), Run.open(finished).description["options"]["learning_rate"]
    expected = {step + 1: peak * learning_rate_factor(step, steps, 200) for step in range(STEPS, steps)}
    assert {step: rates[step] for step in expected} == pytest.approx(expected)
    run = Run.open(out)
    assert run.description["finished"]
    assert run.parsed().options.steps == run.description["steps"] == steps
    assert step_of(checkpoints(run.checkpoints)[-1]) == steps
    assert weights(out) != weights(finished)
    newest = checkpoints(run.checkpoints)[-1] / "model.safetensors"
    assert newest.read_bytes() == weights(out), "the model is the one of the last step"


def test_a_run_cannot_be_shorter_than_it_is(in_torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "train", "--resume", in_torch, "--steps", STEPS)
    assert f"--steps {STEPS} is the length of the whole run, of which {STEPS} steps are done: give more" in said
    shutil.copytree(in_torch, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    said = refused(capsys, "train", "--resume", tmp_path / "bare", "--steps", STEPS + 1)
    assert f"begin a new run with its model, tmm train --from {tmp_path / 'bare'}" in said
    assert (tmp_path / "bare" / "model" / "model.safetensors").exists()


# A model


STILL = ["--steps", "1", "--evaluations", "1", "--learning-rate", "1e-30", "--weight-decay", "0"]


@pytest.fixture
def foreign(in_torch: Path, tmp_path: Path) -> Path:
    """A model folder that another tool wrote: in bfloat16, and with no digests and no tokenizer."""
    torch = import_or_skip("torch")
    tensors, config, _ = load_params(in_torch, "pt")
    folder = tmp_path / "foreign"
    save_params(folder, {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, config)
    (folder / "SHA256SUMS").unlink()
    return folder


def begin_from(source: Path, text: Path, out: Path, *more: str) -> list[str]:
    options = ["--batch", "2", "--device", "cpu", "--held-out-bytes", "400", "--precision", "float32"]
    return ["train", "--from", str(source), "--text", str(text), "--out", str(out), *options, *more]


def test_training_begins_with_a_trained_model(framework: str, in_torch: Path, text: Path, tmp_path: Path) -> None:
    """Whichever framework trained it; the run needs that model no more."""
    source, out = tmp_path / "source", tmp_path / "run"
    shutil.copytree(in_torch, source)
    assert main(begin_from(source, text, out, "--framework", framework, *STILL)) == 0
    before, after = (read_tensors(folder / "model" / "model.safetensors") for folder in (in_torch, out))
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-12, err_msg=name)
    assert recorded(out, "eval_bits_per_byte")[1] == pytest.approx(
        recorded(in_torch, "eval_bits_per_byte")[STEPS], rel=1e-5
    )
    shutil.rmtree(source)
    run = unfinished(out, tmp_path / "again", step=0)
    assert main(["train", "--resume", str(run.folder)]) == 0, "from its first step, though the model has gone"
    assert weights(run.folder) == weights(out)
    assert traces(run.folder) == traces(out)


def test_training_begins_with_a_model_of_another_tool(
    foreign: Path, in_torch: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *begin_from(foreign, text, tmp_path / "run", *STILL))
    assert "has no tokenizer.json: give the one that it was trained with, --tokenizer FILE" in said
    tokenizer = ["--tokenizer", str(in_torch / "tokenizer.json")]
    assert main(begin_from(foreign, text, tmp_path / "run", *STILL, *tokenizer)) == 0
    before, after = (read_tensors(folder / "model.safetensors") for folder in (foreign, tmp_path / "run" / "model"))
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-12, err_msg=name)
        assert after[name].dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--d-model", "16"], "--from takes the model as it is: leave out --d-model"),
        (["--preset", "paper", "--arch", "tmm"], "leave out --arch, --preset"),
        (["--vocab", "300"], "--vocab trains a tokenizer, and the model in"),
        (["--tokenizer", "other.json"], "other.json is another tokenizer than that of the model in"),
        (["--tokenizer", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    options: list[str],
    message: str,
    in_torch: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tmm_adapters.tokenizers import train_tokenizer

    monkeypatch.chdir(tmp_path)
    train_tokenizer(["a text of its own, with words"], 257).save(tmp_path)
    Path("tokenizer.json").rename("other.json")
    assert message in refused(capsys, *begin_from(in_torch, text, tmp_path / "run", *STILL, *options))
    assert not (tmp_path / "run").exists()


# A run of given minutes


def test_a_run_of_given_minutes_is_what_its_plan_says(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained anew by the plan that it was given as it went, it is the same run, whatever time that takes."""
    out, again = tmp_path / "minutes", tmp_path / "again"
    command = ["train", "--text", str(text), "--out", str(out), "--minutes", "0.05", *COMMON, "--log-every", "50"]
    assert main([*command, "--framework", "torch"]) == 0
    run = Run.open(out)
    assert run.description["plan"]
    assert run.description["steps"] == records(out)[-1]["step"]
    assert list(recorded(out, "eval_bits_per_byte"))[-1] == run.description["steps"]
    unfinished(out, again, step=0)
    monkeypatch.setattr("tmm_lab.training.time_budget.TimeBudget.step_done", lambda *_: None)
    assert main(["train", "--resume", str(again)]) == 0
    assert Run.open(again).description["plan"] == run.description["plan"]
    assert weights(again) == weights(out)
    assert traces(again) == traces(out)
