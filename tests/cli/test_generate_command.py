"""`tmm generate`: one prompt or several, on any terminal."""

from __future__ import annotations

import io
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tmm_lab.cli import main
from tmm_lab.training.display import printable

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", ""], "--prompt is empty"),
        (["--prompt", "a", "--tokens", "0"], "--tokens must be at least 1"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature must be 0 or more"),
        (["--prompt", "a", "--top-p", "0"], "--top-p must be above 0"),
        (["--prompt", "a", "--top-k", "0"], "--top-k must be at least 1"),
        (["--prompts", "nowhere.txt"], "there is no file nowhere.txt of --prompts"),
        (["--prompt", "a" * 40], "the prompt is too long: 41 tokens"),
        (["--prompt", "a\udcff"], "--prompt is not UTF-8 text"),
        (["--prompt", "a", "--seed", "-1"], "--seed must be 0 or more"),
        (["--prompt", "a", "--seed", str(2**63)], "--seed must be 0 or more and below"),
        (["--prompt", "a", "--device", "mps"], "device 'mps' is not available"),
    ],
)
def test_generate_refuses(options: list[str], message: str, model: Path, refused: Callable[..., str]) -> None:
    if "mps" in options and torch.backends.mps.is_available():
        options, message = [*options[:-1], "cuda"], "device 'cuda' is not available"
    assert message in refused("generate", model, *options)


def test_an_error_while_writing_is_told_on_a_line_of_its_own(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, on_text: Callable[[int, str], None], **__: object) -> None:
        on_text(0, " end")
        raise ValueError("no engine")

    monkeypatch.setattr("tmm_lab.evaluation.measure.continuations", broken)
    with pytest.raises(ValueError, match="no engine"):
        main(["generate", str(model), "--prompt", "The", "--debug"])
    assert capsys.readouterr().out == "The end\n"


def test_generate_refuses_what_is_no_model(tmp_path: Path, model: Path, refused: Callable[..., str]) -> None:
    assert "there is no folder" in refused("generate", tmp_path / "nowhere", "--prompt", "a")
    assert "is neither the folder of a run nor of a model" in refused("generate", tmp_path, "--prompt", "a")
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-1])
    assert "model.safetensors is damaged: its checksum is not the one" in refused("generate", model, "--prompt", "a")


@pytest.mark.parametrize("options", [["--temperature", "1e-320"], ["--temperature", "inf"], ["--top-p", "1e-320"]])
def test_sampling_has_no_extremes(options: list[str], model: Path) -> None:
    assert main(["generate", str(model), "--prompt", "a", "--tokens", "2", *options]) == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_text_reaches_every_encoding(
    encoding: str, model: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    """Nor does the prompt depend on what the locale takes its bytes for."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
    assert main(["generate", str(model), "--prompt", "漢\udcc3\udca9", "--tokens", "1"]) == 0
    assert written.getvalue().startswith("漢é".encode(encoding, errors="backslashreplace"))


def test_a_closed_stream_is_no_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["generate", str(model), "--prompt", "a", "--tokens", "1"]) == 0
    sys.stdout.close()


def test_generate_stops_where_the_context_is_full(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model), "--prompt", "abc", "--tokens", "1000", "--temperature", "0"]) == 0
    error = capsys.readouterr().err
    found = re.search(
        r"4 prompt tokens and the first of the text in \S+ s; 29 tokens written, after the first [\d,.]+ tokens/s",
        error,
    )
    assert found
    assert "the text stopped at 32 tokens with the prompt" in error


def test_a_single_token_has_no_rate(model: Path, framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model), "--prompt", "abc", "--tokens", "1", "--framework", framework]) == 0
    error = capsys.readouterr().err
    assert "the first of the text in" in error
    assert "1 token written; " in error


def test_several_prompts_are_continued_as_each_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, and written in their order; the first draws as it does alone, for its seed is the first."""
    (tmp_path / "prompts.txt").write_text("ab\n\nabcdef\nx\n", encoding="utf-8")
    command = ["generate", str(model), "--tokens", "30", "--top-k", "50"]
    assert main([*command, "--prompts", str(tmp_path / "prompts.txt")]) == 0
    together = capsys.readouterr()
    texts = re.split(r"(?:^|\n)== \d of 3\n", together.out)[1:]
    assert [text[:1] for text in texts] == ["a", "a", "x"]
    assert main([*command, "--prompt", "ab"]) == 0
    assert capsys.readouterr().out == texts[0] + "\n"
    assert "12 prompt tokens" in together.err
    assert "86 tokens written" in together.err, "30 and 26 and 30, as there is place for"
    assert "1 of 3 texts stopped at 32 tokens" in together.err
    greedy = [*command, "--temperature", "0"]
    assert main([*greedy, "--prompts", str(tmp_path / "prompts.txt")]) == 0
    texts = re.split(r"(?:^|\n)== \d of 3\n", capsys.readouterr().out)[1:]
    for prompt, text in zip(("ab", "abcdef", "x"), texts, strict=True):
        assert main([*greedy, "--prompt", prompt]) == 0
        assert capsys.readouterr().out.rstrip("\n") == text.rstrip("\n")


def test_prompts_that_are_no_text_are_refused(model: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(" \n\n")
    assert "has no line with text" in refused("generate", model, "--prompts", path)
    path.write_bytes(b"a\xff")
    assert "is not UTF-8 text" in refused("generate", model, "--prompts", path)


def test_what_steers_a_terminal_is_replaced_and_what_belongs_to_a_script_stays() -> None:
    assert printable("a\x1b[31m\nb\tc\r\x07é") == "a·[31m\nb\tc··é"
    controls = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
    assert printable("".join(controls)) == "·" * len(controls)
    formats = "".join(filter(lambda c: unicodedata.category(c) in ("Cf", "Mn", "Zs", "Zl"), map(chr, range(0x110000))))
    assert printable(formats) == formats, "joiners, directions, variation selectors, tags of emoji"
