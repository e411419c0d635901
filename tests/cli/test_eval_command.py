"""`tmm eval`: bits per byte of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import REFERENCE, printed

from tmm_adapters.files import SUMS
from tmm_adapters.pretrained import load_model, read_tensors, write_tensors
from tmm_lab.cli import main

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


def test_eval_refuses(tmp_path: Path, model: Path, text: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    assert "is empty" in refused("eval", model, "--text", tmp_path / "empty.txt")
    assert "there is no text file" in refused("eval", model, "--text", tmp_path / "none.txt")
    assert "there is no text to measure" in refused("eval", model)
    assert "there is no text to measure" in refused("eval", "--text", model)
    assert "--batch must be at least 1" in refused("eval", model, "--text", text, "--batch", "0")
    huge = {name: np.full_like(p, 1e30) for name, p in read_tensors(model / "model.safetensors").items()}
    write_tensors(model / "model.safetensors", huge)
    (model / SUMS).unlink()  # as of another tool
    assert "has no finite loss on this text" in refused("eval", model, "--text", text)


def test_the_model_may_stand_behind_the_text(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows, a field of them, several --text: what `tmm train` reads, `tmm eval` does."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"body": text.read_text()}))
    orders: list[list[Path | str]] = [
        [model, "--text", text],
        ["--text", text, model],
        ["--text", rows, "--text", model, "--text-field", "body"],
    ]
    shown = [printed(capsys, "eval", *order) for order in orders]
    assert shown[0] == shown[1] == shown[2]
    assert "1 document" in shown[0]
    assert "2 documents" in printed(capsys, "eval", "--text", text, "--text", rows, model, "--text-field", "body")


def test_eval_measures_a_text_shorter_than_the_context(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("short")
    assert main(["eval", str(model), "--text", str(tmp_path / "short.txt")]) == 0
    said = capsys.readouterr()
    assert "without n-grams, which are counted in the training text of a run: this model is in none" in said.err
    cost = float(re.search(r"this model +([\d.]+)", said.out)[1])
    network, tokenizer = load_model(model, device="cpu")
    ids = torch.tensor([[tokenizer.end_of_text, *tokenizer.encode("short"), tokenizer.end_of_text]])
    nats = torch.nn.functional.cross_entropy(network(ids)["logits"][0, :-1], ids[0, 1:], reduction="sum").item()
    assert cost == pytest.approx(nats / np.log(2) / 5, abs=1e-4)


def test_a_model_without_tokenizer_reads_and_writes_no_text(tmp_path: Path, refused: Callable[..., str]) -> None:
    main(["convert", str(REFERENCE / "flat.safetensors"), str(tmp_path / "model")])
    for command in (
        ("generate", tmp_path / "model", "--prompt", "a"),
        ("eval", tmp_path / "model", "--text", __file__),
    ):
        assert "has no tokenizer.json, and no text can be read or written without it: copy" in refused(*command)
