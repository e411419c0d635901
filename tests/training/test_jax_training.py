"""Training in JAX: the same runs as PyTorch's, as safe against being cut short, and each goes on with the other's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.training_runs import ONE_THREAD, SETTLED, fail_second, recorded, records, signal_at, weights, write_words

from tmm_adapters.pretrained import read_tensors, write_tensors
from tmm_core import TMMConfig
from tmm_core.lm import frozen_names, parameter_shapes
from tmm_lab.cli import main
from tmm_lab.data.tokens import TokenWindows
from tmm_lab.evaluation.measure import held_out_nats
from tmm_lab.training import checkpoints, frameworks
from tmm_lab.training.jax import place as jax_place
from tmm_lab.training.jax import state as jax_state
from tmm_lab.training.jax import trainer as jax_trainer
from tmm_lab.training.jax.measure import JaxModel
from tmm_lab.training.moments import read_moments
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run
from tmm_lab.training.session import settled

STEPS = 30
SMALL = ["--n-layers", "1", "--position-bias", "--precision", "float32"]  # programs that compile quickly
ALIKE = [*SETTLED, *SMALL, "--steps", str(STEPS), "--checkpoint-steps", "10", "--log-every", "1", "--seed", "3"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def arguments(text: Path) -> Callable[..., list[str]]:
    def build(framework: str, out: Path, *more: str) -> list[str]:
        return ["train", "--framework", framework, "--text", str(text), "--out", str(out), *ALIKE, *more]

    return build


@pytest.fixture(scope="module")
def in_jax(arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("jax") / "whole"
    assert main(arguments("jax", out)) == 0
    return out


@pytest.fixture(scope="module")
def in_torch(arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in PyTorch, in which it is a function of the same seed."""
    out = tmp_path_factory.mktemp("torch") / "whole"
    assert main(arguments("torch", out)) == 0
    return out


def unfinished(whole: Path, out: Path, *, step: int) -> Run:
    """Return a copy of a run that was ended after `step`, of the kind that an interruption leaves."""
    shutil.copytree(whole, out)
    run = Run.open(out)
    run.describe(finished=False)
    shutil.rmtree(run.model)
    for path in checkpoints.checkpoints(run.checkpoints):
        if checkpoints.step_of(path) > step:
            shutil.rmtree(path)
    return run


# What a run leaves


def test_a_run_leaves_what_it_promises(in_jax: Path) -> None:
    run = Run.open(in_jax)
    assert run.description["finished"]
    assert run.description["options"]["framework"] == "jax"
    assert run.plot.read_bytes().startswith(b"\x89PNG")
    assert [checkpoints.step_of(path) for path in checkpoints.checkpoints(run.checkpoints)] == [20, 30]
    assert sorted(p.name for p in run.lags.iterdir()) == [f"step-{s:08d}.safetensors" for s in (10, 20, 30)]
    assert run.samples.read_text().count("== ") == 4  # three evaluations and the end
    assert list(recorded(in_jax, "eval_bits_per_byte")) == [10, 20, 30]
    assert records(in_jax)[-1]["tokens"] == STEPS * 4 * 16


def test_losses_between_two_records_are_averaged(
    in_jax: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert main(arguments("jax", tmp_path / "run", "--log-every", "100", "--evaluations", "3")) == 0
    each, averaged = recorded(in_jax, "loss"), recorded(tmp_path / "run", "loss")
    assert list(averaged) == [1, 10, 20, 30], "the first, and those of evaluations"
    assert averaged[20] == pytest.approx(np.mean([each[step] for step in range(11, 21)]))


@pytest.mark.filterwarnings("default")  # the Trainer's libraries warn as they please
def test_both_frameworks_train_the_same_run(in_jax: Path, in_torch: Path) -> None:
    for name in ("loss", "grad_norm", "learning_rate", "eval_bits_per_byte", "tokens", "epoch"):
        ours, theirs = recorded(in_jax, name), recorded(in_torch, name)
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5, err_msg=name)
    assert len(recorded(in_jax, "loss")) == STEPS


def test_a_checkpoint_holds_everything_twice_and_alike(in_jax: Path) -> None:
    """The Orbax folder alone is enough for tools of the JAX world."""
    folder = in_jax / "checkpoints" / "step-00000030"
    state = jax_state.read_state(folder / "state.orbax")
    params = read_tensors(folder / "model.safetensors")
    assert state["params"].keys() == params.keys()
    assert all((state["params"][name] == params[name]).all() for name in params)
    assert int(state["step"]) == STEPS
    complete = json.loads((folder / "complete.json").read_text())
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {*complete, "complete.json"}


# Interrupted and resumed


