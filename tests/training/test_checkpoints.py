"""Checkpoints: complete or absent, and what is wrong with one is seen and told."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.requirements import system_or_skip
from support.training_runs import STEPS, unfinished

from tmm_adapters.checkpoints import newest_intact
from tmm_adapters.files import SUMS, sweep
from tmm_adapters.pretrained import read_tensors, write_tensors
from tmm_lab.cli import main
from tmm_lab.training.checkpoints import write_checkpoint
from tmm_lab.training.moments import read_moments
from tmm_lab.training.orbax_state import read_state, write_state

pytestmark = pytest.mark.usefixtures("one_thread")

NEWEST = f"step-{STEPS:08d}"
SHAPES = {"embed.weight": (257, 8), "blocks.0.mix.lags": (2, 16)}


def shapes_of(run: Path) -> dict[str, tuple[int, ...]]:
    return {name: p.shape for name, p in read_tensors(run / "model" / "model.safetensors").items()}


def test_a_checkpoint_has_its_name_only_when_complete(tmp_path: Path) -> None:
    """So whatever moment a process is killed at, what has a name is whole."""

    def write(folder: Path) -> None:
        (folder / "a").write_text("half")
        assert newest_intact(tmp_path) == (earlier, [])
        (folder / "a").write_text("whole")

    earlier = write_checkpoint(tmp_path, 1, lambda folder: (folder / "a").touch())
    later = write_checkpoint(tmp_path, 2, write)
    assert newest_intact(tmp_path) == (later, [])
    (tmp_path / ".step-00000003.0123abcd.part").mkdir()  # what a killed process leaves
    assert newest_intact(tmp_path) == (later, [])
    sweep(tmp_path)
    write_checkpoint(tmp_path, 4, lambda folder: (folder / "a").touch())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000004"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "SHA256SUMS").unlink(), "SHA256SUMS is missing, so it may be incomplete"),
        (lambda d: (d / "SHA256SUMS").write_text("{\n"), "SHA256SUMS is damaged"),
        (lambda d: (d / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda d: (d / "model.safetensors").write_bytes(b"x"), "model.safetensors is damaged: its checksum"),
        (
            lambda d: flip(d / "model.safetensors"),
            "model.safetensors is damaged: its checksum is not the one in SHA256SUMS",
        ),
        (lambda d: flip(next(d.glob("state.orbax/_METADATA"))), "state.orbax/_METADATA is damaged: its checksum"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(
    in_jax: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    shutil.copytree(in_jax / "checkpoints", tmp_path / "checkpoints")
    damage(tmp_path / "checkpoints" / NEWEST)
    newest, skipped = newest_intact(tmp_path / "checkpoints")
    assert newest == tmp_path / "checkpoints" / "step-00000008"
    assert len(skipped) == 1
    assert reason in skipped[0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_damaged_checkpoints_are_skipped_and_named(
    in_torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(in_torch, tmp_path / "run")
    flip(run.checkpoints / NEWEST / "model.safetensors")
    assert main(["train", "--resume", str(run.folder)]) == 0
    said = capsys.readouterr()
    assert "tmm: skipped" in said.err
    assert "model.safetensors is damaged: its checksum is not the one in SHA256SUMS" in said.err
    assert "step-00000008" in said.out


def test_a_checkpoint_without_adam_is_not_taken_for_a_full_disk(
    in_torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(in_torch, tmp_path / "bare", steps=STEPS + 2)
    newest = run.checkpoints / NEWEST
    (newest / "optimizer.safetensors").unlink()
    lines = (newest / SUMS).read_text().splitlines(keepends=True)
    (newest / SUMS).write_text("".join(line for line in lines if "optimizer" not in line))
    assert main(["train", "--resume", str(run.folder)]) == 2
    said = capsys.readouterr().err
    assert "resume from another checkpoint" in said
    assert "make room" not in said


# What AdamW knows


def test_both_frameworks_keep_what_adamw_knows(finished: Path) -> None:
    shapes = shapes_of(finished)
    moments = read_moments(finished / "checkpoints" / NEWEST, shapes)
    assert moments.steps == STEPS
    assert {name: array.shape for name, array in moments.mu.items()} == shapes
    assert all((array >= 0).all() for array in moments.nu.values())
    assert any((array < 0).any() for array in moments.mu.values())


def test_the_state_of_another_model_is_refused(finished: Path) -> None:
    newest, shapes = finished / "checkpoints" / NEWEST, shapes_of(finished)
    for other in ({**shapes, "more": (1,)}, {**shapes, "embed.weight": (3, 8)}):
        with pytest.raises(ValueError, match=r"is of another model: .* does not fit"):
            read_moments(newest, other)


def test_a_state_of_torch_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    arrays = {}
    for at, (name, shape) in enumerate(SHAPES.items()):
        arrays |= {f"{name}.{key}": np.zeros(shape, np.float32) for key in ("exp_avg", "exp_avg_sq")}
        arrays[f"{name}.step"] = np.asarray(at, np.float32)
    write_tensors(tmp_path / "optimizer.safetensors", arrays)
    with pytest.raises(ValueError, match="has parameters of several steps"):
        read_moments(tmp_path, SHAPES)
    write_tensors(tmp_path / "optimizer.safetensors", {"embed.weight.momentum": np.zeros(3)})
    with pytest.raises(ValueError, match="which AdamW does not keep"):
        read_moments(tmp_path, SHAPES)


# Orbax


def state_of(shapes: dict[str, tuple[int, ...]], trained: list[str]) -> dict[str, object]:
    arrays = {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}
    return {
        "params": arrays,
        "mu": {name: arrays[name] for name in trained},
        "nu": {name: arrays[name] for name in trained},
        "step": np.int32(3),
    }


def test_an_orbax_folder_is_enough_for_other_tools(in_jax: Path) -> None:
    folder = in_jax / "checkpoints" / NEWEST
    state = read_state(folder / "state.orbax")
    params = read_tensors(folder / "model.safetensors")
    assert state["params"].keys() == params.keys()
    assert all((state["params"][name] == params[name]).all() for name in params)
    assert int(state["step"]) == STEPS
    listed = {line.split("  ")[1] for line in (folder / SUMS).read_text().splitlines()}
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {*listed, SUMS}


def test_frozen_parameters_have_no_moments(tmp_path: Path) -> None:
    write_state(tmp_path / "state.orbax", state_of(SHAPES, ["embed.weight"]))
    assert read_moments(tmp_path, {"embed.weight": (257, 8)}).mu.keys() == {"embed.weight"}


def test_a_folder_of_orbax_may_lie_in_one_whose_name_is_no_text(tmp_path: Path) -> None:
    system_or_skip("linux", "other systems have no such names")
    folder = tmp_path / os.fsdecode(b"r\xff")
    folder.mkdir()
    write_state(folder / "state.orbax", state_of(SHAPES, ["embed.weight"]))
    assert read_state(folder / "state.orbax")["step"] == 3
    assert [path.name for path in folder.iterdir()] == ["state.orbax"]


def test_too_full_a_disk_is_seen_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 100))
    with pytest.raises(OSError, match="No space left on device"):
        write_state(tmp_path / "state", state_of({"a": (10, 10)}, ["a"]))
    assert list(tmp_path.iterdir()) == []


def test_what_orbax_cannot_write_is_an_oserror_and_no_thread_stays(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    write_state(tmp_path / "state", state_of({"a": (3,)}, ["a"]))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="cannot write"):
        write_state(tmp_path / "file", state_of({"a": (3,)}, ["a"]))
    for _ in range(100):
        if set(threading.enumerate()) <= before:
            break
        time.sleep(0.02)
    assert set(threading.enumerate()) <= before


def test_orbax_folders_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="resume from another checkpoint"):
        read_moments(tmp_path, SHAPES)
    (tmp_path / "state.orbax").mkdir()
    with pytest.raises(ValueError, match="is no whole Orbax folder"):
        read_moments(tmp_path, SHAPES)
    shutil.rmtree(tmp_path / "state.orbax")
    write_state(tmp_path / "state.orbax", {"params": {"a": jnp.zeros(3)}})
    with pytest.raises(ValueError, match="must hold mu, nu, params, step"):
        read_moments(tmp_path, SHAPES)


def test_without_orbax_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    write_state(tmp_path / "state.orbax", state_of(SHAPES, list(SHAPES)))
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    monkeypatch.delitem(sys.modules, "tmm_lab.training.orbax_state")
    with pytest.raises(LookupError, match=r"needs orbax\.checkpoint: pip install 'tmm-core\[train-jax\]'"):
        read_moments(tmp_path, SHAPES)


def test_leaves_of_a_state_come_back_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in SHAPES.items()}
    state = {"params": arrays, "mu": arrays, "nu": arrays, "step": np.int32(7)}
    write_state(tmp_path / "state", state)
    for ours, theirs in zip(jax.tree.leaves(read_state(tmp_path / "state")), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(ours, theirs)
