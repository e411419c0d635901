"""Training in JAX: what only it has, such as several devices of one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.training_runs import ONE_THREAD, STEPS, WHOLE, recorded, traces, unfinished, weights

from tmm_adapters.pretrained import load_params
from tmm_lab.data.dataset import TokenWindows
from tmm_lab.evaluation.jax_model import JaxModel
from tmm_lab.evaluation.measure import held_out_nats
from tmm_lab.training.jax.runtime import make_runtime
from tmm_lab.training.options import TrainingOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": True}, "--compile is PyTorch's, and JAX always compiles: leave it out"),
        ({"device": "cuda"}, "device 'cuda' is not available to JAX"),
        ({"device": "mps"}, "device 'mps' is not available to JAX"),
    ],
)
def test_what_jax_has_not_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_runtime(TrainingOptions(**{"device": "cpu", **options}))


def test_platforms_that_jax_may_not_use_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `JAX_PLATFORMS=cuda` is found where there is no GPU: by an assertion of JAX's, without words."""

    def local_devices(backend: str | None = None) -> list[jax.Device]:
        raise AssertionError

    monkeypatch.setattr(jax, "local_devices", local_devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ValueError, match="JAX_PLATFORMS=cuda keeps it from looking: unset it"):
        make_runtime(TrainingOptions())


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="torchrun is for PyTorch"):
        make_runtime(TrainingOptions(device="cpu"))
    monkeypatch.delenv("MASTER_ADDR")
    make_runtime(TrainingOptions(device="cpu"))  # the others are left over


def test_batches_that_are_not_full_cost_what_they_are(in_jax: Path) -> None:
    params, config, _ = load_params(in_jax / "model")
    params = {name: jnp.asarray(p) for name, p in params.items()}
    windows = TokenWindows(np.arange(100) % 200, config.max_len, end_of_text=7)
    model = JaxModel(params, config, rows=2)
    one_by_one = [held_out_nats(model, [window], batch=2) for window in windows]
    assert len(windows) % 2 == 1
    assert held_out_nats(model, windows, batch=2) == pytest.approx(sum(one_by_one), rel=1e-5)
    assert held_out_nats(JaxModel(params, config), windows, batch=1) == pytest.approx(sum(one_by_one), rel=1e-5)


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
assert main(["generate", out, "--prompt", "The "]) == 0
assert not {"torch", "transformers", "accelerate"} & set(sys.modules)
"""


@pytest.mark.slow
def test_two_devices_and_no_pytorch_train_the_same_run(in_jax: Path, text: Path, tmp_path: Path) -> None:
    """Two devices with two sequences each do what one does that accumulates twice."""
    out = tmp_path / "two"
    env = {**ONE_THREAD, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(text), str(out), *WHOLE, "--accumulate", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "cpu, 2 devices" in done.stdout
    assert "this model" in done.stdout
    for name in ("loss", "eval_bits_per_byte", "tokens"):
        ours, alone = recorded(out, name), recorded(in_jax, name)
        assert ours.keys() == alone.keys()
        np.testing.assert_allclose(list(ours.values()), list(alone.values()), rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_two_devices_go_on_after_the_samples_of_one(in_jax: Path, tmp_path: Path) -> None:
    run = unfinished(in_jax, tmp_path / "run", step=8)
    env = {**ONE_THREAD, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    code = "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "train", "--resume", str(run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert recorded(run.folder, "tokens")[STEPS] == (4 * 8 + 8 * (STEPS - 8)) * 16


@pytest.mark.slow
def test_what_the_environment_says_to_jax_changes_no_run(
    in_jax: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    env = {"JAX_DEFAULT_MATMUL_PRECISION": "bfloat16", "JAX_ENABLE_X64": "1", "JAX_DEFAULT_PRNG_IMPL": "rbg"}
    env |= {"JAX_DISABLE_JIT": "1", "JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    env |= {"JAX_TRANSFER_GUARD": "disallow", "JAX_DEBUG_NANS": "1"}
    env |= {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "1"}
    code = "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments("jax", tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**ONE_THREAD, **env})
    assert done.returncode == 0, done.stderr
    assert "float32" in done.stdout
    assert weights(tmp_path / "run") == weights(in_jax)
    assert traces(tmp_path / "run") == traces(in_jax)