def test_ctrl_c_saves_and_a_resumed_run_ends_with_the_same_bits(
    in_jax: Path,
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        signal_at(patch, batch=7)  # batches are read one ahead: in step 6
        assert main(arguments("jax", out)) == 130
    assert f"saved after step 6; to go on: tmm train --resume {out}" in capsys.readouterr().out
    assert main(["train", "--resume", str(out)]) == 0
    assert weights(out) == weights(in_jax)
    ours, whole = (jax_state.read_state(run / "checkpoints/step-00000030/state.orbax") for run in (out, in_jax))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("loss", "grad_norm", "learning_rate", "eval_bits_per_byte"):
        assert recorded(out, name) == recorded(in_jax, name)


def test_a_run_that_missed_only_its_end_is_finished(in_jax: Path, tmp_path: Path) -> None:
    run = unfinished(in_jax, tmp_path / "late", step=STEPS)
    run.forget_after(29)  # the last evaluation too
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert weights(run.folder) == weights(in_jax)
    assert recorded(run.folder, "eval_bits_per_byte") == recorded(in_jax, "eval_bits_per_byte")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("first", "then"), [("torch", "jax"), ("jax", "torch")])
def test_one_framework_goes_on_with_the_run_of_the_other(
    first: str, then: str, in_jax: Path, in_torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"torch": in_torch, "jax": in_jax}[first]
    run = unfinished(whole, tmp_path / "crossed", step=20)
    assert main(["train", "--resume", str(run.folder), "--framework", then]) == 0
    assert f"resuming from {run.checkpoints / 'step-00000020'}" in capsys.readouterr().out
    ours, theirs = recorded(run.folder, "loss"), recorded(whole, "loss")
    assert list(ours) == list(range(1, STEPS + 1))
    # Without AdamW's averages the steps after 20 would be others.
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)
    bits = recorded(run.folder, "eval_bits_per_byte")
    assert bits[30] == pytest.approx(recorded(whole, "eval_bits_per_byte")[30], rel=1e-5)
    assert bits[30] < bits[10]
    newest = checkpoints.checkpoints(run.checkpoints)[-1]
    config = TMMConfig.from_dict(run.description["config"])
    assert read_moments(newest, config).steps == STEPS


# Checkpoints


@pytest.mark.parametrize(
    "point",
    [
        ("tmm_lab.training.jax.trainer.write_model",),
        ("tmm_lab.training.jax.state.write_state",),
        ("tmm_lab.training.checkpoints.write_json",),
        ("pathlib.Path.rename", "step-"),
    ],
    ids=["model", "orbax", "complete", "rename"],
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
    assert main(arguments("jax", out)) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert f"make room, then tmm train --resume {out}" in said
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000010"]
    assert checkpoints.newest_intact(out / "checkpoints")[1] == []


def state_of(shapes: dict[str, tuple[int, ...]], trained: list[str]) -> dict[str, object]:
    arrays = {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}
    return {
        "params": arrays,
        "mu": {name: arrays[name] for name in trained},
        "nu": {name: arrays[name] for name in trained},
        "step": np.int32(3),
    }


def test_too_full_a_disk_is_seen_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 100))
    with pytest.raises(OSError, match="No space left on device"):
        jax_state.write_state(tmp_path / "state", state_of({"a": (10, 10)}, ["a"]))
    assert list(tmp_path.iterdir()) == []


def test_what_orbax_cannot_write_is_an_oserror_and_no_thread_stays(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    jax_state.write_state(tmp_path / "state", state_of({"a": (3,)}, ["a"]))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="cannot write"):
        jax_state.write_state(tmp_path / "file", state_of({"a": (3,)}, ["a"]))
    for _ in range(100):
        if set(threading.enumerate()) <= before:
            break
        time.sleep(0.02)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("name", ["manifest.ocdbt", "_METADATA"])
