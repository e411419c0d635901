"""Every comparison model is trained, interrupted, resumed, measured, sampled and written by the commands of all."""

import json
import signal

import pytest
import torch
import transformers
from support.architectures import NAMES
from support.commands import printed, refused
from support.training_runs import recorded, signal_at, weights, write_words

from tmm_adapters.pretrained import load_model
from tmm_lab.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = ["--d-model", "16", "--n-layers", "1", "--max-len", "16", "--batch", "2", "--device", "cpu", "--steps", "4"]
OPTIONS += ["--held-out-bytes", "400", "--evaluations", "2", "--checkpoint-steps", "2", "--precision", "float32"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_words(tmp_path_factory.mktemp("text"))


@pytest.fixture(params=NAMES)
def run(request, text, tmp_path, monkeypatch):
    """A run of an architecture that Ctrl-C interrupted, and that went on, and one that nothing interrupted."""
    command = ["train", "--arch", request.param, "--text", str(text), *OPTIONS, "--out"]
    with monkeypatch.context() as patch:
        signal_at(patch, step=3)
        assert main([*command, str(tmp_path / "run")]) == 128 + signal.SIGINT
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert main([*command, str(tmp_path / "whole")]) == 0
    return tmp_path / "run"


def test_each_is_trained_resumed_measured_and_sampled(run, text, capsys):
    assert weights(run) == weights(run.parent / "whole")
    bits = recorded(run, "eval_bits_per_byte")
    assert list(bits) == [2, 4]
    assert bits[4] < bits[2] < 16
    assert "this model" in printed(capsys, "eval", run, "--text", text)
    # The prompt, an end-of-text and ten tokens are within the 16 of models whose positions end.
    assert printed(capsys, "generate", run, "--prompt", "the", "--tokens", "10").startswith("the")
    model, _ = load_model(run / "model", device="cpu")
    fields = json.loads((run / "model" / "config.json").read_text())
    if "architectures" not in fields:
        return
    ids = torch.arange(12)[None]
    theirs = getattr(transformers, fields["architectures"][0]).from_pretrained(run / "model")
    assert torch.equal(theirs(ids).logits, model(ids).logits)
    also = transformers.AutoModelForCausalLM.from_pretrained(run / "model")
    assert type(also) is type(theirs)


def test_what_cannot_be_is_refused(text, capsys):
    command = ["train", "--text", text, "--out", "unused"]
    assert "choose one of hyena, hyena-tuned, linear-attention, llama" in refused(capsys, *command, "--arch", "rnn")
    assert "--n-heads 3 does not suit --d-model 16" in refused(
        capsys, *command, "--arch", "llama", "--d-model", "16", "--n-heads", "3"
    )
    assert "not compute" in refused(capsys, *command, "--arch", "hyena", "--framework", "jax")
