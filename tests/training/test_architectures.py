"""An architecture of another distribution is trained, resumed, measured and sampled by being installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import printed, refused
from support.strangers import install_project
from support.training_runs import ONE_THREAD, recorded, signal_at, weights

from tmm_adapters.architecture import Architecture, architectures, get_architecture
from tmm_adapters.pretrained import load_model, read_config
from tmm_core import TMMConfig
from tmm_lab.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

DISTRIBUTION = Path(__file__).parent / "bigram"
OPTIONS = ["--arch", "bigram", "--spread", "0.2", "--device", "cpu", "--held-out-bytes", "400", "--steps", "8"]
OPTIONS += ["--evaluations", "2", "--checkpoint-steps", "4", "--log-every", "1", "--accumulate", "2", "--clip", "0"]


@pytest.fixture
def bigram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the distribution as its `pyproject.toml` says, here and in processes that are begun here."""
    install_project(tmp_path, DISTRIBUTION)
    for folder in (tmp_path, DISTRIBUTION):
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def run(bigram: None, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of it that Ctrl-C interrupted, and that went on."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        signal_at(patch, step=5)
        assert main(["train", "--text", str(text), "--out", str(out), *OPTIONS]) == 128 + signal.SIGINT
    assert main(["train", "--resume", str(out)]) == 0
    return out


def test_it_is_trained_interrupted_and_resumed(run: Path, text: Path, tmp_path: Path) -> None:
    """In a process of its own, where nothing interrupts it, it ends with the same bits."""
    tmm = [sys.executable, "-c", "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"]
    command = [*tmm, "train", "--text", str(text), "--out", str(tmp_path / "whole"), *OPTIONS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**ONE_THREAD, **os.environ})
    assert "bigram table, default" in done.stdout
    assert "model            vocab size 257, max len 16, spread 0.2" in done.stdout
    assert "parameters       66,049" in done.stdout
    assert "learning rate 0.1" in done.stdout
    assert "backend" not in done.stdout, "it computes no Toeplitz products"
    assert weights(run) == weights(tmp_path / "whole")
    bits = recorded(run, "eval_bits_per_byte")
    assert list(bits) == [4, 8]
    assert bits[8] < bits[4] < 8.5
    assert not (run / "parameters").exists(), "it asks for none to be kept"
    assert (run / "training.png").read_bytes().startswith(b"\x89PNG")


def test_it_is_measured_sampled_and_loaded(run: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "this model" in printed(capsys, "eval", run, "--text", text)
    assert printed(capsys, "generate", run, "--prompt", "the", "--tokens", "40").startswith("the")
    assert json.loads((run / "model" / "config.json").read_text())["model_type"] == "bigram"
    assert (read_config(run / "model").vocab_size, read_config(run / "model").max_len) == (257, 16)
    model, _ = load_model(run / "model", device="cpu")
    assert type(model).__name__ == "Table"


def test_what_it_does_not_have_is_refused(run: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "generate", run, "--prompt", "the", "--framework", "jax")
    assert "--framework jax does not compute the architecture 'bigram': choose --framework torch" in said
    assert "architecture 'bigram', which has no filters" in refused(capsys, "index", run)
    said = refused(capsys, "train", "--text", text, "--arch", "bigram", "--spread", "inf")
    assert "spread must be a finite number" in said


def test_its_fields_are_options(bigram: None, capsys: pytest.CaptureFixture[str]) -> None:
    for arch, present, absent in (("bigram", "--spread", "--d-model"), ("tmm", "--d-model", "--spread")):
        with pytest.raises(SystemExit):
            main(["train", "--arch", arch, "--help"])
        said = capsys.readouterr().out
        assert present in said
        assert absent not in said
        assert "architecture of the model: bigram" in said


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown architecture 'lama': choose one of hyena, " in refused(capsys, "train", "--arch", "lama")


def test_listing_imports_nothing(bigram: None) -> None:
    code = "import sys; from tmm_adapters.architecture import architectures; print(*architectures());"
    code += "assert not {'torch', 'jax', 'numpy', 'bigram_lm', 'tmm_adapters.tmm'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"bigram", "tmm"} < set(done.stdout.split())


def test_the_toeplitz_mlp_mixer_is_one_of_them() -> None:
    assert "tmm" in architectures()
    tmm = get_architecture("tmm")
    assert isinstance(tmm, Architecture)
    assert tmm.config_class.preset("paper", n_layers=2) == TMMConfig.preset("paper", n_layers=2)
    with pytest.raises(LookupError, match="TMMConfig has no preset 'papr': choose one of default, paper"):
        tmm.config_class.preset("papr")
