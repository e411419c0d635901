"""`tmm train`: what it refuses, and the way of a newcomer from training to evaluation."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.commands import TINY, printed

from tmm_lab.cli import main

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-heads", "3"], "--n-heads 3 does not divide --d-model 8"),
        (["--steps", "0"], "steps must be at least 1 and below 2147483648, and is 0"),
        (["--minutes", "1"], "--steps and --minutes are both given"),
        (["--prompt", ""], "--prompt is empty"),
        (["--vocab", "100"], "vocab must be at least 257, and is 100"),
        (["--vocab", "300", "--tokenizer", "x.json"], "--tokenizer and --vocab are both given"),
        (["--tokenizer", "x.json"], "there is no tokenizer file x.json"),
        (["--vocab-size", "100"], "the tokenizer has 257 ids and the model only vocab_size=100"),
        (["--text", "nowhere.txt"], "there is no text file nowhere.txt"),
        (["--text", "a.txt", "--dataset", "b"], "--text and --dataset are both given"),
        (["--device", "cuda"], "device 'cuda' is not available"),
        (["--backend", "abacus"], "unknown backend 'abacus': choose 'auto' or one of"),
        (["--report-to", "pigeons"], "--report-to pigeons is not available"),
        (["--learning-rate", "inf"], "--learning-rate must be a finite number"),
        (["--weight-decay", "nan"], "--weight-decay must be a finite number"),
        (["--seed", str(2**32)], "seed must be at least 0 and below 4294967296"),
        (["--steps", str(2**31)], "steps must be at least 1 and below"),
        (["--position-bias", "--prompt", "a" * 40], "the prompt is too long: 41 tokens"),
        (["--mean"], "--mean asks for --softplus"),
        (["--max-len", "100000"], "training text is too short"),
    ],
)
def test_train_refuses(
    options: list[str], message: str, text: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    if options[:2] == ["--device", "cuda"] and torch.cuda.is_available():
        options, message = ["--device", "mps"], "device 'mps' is not available"
    command = ["train", *TINY, "--steps", "1", "--text", text, "--out", tmp_path / "run", *options]
    assert message in refused(*command)
    assert not (tmp_path / "run").exists(), "nothing is left of a run that could not begin"


@pytest.mark.parametrize(("minutes", "message"), [("-1", "must be above 0"), ("inf", "must be a finite number")])
def test_train_refuses_minutes_that_are_none(
    minutes: str, message: str, text: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    command = ["train", *TINY, "--text", text, "--out", tmp_path / "run", "--minutes", minutes]
    assert f"minutes {message}" in refused(*command)


def test_train_refuses_empty_and_binary_text(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 20)
    out = tmp_path / "run"
    assert "empty.txt is empty" in refused("train", *TINY, "--text", tmp_path / "empty.txt", "--out", out)
    assert "binary.txt" in refused("train", *TINY, "--text", tmp_path / "binary.txt", "--out", out)
    assert not out.exists()


def test_train_refuses_a_text_that_is_named_twice(text: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    """What is held out must not be in the training part."""
    (tmp_path / "other").symlink_to(text)
    command = ["train", *TINY, "--out", tmp_path / "run", "--text", text, tmp_path / "other"]
    assert f"text file {text} and text file {tmp_path / 'other'} are one" in refused(*command)


def test_train_refuses_a_folder_that_is_not_empty(text: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    assert "is not empty: choose another folder" in refused("train", *TINY, "--text", text, "--out", tmp_path / "mine")
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


def test_resume_refuses_what_is_no_run_and_new_options(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not the folder of a run" in refused("train", "--resume", tmp_path)
    assert f"there is no folder {tmp_path / 'x'}: check" in refused("train", "--resume", tmp_path / "x")
    assert "leave out --batch, --seed" in refused("train", "--resume", tmp_path, "--seed", "3", "--batch", "2")
    assert "leave out --from" in refused("train", "--resume", tmp_path, "--from", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "there is no run in" in refused("train", "--resume")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "run.json").write_text("{")
    assert "run.json is damaged" in refused("train", "--resume", "runs/x")
    (tmp_path / "runs" / "x" / "run.json").write_text('{"format": "tmm-run", "version": 1}')
    assert "is damaged: 'preset' is missing" in refused("train", "--resume")


def test_the_newest_run_is_trained_sampled_and_measured(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way of a newcomer, in plain lines since the output is no terminal; with a tokenizer of its own."""
    monkeypatch.chdir(tmp_path)
    options = ["--steps", "3", "--text", str(text), "--vocab", "300", "--evaluations", "1", "--held-out-bytes", "500"]
    assert main(["train", *TINY, *options]) == 0
    said = capsys.readouterr().out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said), "control characters in a file"
    for word in (
        "parameters",
        "FLOPs per token",
        "device",
        "backend",
        "sha256",
        "trigram",
        "peak memory",
        "training.png",
    ):
        assert word in said
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tmm-default-\d{8}-\d{6}", run.name)
    assert (run / "tokenizer.json").is_file()
    assert (run / "model" / "tokenizer.json").is_file()

    assert main(["generate", "--prompt", "the head", "--tokens", "5"]) == 0
    first = capsys.readouterr()
    assert first.out.startswith("the head")
    assert "tokens/s" in first.err
    assert main(["generate", str(run / "model"), "--prompt", "the head", "--tokens", "5"]) == 0
    assert capsys.readouterr().out == first.out, "the same seed writes the same text"

    assert main(["eval", "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert "bits per byte, lower is better:\n" in shown
    plain = json.loads(printed(capsys, "eval", "--text", text, "--json"))
    assert plain["text"]["bytes"] == text.stat().st_size
    for name in ("this model", "unigram", "4-gram", "zlib"):
        assert f"{plain['bits_per_byte'][name]:.4f}" == re.search(rf"^  {name} +(\S+)$", shown, re.MULTILINE)[1]
    assert main(["eval", str(shutil.copytree(run / "model", tmp_path / "alone")), "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert "zlib" in shown
    assert "unigram" not in shown, "without the run there is no text to count"
    assert main(["train", "--resume"]) == 2
