"""Training runs: what they leave, and that nothing is lost when they are cut short."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.training_runs import CHEAP, ONE_THREAD, SETTLED, fail_second, records, signal_at, weights, write_words

from tmm_adapters.pretrained import read_tensors
from tmm_adapters.tokenizers import ByteTokenizer
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig
from tmm_lab.cli import main
from tmm_lab.data.text import open_text
from tmm_lab.data.tokens import bits_per_byte, evaluation_windows, open_tokens
from tmm_lab.evaluation.measure import held_out_nats
from tmm_lab.training import checkpoints, session
from tmm_lab.training.interruption import Interruption
from tmm_lab.training.moments import read_moments
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run
from tmm_lab.training.schedule import learning_rate_factor
from tmm_lab.training.session import settled
from tmm_lab.training.torch import place as torch_place
from tmm_lab.training.torch import state as torch_state
from tmm_lab.training.torch.measure import TorchModel
from tmm_lab.training.torch.place import TorchPlace
from tmm_lab.training.torch.trainer import LanguageModelTrainer

# The Trainer's libraries warn as they please.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

STEPS = 12


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("text"))


@pytest.fixture
def arguments(text: Path) -> Callable[..., list[str]]:
    def build(out: Path, *more: str) -> list[str]:
        return ["train", "--text", str(text), "--out", str(out), "--steps", str(STEPS), *SETTLED, *more]

    return build


@pytest.fixture(scope="module")
def finished(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", "--text", str(text), "--out", str(out), "--steps", str(STEPS), *SETTLED]) == 0
    return out


# What a run leaves


def test_a_run_leaves_what_it_promises(finished: Path) -> None:
    run = Run.open(finished)
    assert run.description["finished"]
    assert run.plot.read_bytes().startswith(b"\x89PNG")
    assert [checkpoints.step_of(path) for path in checkpoints.checkpoints(run.checkpoints)] == [8, 12]
    assert sorted(p.name for p in run.lags.iterdir()) == [f"step-{s:08d}.safetensors" for s in (4, 8, 12)]
    assert read_tensors(run.lags / "step-00000012.safetensors")["blocks.1.mix.lags"].shape == (2, 16)
    assert run.samples.read_text().count("== ") == 4  # three evaluations and the end
    evaluated = {r["step"]: r["eval_bits_per_byte"] for r in records(finished) if "eval_bits_per_byte" in r}
    assert list(evaluated) == [4, 8, 12]
    assert evaluated[12] < evaluated[4] < 8.5
    assert records(finished)[-1]["tokens"] == STEPS * 4 * 16


def test_no_file_of_a_run_is_a_pickle(finished: Path) -> None:
    suffixes = {path.suffix for path in finished.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".jsonl", ".npy", ".png", ".safetensors", ".txt", ""}  # the text itself has none


def test_every_held_out_byte_is_paid_for_once(finished: Path) -> None:
    """Against a sum over single windows by hand, and against the record of the run."""
    run = Run.open(finished)
    config = TMMConfig.from_dict(run.description["config"])
    model = LanguageModel.from_params(read_tensors(run.model / "model.safetensors"), config)
    tokens = open_tokens(run.data / "held_out.npy")
    nats, done = 0.0, 1
    while done < len(tokens):  # half a context further each time, and the last window ends where the text ends
        stop = min(done + (config.max_len if done == 1 else config.max_len // 2), len(tokens))
        ids = torch.from_numpy(tokens[stop - config.max_len - 1 : stop].astype(np.int64))
        documents = torch.cumsum(ids == ByteTokenizer.end_of_text, 0)[None]
        logits = model(ids[None, :-1], segment_ids=documents[:, :-1])["logits"][0, done - stop :]
        nats += torch.nn.functional.cross_entropy(logits, ids[done - stop :], reduction="sum").item()
        done = stop
    windows = evaluation_windows(tokens, config.max_len, ByteTokenizer.end_of_text)
    assert held_out_nats(TorchModel(model), windows, batch=3) == pytest.approx(nats, rel=1e-6)
    held_out = open_text(run.data / "text").split(400)[1]
    recorded = records(finished)[-1]["eval_bits_per_byte"]
    assert recorded == pytest.approx(bits_per_byte(nats, held_out), rel=2e-3)  # it may be in mixed precision
    halves = [held_out_nats(TorchModel(model), windows, batch=2, rank=rank, world=2) for rank in range(2)]
    assert sum(halves) == pytest.approx(held_out_nats(TorchModel(model), windows, batch=2), rel=1e-6)


# Interrupted and resumed


def test_ctrl_c_saves_and_a_resumed_run_ends_with_the_same_weights(
    finished: Path,
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        signal_at(patch, batch=12)  # batches are fetched one ahead: in step 5 or 6
        assert main(arguments(out)) == 130
    said = capsys.readouterr().out
    assert f"tmm train --resume {out}" in said
    newest, skipped = checkpoints.newest_intact(out / "checkpoints")
    assert newest is not None
    assert skipped == []
    assert 4 < checkpoints.step_of(newest) < 8
    torch.manual_seed(1234)  # whatever the process did in between
    assert main(["train", "--resume", str(out)]) == 0
    assert weights(out) == weights(finished)
    last = "checkpoints/step-00000012/optimizer.safetensors"
    assert (out / last).read_bytes() == (finished / last).read_bytes()
    same = [{k: r[k] for k in ("step", "eval_bits_per_byte") if k in r} for r in records(out)]
    assert [r for r in same if len(r) == 2] == [
        {k: r[k] for k in ("step", "eval_bits_per_byte")} for r in records(finished) if "eval_bits_per_byte" in r
    ]


def test_kill_9_loses_the_time_since_the_last_checkpoint_only(
    finished: Path, arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "killed"
    code = """if True:
        import os, signal, sys
        from tmm_lab.training.course import Course
        from tmm_lab.cli import main
        original = Course.step_done
        def step_done(self, step):
            if step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, step)
        Course.step_done = step_done
        main(sys.argv[1:])
    """
    command = [sys.executable, "-c", code, *arguments(out)]
    done = subprocess.run(command, capture_output=True, check=False, env=ONE_THREAD)
    assert done.returncode == -signal.SIGKILL
    assert main(["train", "--resume", str(out)]) == 0
    assert f"resuming from {out / 'checkpoints' / 'step-00000008'}" in capsys.readouterr().out
    assert weights(out) == weights(finished)


def test_sigterm_ends_with_143(
    arguments: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_at(monkeypatch, batch=6, number=signal.SIGTERM)
    assert main(arguments(tmp_path / "run")) == 143
    assert checkpoints.newest_intact(tmp_path / "run" / "checkpoints")[0] is not None


def test_the_second_signal_ends_at_once_but_not_an_echo_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        for now[0] in (10.0, 10.5):
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.exit_code == 130
        now[0] = 12.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_says_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(finished)]) == 2
    assert "is finished, nothing is left to resume" in capsys.readouterr().err


def test_one_process_at_a_time_trains_a_run(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = unfinished(finished, tmp_path / "busy")
    with run.occupied():
        before = sorted(run.folder.rglob("*"))
        assert main(["train", "--resume", str(run.folder)]) == 2
        assert "is being trained by another process" in capsys.readouterr().err
        assert sorted(run.folder.rglob("*")) == before
    with run.occupied():
        pass  # free again


def test_where_no_folder_can_be_made_another_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("a file")
    with pytest.raises(OSError, match=r"cannot make the folder runs/default-.* choose another --out"):
        Run.create(None, "default")


def test_of_two_runs_that_begin_at_once_in_one_folder_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmm_lab.training.runs.require_empty", lambda folder: None)  # each saw it empty
    Run.create(tmp_path / "run", "default")
    with pytest.raises(FileExistsError, match="is not empty: another run has just begun"):
        Run.create(tmp_path / "run", "default")


def test_a_run_that_missed_only_its_end_is_finished(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "late"
    shutil.copytree(finished, out)
    run = Run.open(out)
    run.describe(finished=False)
    shutil.rmtree(run.model)
    run.plot.unlink()
    run.forget_after(11)  # the last evaluation too
    assert main(["train", "--resume", str(out)]) == 0
    assert weights(out) == weights(finished)
    assert run.plot.exists()
    assert records(out)[-1]["eval_bits_per_byte"] == records(finished)[-1]["eval_bits_per_byte"]


# Checkpoints


def unfinished(finished: Path, out: Path) -> Run:
    """Return a copy of a run that could go on from its checkpoints."""
    shutil.copytree(finished, out)
    run = Run.open(out)
    run.describe(finished=False, steps=14, options={**run.description["options"], "steps": 14})
    shutil.rmtree(run.model)
    return run


def test_damaged_checkpoints_are_skipped_and_named(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(finished, tmp_path / "run")
    path = run.checkpoints / "step-00000012" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["train", "--resume", str(run.folder)]) == 0
    said = capsys.readouterr().out
    assert "skipped" in said
    assert "model.safetensors is damaged: its checksum is wrong" in said
    assert "step-00000008" in said


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "complete.json").unlink(), "incomplete"),
        (lambda d: (d / "complete.json").write_text("{"), "complete.json is damaged"),
        (lambda d: (d / "optimizer.safetensors").unlink(), "optimizer.safetensors is missing"),
        (lambda d: (d / "optimizer.safetensors").write_bytes(b"x"), "optimizer.safetensors is truncated: 1 bytes"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(
    finished: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    damage(tmp_path / "checkpoints" / "step-00000012")
    newest, skipped = checkpoints.newest_intact(tmp_path / "checkpoints")
    assert newest == tmp_path / "checkpoints" / "step-00000008"
    assert len(skipped) == 1
    assert reason in skipped[0]


def test_a_checkpoint_without_adam_is_not_taken_for_a_full_disk(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(finished, tmp_path / "bare")
    newest = checkpoints.checkpoints(run.checkpoints)[-1]
    files = json.loads((newest / checkpoints.COMPLETE).read_text())
    del files["optimizer.safetensors"]
    (newest / "optimizer.safetensors").unlink()
    (newest / checkpoints.COMPLETE).write_text(json.dumps(files))
    assert main(["train", "--resume", str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert "resume from another checkpoint" in said
    assert "make room" not in said


def test_a_checkpoint_has_its_name_only_when_complete(tmp_path: Path) -> None:
    """So whatever moment a process is killed at, what has a name is whole."""

    def write(folder: Path) -> None:
        (folder / "a").write_text("half")
        assert checkpoints.newest_intact(tmp_path) == (earlier, [])
        (folder / "a").write_text("whole")

    earlier = checkpoints.write_checkpoint(tmp_path, 1, lambda folder: None)
    later = checkpoints.write_checkpoint(tmp_path, 2, write)
    assert checkpoints.newest_intact(tmp_path) == (later, [])
    (tmp_path / ".step-00000003.99.part").mkdir()  # what a killed process leaves
    assert checkpoints.newest_intact(tmp_path) == (later, [])
    checkpoints.write_checkpoint(tmp_path, 4, lambda folder: None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000004"]


@pytest.mark.parametrize(
    "point",
    [
        ("tmm_lab.training.torch.trainer.write_model",),
        ("tmm_lab.training.torch.state.write_optimizer",),
        ("transformers.TrainerState.save_to_json",),
        ("tmm_lab.training.checkpoints.write_json",),
        ("pathlib.Path.rename", "step-"),
    ],
    ids=["model", "optimizer", "state", "complete", "rename"],
)
def test_a_full_disk_leaves_the_earlier_checkpoint(
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    point: tuple[str, ...],
) -> None:
    out = tmp_path / "full"
    fail_second(monkeypatch, *point)
    assert main(arguments(out)) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert f"make room, then tmm train --resume {out}" in said
    assert "Traceback" not in said
    newest, skipped = checkpoints.newest_intact(out / "checkpoints")
    assert newest is not None
    assert (newest.name, skipped) == ("step-00000004", [])
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_reader_that_has_gone_is_no_full_disk(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    run = unfinished(finished, tmp_path / "unread")
    monkeypatch.setattr("tmm_lab.training.reporter.Narration.sample", broken)
    with pytest.raises(BrokenPipeError):
        session.resume(run)


def test_hostile_pickles_in_a_checkpoint_do_not_run(finished: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (marker,))

    pickle.loads(pickle.dumps(Hostile()))
    assert marker.exists(), "the pickle is not hostile, and the test would prove nothing"
    marker.unlink()
    run = unfinished(finished, tmp_path / "run")
    names = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth", "training_args.bin")
    for name in (*names, "pytorch_model.bin"):
        (run.checkpoints / "step-00000012" / name).write_bytes(pickle.dumps(Hostile()))
        torch.save(Hostile(), run.checkpoints / "step-00000008" / name)
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert not marker.exists()


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    torch.manual_seed(5)
    torch_state.write_random(tmp_path)
    expected = torch.rand(3)
    torch.manual_seed(6)
    torch_state.read_random(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_evaluations_and_samples_disturb_no_random_numbers(finished: Path) -> None:
    """The generator that a run leaves is the one that its seed began: nothing has drawn from it."""
    newest = finished / "checkpoints" / "step-00000012" / "random.safetensors"
    torch.manual_seed(0)
    assert torch.equal(read_tensors(newest, "pt")["cpu"], torch.get_rng_state())


def test_the_state_of_another_model_is_refused(finished: Path) -> None:
    other = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16)
    with pytest.raises(ValueError, match=r"is of another model: .* does not fit"):
        read_moments(finished / "checkpoints" / "step-00000012", other)


# Minutes, schedule, order


def test_minutes_become_steps_and_are_stored(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "minutes"
    signal_at(monkeypatch, batch=40)
    assert main(["train", "--text", str(text), "--out", str(out), "--minutes", "5", *CHEAP]) == 130
    run = Run.open(out)
    steps = run.description["steps"]
    assert steps > 100
    newest, _ = checkpoints.newest_intact(run.checkpoints)
    assert newest is not None
    assert json.loads((newest / "trainer_state.json").read_text())["max_steps"] == steps


def test_the_learning_rate_of_a_run_follows_the_schedule(finished: Path) -> None:
    found = {r["step"]: r["learning_rate"] for r in records(finished) if "learning_rate" in r}
    width = Run.open(finished).description["config"]["d_model"]
    assert found[10] == pytest.approx(0.768 / width * learning_rate_factor(9, STEPS, 200))


def test_only_linear_maps_decay() -> None:
    model = LanguageModel(TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16, final_norm=True))
    decayed = LanguageModelTrainer.get_decay_parameter_names(SimpleNamespace(), model)
    projections = ["mix.in_proj", "mix.out_proj", "mlp.down", "mlp.up"]
    assert sorted(decayed) == [*(f"blocks.0.{name}.weight" for name in projections), "unembed.weight"]


def test_what_is_left_open_is_settled_and_what_is_given_stays() -> None:
    wide, narrow = TMMConfig(d_model=256), TMMConfig(d_model=128)
    left_open = settled(TrainingOptions(device="cpu"), narrow, torch_place)
    assert left_open.precision in ("float32", "bfloat16")
    wider = settled(TrainingOptions(device="cpu"), wide, torch_place)
    assert left_open.learning_rate == pytest.approx(2 * wider.learning_rate)
    given = TrainingOptions(learning_rate=0.5, precision="float32", device="cpu")
    assert settled(given, narrow, torch_place) == given


def test_divergence_ends_the_run(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--text", str(text), "--out", str(tmp_path / "run"), "--steps", "40", *CHEAP]
    assert main([*command, "--learning-rate", "1e30", "--warmup", "0", "--clip", "0"]) == 2
    assert "training has diverged: the loss is" in capsys.readouterr().err


def test_divergence_between_two_records_is_noticed_by_the_evaluation(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--text", str(text), "--out", str(tmp_path / "run"), "--steps", "4", *CHEAP]
    assert main([*command, "--learning-rate", "1e38", "--clip", "0", "--log-every", "100", "--evaluations", "1"]) == 2
    assert "training has diverged: the loss is nan at step 4" in capsys.readouterr().err


# Several processes


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_the_first_process_is_told_once(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broadcast(box: list[object], src: int) -> None:
        sent.append(list(box))
        box[:] = [None, True]

    def failing() -> None:
        raise ValueError("the text is empty")

    sent: list[list[object]] = []
    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    place = TorchPlace(SimpleNamespace(world_size=2, process_index=rank), "float32")
    with pytest.raises(ValueError if rank == 0 else SystemExit, match="the text is empty" if rank == 0 else "2"):
        place.in_first_process(failing)
    assert sent == [[None, rank == 0]], "the others are told, not left to wait"


def test_two_processes_train_one_run(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "two"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    tmm = [sys.executable, "-c", "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"]
    options = ["train", "--text", str(text), "--steps", "4", "--evaluations", "2", *CHEAP]
    done = subprocess.run(
        [*command, *tmm, *options, "--out", str(out)], capture_output=True, text=True, check=False, env=ONE_THREAD
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Toeplitz MLP Mixer") == 1, "only the first process speaks"
    assert "2 processes" in done.stdout
    assert [r["step"] for r in records(out) if "eval_bits_per_byte" in r] == [2, 4]
    assert records(out)[-1]["tokens"] == 4 * 2 * 2 * 16
    # Two processes with two sequences each do what one does with four.
    alone = tmp_path / "one"
    assert main([*options, "--out", str(alone), "--accumulate", "2"]) == 0
    a, b = (read_tensors(folder / "model" / "model.safetensors") for folder in (out, alone))
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=2e-5, err_msg=name)