def test_damaged_orbax_folders_are_skipped_and_named(in_jax: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(in_jax / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "step-00000030"
    path = newest / "state.orbax" / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found, skipped = checkpoints.newest_intact(tmp_path / "checkpoints")
    assert found == tmp_path / "checkpoints" / "step-00000020"
    assert skipped == [f"{newest}: state.orbax/{name} is damaged: its checksum is wrong"]
    path.unlink()
    assert "is missing" in checkpoints.newest_intact(tmp_path / "checkpoints")[1][0]


def test_orbax_folders_that_hold_something_else_are_refused(in_jax: Path, tmp_path: Path) -> None:
    config = TMMConfig.from_dict(Run.open(in_jax).description["config"])
    folder = tmp_path / "step-00000030"
    shutil.copytree(in_jax / "checkpoints" / "step-00000030", folder)
    other = TMMConfig.from_dict({**config.to_dict(), "n_layers": 2})
    with pytest.raises(ValueError, match=r"is of another model: blocks\.1\..* does not fit"):
        read_moments(folder, other)
    shutil.rmtree(folder / "state.orbax")
    with pytest.raises(FileNotFoundError, match="resume from another checkpoint"):
        read_moments(folder, config)
    (folder / "state.orbax").mkdir()
    with pytest.raises(ValueError, match="is no whole Orbax folder"):
        read_moments(folder, config)
    shutil.rmtree(folder / "state.orbax")
    jax_state.write_state(folder / "state.orbax", {"params": {"a": jnp.zeros(3)}})
    with pytest.raises(ValueError, match="must hold mu, nu, params, step"):
        read_moments(folder, config)


def test_frozen_parameters_have_no_moments(tmp_path: Path) -> None:
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16, frozen="lags")
    shapes = parameter_shapes(config)
    trained = [name for name in shapes if name not in frozen_names(config)]
    assert len(trained) < len(shapes)
    jax_state.write_state(tmp_path / "state.orbax", state_of(shapes, trained))
    assert read_moments(tmp_path, config).mu.keys() == set(trained)


def test_a_state_of_torch_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    config = TMMConfig(d_model=8, n_layers=0, n_heads=2, max_len=16)
    arrays = {}
    for at, (name, shape) in enumerate(parameter_shapes(config).items()):
        arrays |= {f"{name}.{key}": np.zeros(shape, np.float32) for key in ("exp_avg", "exp_avg_sq")}
        arrays[f"{name}.step"] = np.asarray(at, np.float32)
    write_tensors(tmp_path / "optimizer.safetensors", arrays)
    with pytest.raises(ValueError, match="has parameters of several steps"):
        read_moments(tmp_path, config)
    write_tensors(tmp_path / "optimizer.safetensors", {"embed.weight.momentum": np.zeros(3)})
    with pytest.raises(ValueError, match="which AdamW does not keep"):
        read_moments(tmp_path, config)


def test_without_orbax_the_remedy_is_named(in_jax: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TMMConfig.from_dict(Run.open(in_jax).description["config"])
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    monkeypatch.delitem(sys.modules, "tmm_lab.training.jax.state")
    with pytest.raises(LookupError, match=r"needs orbax\.checkpoint: pip install 'tmm-core\[train-jax\]'"):
        read_moments(in_jax / "checkpoints" / "step-00000030", config)


# Options


def test_minutes_become_steps(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "minutes"
    signal_at(monkeypatch, batch=40)
    options = ["--text", str(text), "--out", str(out), "--minutes", "5", *SETTLED, *SMALL, "--seed", "3"]
    assert main(["train", "--framework", "jax", *options]) == 130
    run = Run.open(out)
    assert run.description["steps"] > 100
    newest, _ = checkpoints.newest_intact(run.checkpoints)
    assert newest is not None
    assert checkpoints.step_of(newest) == 39


def test_divergence_ends_the_run(
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = jax_trainer.init

    def huge(config: TMMConfig, seed: int) -> dict[str, jax.Array]:
        return {name: p * 1e30 for name, p in original(config, seed).items()}

    monkeypatch.setattr(jax_trainer, "init", huge)
    assert main(arguments("jax", tmp_path / "run")) == 2
    assert "training has diverged: the loss is" in capsys.readouterr().err


def test_bfloat16_is_mixed_precision(
    in_jax: Path, arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    few = ["--steps", "4", "--warmup", "3", "--backend", "numpy"]  # no kernels to compile
    assert main(arguments("jax", out, "--precision", "bfloat16", *few)) == 0
    said = capsys.readouterr().out
    assert "cpu, bfloat16\n" in said
    assert "  backend          numpy\n" in said
    assert {array.dtype for array in read_tensors(out / "model" / "model.safetensors").values()} == {
        np.dtype("float32")
    }
    exact, mixed = recorded(in_jax, "loss")[1], recorded(out, "loss")[1]
    assert 1e-5 * exact < abs(mixed - exact) < 2e-2 * exact


def test_an_engine_that_is_not_there_is_refused_before_anything_is_written(
    arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("jax", tmp_path / "run", "--backend", "abacus")) == 2
    assert "abacus" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": True}, "--compile is PyTorch's, and JAX always compiles: leave it out"),
        ({"report_to": "wandb"}, "--report-to wandb is for PyTorch"),
        ({"device": "cuda"}, "--device cuda is not available to JAX"),
        ({"device": "mps"}, "--device mps is not available to JAX"),
    ],
)
def test_what_jax_has_not_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jax_place.place(TrainingOptions(**{"device": "cpu", **options}))


def test_platforms_that_jax_may_not_use_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `JAX_PLATFORMS=cuda` is found where there is no GPU: by an assertion of JAX's, without words."""

    def local_devices(backend: str | None = None) -> list[jax.Device]:
        raise AssertionError

    monkeypatch.setattr(jax, "local_devices", local_devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ValueError, match="JAX_PLATFORMS=cuda lets it look: unset that variable"):
        jax_place.place(TrainingOptions())


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun is for PyTorch"):
        jax_place.place(TrainingOptions(device="cpu"))


def test_a_cpu_computes_in_float32_unless_asked_otherwise() -> None:
    assert settled(TrainingOptions(device="cpu"), TMMConfig(), jax_place).precision == "float32"


@pytest.mark.parametrize(
    ("absent", "asked", "chosen"),
    [
        ((), "auto", "torch"),
        (("torch",), "auto", "jax"),
        (("accelerate",), "auto", "jax"),
        (("optax",), "auto", "torch"),
        (("torch", "jax"), "auto", "there is neither PyTorch nor JAX: pip install"),
        (("transformers",), "torch", r"--framework torch needs transformers: .*\[train\]', or take --framework jax"),
        (
            ("jax", "orbax.checkpoint"),
            "jax",
            r"--framework jax needs jax, orbax\.checkpoint: .*\[train-jax\]', or take",
        ),
        ((), "tensorflow", "--framework must be auto, torch or jax, and is 'tensorflow'"),
    ],
)
def test_the_framework_is_one_that_is_here(
    absent: tuple[str, ...], asked: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "_installed", lambda library: library not in absent)
    if chosen in ("torch", "jax"):
        assert frameworks.choose(asked, training=True) == chosen
    else:
        with pytest.raises((LookupError, ValueError), match=chosen):
            frameworks.choose(asked, training=True)


# Measuring and writing


def test_batches_that_are_not_full_cost_what_they_are(in_jax: Path) -> None:
    config = TMMConfig.from_dict(Run.open(in_jax).description["config"])
    params = {name: jnp.asarray(p) for name, p in read_tensors(in_jax / "model" / "model.safetensors").items()}
    windows = TokenWindows(np.arange(100) % 200, config.max_len, end_of_text=7)
    model = JaxModel(params, config, rows=2)
    one_by_one = [held_out_nats(model, [window], batch=2) for window in windows]
    assert len(windows) % 2 == 1
    assert held_out_nats(model, windows, batch=2) == pytest.approx(sum(one_by_one), rel=1e-5)
    assert held_out_nats(JaxModel(params, config), windows, batch=1) == pytest.approx(sum(one_by_one), rel=1e-5)


@pytest.mark.filterwarnings("default")
def test_both_frameworks_write_the_same_until_each_context_is_full(
    in_jax: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("The\nmixes a\n")
    command = ["generate", str(in_jax), "--prompts", str(tmp_path / "prompts.txt"), "--tokens", "40"]
    said = {}
    for framework in ("jax", "torch"):
        assert main([*command, "--temperature", "0", "--framework", framework]) == 0
        said[framework] = capsys.readouterr()
    assert said["jax"].out == said["torch"].out
    # The last of 16 places foretells a token too: 16 - 4 + 1 after the first prompt, 16 - 8 + 1 after the second.
    assert "22 tokens written" in said["jax"].err
    assert "2 of 2 texts stopped where the model's position bias ends" in said["jax"].err


# Without PyTorch, on several devices

WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from tmm_lab.cli import main

text, out, *options = sys.argv[1:]
assert main(["train", "--text", text, "--out", out, *options]) == 0
assert main(["eval", out, "--text", text]) == 0
assert main(["generate", out, "--prompt", "The", "--tokens", "3"]) == 0
assert not {"torch", "transformers", "accelerate"} & set(sys.modules)
"""


def test_two_devices_and_no_pytorch_train_the_same_run(in_jax: Path, text: Path, tmp_path: Path) -> None:
    """Two devices with two sequences each do what one does that accumulates twice."""
    out = tmp_path / "two"
    options = [*ALIKE, "--accumulate", "1", "--steps", str(STEPS)]
    env = {**ONE_THREAD, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(text), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "cpu, 2 devices" in done.stdout
    assert "this model" in done.stdout
    for name in ("loss", "eval_bits_per_byte", "tokens"):
        ours, alone = recorded(out, name), recorded(in_jax, name)
        assert ours.keys() == alone.keys()
        np.testing.assert_allclose(list(ours.values()), list(alone.values()), rtol=1e-4, err_msg=name)
