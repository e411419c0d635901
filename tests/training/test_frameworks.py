"""PyTorch and JAX: they train the same runs, each goes on with the other's, and one that is here is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support.training_runs import STEPS, recorded, unfinished

from tmm_core import TMMConfig
from tmm_core.errors import TMMError
from tmm_lab.cli import main
from tmm_lab.training import frameworks
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run
from tmm_lab.training.session import with_defaults

pytestmark = pytest.mark.usefixtures("one_thread")


def runtime(framework: str) -> ModuleType:
    return frameworks.load(framework)  # type: ignore[arg-type,return-value]


def test_what_a_library_does_not_take_of_the_environment_is_no_bug(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch reads TORCH_LOGS, and JAX its variables, as they are imported."""

    def import_module(name: str, package: str | None = None) -> ModuleType:
        assert name == framework
        raise ValueError("invalid settings: nonsense")

    monkeypatch.setattr(frameworks, "import_module", import_module)
    with pytest.raises(
        TMMError, match=r"cannot be loaded \(ValueError: invalid settings: nonsense\): where that means"
    ):
        runtime(framework)


def test_both_train_the_same_run(in_torch: Path, in_jax: Path) -> None:
    for name in ("loss", "grad_norm", "learning_rate", "eval_bits_per_byte", "tokens", "epoch"):
        ours, theirs = recorded(in_jax, name), recorded(in_torch, name)
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5, err_msg=name)
    assert len(recorded(in_jax, "loss")) == STEPS


@pytest.mark.parametrize(("first", "then"), [("torch", "jax"), ("jax", "torch")])
def test_one_goes_on_with_the_run_of_the_other(
    first: str, then: str, finished_by: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = finished_by(first)
    run = unfinished(whole, tmp_path / "crossed", step=8)
    assert main(["train", "--resume", str(run.folder), "--framework", then]) == 0
    assert f"resuming from {run.checkpoints / 'step-00000008'}" in capsys.readouterr().out
    # Without AdamW's averages the steps after 8 would be others.
    for name in ("loss", "eval_bits_per_byte"):
        ours, theirs = recorded(run.folder, name), recorded(whole, name)
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5, err_msg=name)
    state = {"torch": "optimizer.safetensors", "jax": "state.orbax"}[then]
    assert (run.checkpoints / f"step-{STEPS:08d}" / state).exists()


def test_both_write_the_same_until_each_context_is_full(
    in_jax: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("The\nmixes a\n")
    command = ["generate", str(in_jax), "--prompts", str(tmp_path / "prompts.txt"), "--tokens", "40"]
    said = {}
    for framework in ("jax", "torch"):
        assert main([*command, "--temperature", "0", "--framework", framework]) == 0
        said[framework] = capsys.readouterr()
    assert said["jax"].out == said["torch"].out
    # The last of 16 places predicts a token too: 16 - 4 + 1 after the first prompt, 16 - 8 + 1 after the second.
    assert "22 tokens written" in said["jax"].err
    assert "2 of 2 texts stopped at 16 tokens" in said["jax"].err


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_bfloat16_is_mixed_precision(
    framework: str,
    finished: Path,
    arguments: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    few = ["--steps", "1", "--evaluations", "1", "--warmup", "3", "--backend", "numpy"]  # no kernels to compile
    assert main(arguments(framework, out, "--precision", "bfloat16", *few)) == 0
    said = capsys.readouterr().out
    assert ", bfloat16\n" in said
    assert "  backend          numpy\n" in said
    stored = (out / "model" / "model.safetensors").read_bytes()
    assert b'"F32"' in stored
    assert b"BF16" not in stored
    exact, mixed = recorded(finished, "loss")[1], recorded(out, "loss")[1]
    assert 1e-5 * exact < abs(mixed - exact) < 2e-2 * exact


def test_an_engine_that_is_not_there_is_refused_before_anything_is_written(
    framework: str, arguments: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(framework, tmp_path / "run", "--backend", "abacus")) == 2
    assert "abacus" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_open_has_defaults_and_what_is_given_stays(framework: str) -> None:
    wide, narrow = TMMConfig(d_model=256), TMMConfig(d_model=128)
    options = TrainingOptions(device="cpu")
    left_open = with_defaults(options, narrow, runtime(framework))
    assert left_open.precision in (("float32",) if framework == "jax" else ("float32", "bfloat16"))
    assert left_open.learning_rate == pytest.approx(2 * with_defaults(options, wide, runtime(framework)).learning_rate)
    given = TrainingOptions(learning_rate=0.5, precision="float32", device="cpu")
    assert with_defaults(given, narrow, runtime(framework)) == given


@pytest.mark.parametrize(
    ("absent", "able", "asked", "chosen"),
    [
        ((), ("torch", "jax"), "auto", "torch"),
        (("torch",), ("torch", "jax"), "auto", "jax"),
        (("accelerate",), ("torch", "jax"), "auto", "jax"),
        (("optax",), ("torch", "jax"), "auto", "torch"),
        ((), ("jax",), "auto", "jax"),
        (("torch", "jax"), ("torch", "jax"), "auto", "none of the frameworks torch, jax is installed: pip install"),
        (
            ("torch",),
            ("torch",),
            "auto",
            r"frameworks torch is installed: pip install 'tmm-core\[train\]'$",
        ),
        (("accelerate",), ("torch", "jax"), "torch", r"needs accelerate: .*\[train\]', or take --framework jax"),
        (("jax", "orbax.checkpoint"), ("torch", "jax"), "jax", r"needs jax, orbax\.checkpoint: .*\[train-jax\]', or"),
        ((), ("torch", "jax"), "tensorflow", "--framework must be auto, torch or jax, and is 'tensorflow'"),
        ((), ("torch",), "jax", "--framework jax does not compute the architecture 'one': choose --framework torch"),
    ],
)
def test_the_framework_is_one_that_is_here(
    absent: tuple[str, ...], able: tuple[str, ...], asked: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "_installed", lambda library: library not in absent)
    monkeypatch.setattr(frameworks, "get_architecture", {"one": SimpleNamespace(frameworks=able)}.__getitem__)
    if chosen in ("torch", "jax"):
        assert frameworks.choose(asked, "one", training=True) == chosen
    else:
        with pytest.raises((LookupError, ValueError), match=chosen):
            frameworks.choose(asked, "one", training=True)


def test_a_run_remembers_its_framework(in_torch: Path, in_jax: Path) -> None:
    assert Run.open(in_torch).parsed().options.framework == "torch"
    assert Run.open(in_jax).parsed().options.framework == "jax"
