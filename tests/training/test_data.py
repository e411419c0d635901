"""How a text becomes the files of a run, and what is said of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import SMALL
from support.requirements import skip_without

from tmm_adapters.pretrained import save_params
from tmm_core import lm
from tmm_lab import progress
from tmm_lab.cli import main
from tmm_lab.data.config import DataConfig
from tmm_lab.data.text import END_BYTE
from tmm_lab.training.data import Data, open_data, prepare_data
from tmm_lab.training.runs import Run

LETTERS = "abcdefghijklmnopqrstuvwxyz     \n"


def written(seed: int, n_bytes: int) -> bytes:
    """Return random letters: no stretch of them occurs twice."""
    return "".join(random.Random(seed).choices(LETTERS, k=n_bytes)).encode()


def prepared(folder: Path, text: Path, **options: Any) -> tuple[Run, DataConfig, Data]:
    source = DataConfig(text=(str(text),), **options)
    run = Run.create(folder, "run")
    return run, source, prepare_data(run, source)


def told(text: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """Return what the command line says of a text."""
    with progress.shown():
        prepared(text.parent / "run", text, **options)
    return capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY", b"garbage"])
def test_tokens_are_written_anew(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(written(0, 20_000))
    run, source, data = prepared(tmp_path / "run", tmp_path / "text", vocab=300)
    tokens = run.data / "training.npy"
    before = tokens.read_bytes()
    tokens.unlink()
    if content is not None:
        tokens.write_bytes(content)
    again = open_data(run, source, check=True)
    assert tokens.read_bytes() == before
    assert again.training_tokens[:].tolist() == data.training_tokens[:].tolist()


@pytest.mark.parametrize("copy", ["file", "more than the file", "part of it", "in other places", "none"])
def test_held_out_text_in_the_training_text_is_told(
    copy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the copy of a file under another name, with a heading perhaps, and as what a file says twice."""
    folder = tmp_path / "texts"
    folder.mkdir()
    documents = [written(i, 1000) for i in range(100)]
    if copy in ("file", "more than the file", "none"):
        heading = b"" if copy == "file" else b"a heading of its own\n"
        for i, document in enumerate(documents):
            (folder / f"{i:03d}.txt").write_bytes(document)
            (folder / f"{i:03d}copy").write_bytes(heading + document if copy != "none" else written(1000 + i, 1000))
        held_out_bytes = 60_000
    else:
        again = [document[100:] for document in documents] if copy == "part of it" else documents[::-1]
        (folder / "one").write_bytes(b"".join(documents + again))
        held_out_bytes = 9_000
    said = told(folder, capsys, held_out_bytes=held_out_bytes)
    assert (copy == "none") == ("the training text holds" not in said), said
    if copy != "none":
        share = int(said.split("the training text holds ")[1].split("%")[0])
        assert 85 <= share <= 100


def test_a_text_that_yields_less_than_asked_for_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.write_bytes(written(0, 6000))
    said = told(text, capsys, vocab=5000, held_out_bytes=100_000)
    assert "bytes, not the 100,000 of --held-out-bytes: a twentieth of the text is the most" in said
    assert "50% of the text is held out, for it is short" in said
    assert "ids, not 5,000: a longer one yields more" in said


def test_of_a_text_as_one_would_expect_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(written(0, 100_000))
    assert told(tmp_path / "text", capsys, vocab=300, held_out_bytes=4500) == ""


def test_preparation_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[str, int, list[int]]] = []

    class Recorded:
        @contextlib.contextmanager
        def waiting(self, what: str, total: int | None) -> Iterator[progress.Advance]:
            assert total is not None, what
            waits.append((what, total, []))
            yield waits[-1][2].append

    monkeypatch.setattr(progress, "_shower", Recorded())
    (tmp_path / "text.txt").write_bytes(written(0, 100_000))
    prepared(tmp_path / "run", tmp_path / "text.txt", vocab=300)
    assert [what for what, *_ in waits] == [
        "reading text.txt",
        "looking for held-out text in the training text",
        "training a tokenizer of 300 ids",
        *["tokenizing"] * 2,
    ]
    for what, total, done in waits:
        assert sum(done) == total, what


def test_a_run_may_be_in_a_folder_whose_name_is_no_text(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    if sys.platform != "linux":
        skip_without("linux", "other systems have no such names")
    (tmp_path / "text").write_bytes(written(0, 20_000))
    run, source, _ = prepared(tmp_path / os.fsdecode(b"r\xffn"), tmp_path / "text", vocab=300)
    data = open_data(run, source, check=True)
    text = b"".join(data.held_out.chunks()).replace(END_BYTE, b"")
    assert data.tokenizer.decode(data.held_out_tokens[:].tolist()).encode() == text
    config = dataclasses.replace(SMALL, vocab_size=data.tokenizer.vocab_size)
    save_params(run.model, lm.init_params(config, np.random.default_rng(0)), config, data.tokenizer)
    model = str(run.model)
    assert main(["generate", model, "--prompt", "a", "--tokens", "2", "--device", "cpu"]) == 0
    assert main(["index", model]) == 0
    assert os.fsencode(model) in capsysbinary.readouterr().out  # what is left there is reported as text
