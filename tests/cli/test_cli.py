"""The command line: what it prints, and that bad input is one clear line and never a traceback."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from support import commands

from tmm_adapters.pretrained import load_model, read_config, read_tensors, save_model, write_tensors
from tmm_adapters.research_code import from_research_code
from tmm_core import TMMConfig, lm
from tmm_core.errors import TMMError
from tmm_lab import cli
from tmm_lab.cli import main
from tmm_lab.cli.fields import add_fields, field_docstrings, given_fields
from tmm_lab.data.config import DataConfig
from tmm_lab.training.display import printable
from tmm_lab.training.options import TrainingOptions

# The Trainer's libraries warn as they please.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

REFERENCE = Path(__file__).parent.parent / "reference"
CONFIG = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=32)
TINY = ["--d-model", "8", "--n-layers", "1", "--n-heads", "2", "--max-len", "16", "--batch", "2", "--device", "cpu"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", CONFIG, lm.init_params(CONFIG, np.random.default_rng(0)))
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("the head mixes every token with those before it. " * 60)
    return tmp_path / "words.txt"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return partial(commands.refused, capsys)


# tmm


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, tmm_lab.cli as c; c.build_parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "jax", "numba", "numpy", "scipy", "matplotlib", "rich", "datasets"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    assert "usage: tmm" in capsys.readouterr().out


def test_every_field_of_model_and_training_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for cls in (TMMConfig, TrainingOptions, DataConfig):
        notes = field_docstrings(cls)
        for field in fields(cls):
            assert f"--{field.name.replace('_', '-')}" in shown
            assert notes[field.name].split()[0].strip("`") in shown


def test_fields_become_options() -> None:
    @dataclass
    class Example:
        n: int = 1
        x: float | None = None
        on: bool = True
        kind: Literal["a", "b"] = "a"

    parser = argparse.ArgumentParser()
    add_fields(parser, Example)
    assert given_fields(parser.parse_args([]), Example) == {}
    given = given_fields(parser.parse_args(["--n", "3", "--x", "0.5", "--no-on", "--kind", "b"]), Example)
    assert given == {"n": 3, "x": 0.5, "on": False, "kind": "b"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--kind", "c"])


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run `tmm backends` with a body that fails; return the exit code and what is on stderr."""

    def run(body: Callable[[], object], *options: str) -> tuple[int, str]:
        monkeypatch.setattr("tmm_lab.cli.backends.run", lambda arguments: body())
        code = main(["backends", *options])
        error = capsys.readouterr().err
        assert error.startswith("tmm: error: ")
        assert error.count("\n") == 1
        return code, error

    return run


def throw(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (lambda: None + 1, "TypeError: unsupported operand"),
        (lambda: {}["missing"], "KeyError: 'missing'"),
        (lambda: int("x"), "ValueError: invalid literal"),
        (lambda: np.zeros(3).reshape(2), "ValueError: cannot reshape"),
        (lambda: throw(ModuleNotFoundError("No module named 'tmm_lab.x'", name="tmm_lab.x")), "ModuleNotFoundError"),
    ],
)
def test_a_bug_is_said_to_be_one_and_leaves_a_file_for_its_report(
    body: Callable[[], object], cause: str, failing: Callable[..., tuple[int, str]]
) -> None:
    code, error = failing(body)
    assert code == 1
    assert f"this is a bug in tmm-core {version('tmm-core')}, not a mistake of yours ({cause}" in error
    report = Path(re.search(r"report it with the file (\S+\.txt)$", error)[1])
    text = report.read_text(encoding="utf-8")
    report.unlink()
    assert version("tmm-core") in text
    assert "tmm backends\n" in text
    assert "Traceback (most recent call last)" in text
    assert cause in text
    with pytest.raises((TypeError, ValueError, LookupError, ImportError)):
        failing(body, "--debug")


def test_a_bug_on_a_full_disk_is_told_all_the_same(
    failing: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.NamedTemporaryFile", lambda *_, **__: throw(OSError(28, "No space left on device")))
    code, error = failing(lambda: None + 1)
    assert code == 1
    assert "report it with the output of --debug" in error


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        *((kind("choose another"), 2, "choose another") for kind in TMMError.__subclasses__()),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (MemoryError(), 1, "out of memory: try a smaller --batch"),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "out of memory: try a smaller --batch"),
        (ModuleNotFoundError("No module named 'rich'", name="rich"), 1, "pip install 'tmm-core[train]', or"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_bug_is_told_in_its_own_words(
    raised: Exception, code: int, said: str, failing: Callable[..., tuple[int, str]]
) -> None:
    found, error = failing(lambda: throw(raised))
    assert (found, "this is a bug" in error) == (code, False)
    assert said in error


def test_ctrl_c_before_anything_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("tmm_lab.cli.backends.run", stopped)
    assert main(["backends"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_messages_of_the_core_are_on_what_stderr_is_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may call `main` again when the first stderr is closed; the logger is left as it was."""
    log = logging.getLogger("tmm_core")
    before = (log.level, list(log.handlers))

    def run(arguments: argparse.Namespace) -> int:
        log.info("compiling %d kernels", 3)
        log.debug("a detail")
        return 0

    monkeypatch.setattr("tmm_lab.cli.backends.run", run)
    for _ in range(2):
        stderr = io.StringIO()
        monkeypatch.setattr("sys.stderr", stderr)
        assert main(["backends"]) == 0
        assert stderr.getvalue() == "tmm: compiling 3 kernels\n"
        stderr.close()
    assert (log.level, log.handlers) == before


# tmm train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-heads", "3"], "n_heads=3 does not divide d_model=8"),
        (["--steps", "0"], "steps must be at least 1 and below 2147483648, and is 0"),
        (["--minutes", "1"], "--steps and --minutes are both given"),
        (["--prompt", ""], "--prompt is empty"),
        (["--vocab", "100"], "vocab must be at least 257, and is 100"),
        (["--vocab", "300", "--tokenizer", "x.json"], "--tokenizer and --vocab are both given"),
        (["--tokenizer", "x.json"], "there is no tokenizer file x.json"),
        (["--vocab-size", "100"], "the tokenizer has 257 ids and the model only vocab_size=100"),
        (["--text", "nowhere.txt"], "there is no text file nowhere.txt"),
        (["--text", "a.txt", "--dataset", "b"], "--text and --dataset are both given"),
        (["--device", "cuda"], "--device cuda is not available"),
        (["--backend", "abacus"], "unknown backend 'abacus': choose 'auto' or one of"),
        (["--report-to", "pigeons"], "--report-to pigeons is not available"),
        (["--learning-rate", "inf"], "learning_rate must be a finite number"),
        (["--weight-decay", "nan"], "weight_decay must be a finite number"),
        (["--seed", str(2**32)], "seed must be at least 0 and below 4294967296"),
        (["--steps", str(2**31)], "steps must be at least 1 and below"),
        (["--position-bias", "--prompt", "a" * 40], "the prompt is too long: 41 tokens"),
        (["--mean"], "mean=True asks for softplus=True"),
        (["--max-len", "100000"], "training text is too short"),
    ],
)
def test_train_refuses(
    options: list[str], message: str, text: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    if options[:2] == ["--device", "cuda"] and torch.cuda.is_available():
        options, message = ["--device", "mps"], "--device mps is not available"
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
    assert f"--text names {text.resolve()} twice" in refused(*command)


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
    assert "leave out --batch, --steps" in refused("train", "--resume", tmp_path, "--steps", "3", "--batch", "2")
    monkeypatch.chdir(tmp_path)
    assert "there is no run in" in refused("train", "--resume")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "run.json").write_text("{")
    assert "run.json is damaged" in refused("train", "--resume", "runs/x")
    (tmp_path / "runs" / "x" / "run.json").write_text('{"format": "tmm-run", "version": 1}')
    assert "is damaged: 'preset' is missing" in refused("train", "--resume")


def test_an_unknown_backend_in_the_environment_is_refused(model: Path) -> None:
    """The variable is read once, so in another process; `tmm index` starts quickly."""
    command = [sys.executable, "-c", "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"]
    environment = {**os.environ, "TMM_BACKEND": "abacus"}
    options = ["index", str(model), "--no-plot"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "TMM_BACKEND is 'abacus': unknown backend" in done.stderr
    assert "Traceback" not in done.stderr


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
    assert re.fullmatch(r"default-\d{8}-\d{6}", run.name)
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
    for name in ("this model", "unigram", "4-gram", "zlib"):
        assert re.search(rf"{name} +\d+\.\d{{4}} bits per byte", shown)
    assert main(["eval", str(shutil_copy(run / "model", tmp_path / "alone")), "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert "zlib" in shown
    assert "unigram" not in shown, "without the run there is no text to count"
    assert main(["train", "--resume"]) == 2


def shutil_copy(source: Path, target: Path) -> Path:
    import shutil

    return Path(shutil.copytree(source, target))


# tmm generate and tmm eval


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
        (["--prompt", "a", "--device", "mps"], "--device mps is not available"),
    ],
)
def test_generate_refuses(options: list[str], message: str, model: Path, refused: Callable[..., str]) -> None:
    if "mps" in options and torch.backends.mps.is_available():
        options, message = [*options[:-1], "cuda"], "--device cuda is not available"
    assert message in refused("generate", model, *options)


def test_an_error_while_writing_is_told_on_a_line_of_its_own(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no engine")

    monkeypatch.setattr("tmm_lab.evaluation.measure.continuations", broken)
    with pytest.raises(ValueError, match="no engine"):
        main(["generate", str(model), "--prompt", "The", "--debug"])
    assert capsys.readouterr().out == "The\n"


def test_generate_refuses_what_is_no_model(tmp_path: Path, model: Path, refused: Callable[..., str]) -> None:
    assert "there is no folder" in refused("generate", tmp_path / "nowhere", "--prompt", "a")
    assert "is neither the folder of a run nor of a model" in refused("generate", tmp_path, "--prompt", "a")
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-1])
    assert "is not a whole safetensors file" in refused("generate", model, "--prompt", "a")


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
    assert re.search(r"4 prompt tokens and the first of the text in \S+ s; 29 tokens written, [\d,]+ tokens/s", error)
    assert "the text stopped at 32 tokens with the prompt" in error


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


def test_a_model_that_has_lost_its_tokenizer_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    """A converted one had none to lose."""
    main(["convert", str(REFERENCE / "flat.safetensors"), str(tmp_path / "model")])
    for command in (
        ("generate", tmp_path / "model", "--prompt", "a"),
        ("eval", tmp_path / "model", "--text", __file__),
    ):
        assert re.search(r"has no tokenizer.json, and its \d+ tokens are not the 257 of bytes: copy", refused(*command))


def test_eval_refuses(tmp_path: Path, model: Path, text: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    assert "is empty" in refused("eval", model, "--text", tmp_path / "empty.txt")
    assert "there is no text file" in refused("eval", model, "--text", tmp_path / "none.txt")
    assert "--batch must be at least 1" in refused("eval", model, "--text", text, "--batch", "0")
    huge = {name: np.full_like(p, 1e30) for name, p in read_tensors(model / "model.safetensors").items()}
    write_tensors(model / "model.safetensors", huge)
    assert "has no finite loss on this text" in refused("eval", model, "--text", text)


def test_eval_measures_a_text_shorter_than_the_context(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("short")
    assert main(["eval", str(model), "--text", str(tmp_path / "short.txt")]) == 0
    cost = float(re.search(r"this model +([\d.]+)", capsys.readouterr().out)[1])
    network, tokenizer = load_model(model, device="cpu")
    ids = torch.tensor([[tokenizer.end_of_text, *tokenizer.encode("short"), tokenizer.end_of_text]])
    nats = torch.nn.functional.cross_entropy(network(ids)["logits"][0, :-1], ids[0, 1:], reduction="sum").item()
    assert cost == pytest.approx(nats / np.log(2) / 5, abs=1e-4)


def test_a_path_that_is_wrong_is_bad_input_and_not_a_failure(
    tmp_path: Path, model: Path, text: Path, refused: Callable[..., str]
) -> None:
    for command in (
        ["train", *TINY, "--text", text, "--out", text / "run"],
        ["convert", REFERENCE / "flat.safetensors", text / "run"],
        ["train", *TINY, "--text", tmp_path / "none.txt"],
        ["generate", tmp_path / "none", "--prompt", "a"],
        ["eval", model, "--text", tmp_path],
    ):
        assert re.search(r"choose|check|name", refused(*command, code=2)), "the remedy"


def test_what_steers_a_terminal_is_replaced() -> None:
    assert printable("a\x1b[31m\nb\tc\r\x07é") == "a·[31m\nb\tc··é"


# tmm convert


def test_convert_reads_a_reference_and_writes_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    source = REFERENCE / "softplus_mean_heads4.safetensors"
    assert "mean=" in refused("convert", source, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert main(["convert", str(source), str(tmp_path / "model"), "--mean"]) == 0
    config, params = from_research_code(read_tensors(source), mean=True)
    assert read_config(tmp_path / "model") == config
    written = read_tensors(tmp_path / "model" / "model.safetensors")
    assert all((written[name] == params[name]).all() for name in params)
    said = capsys.readouterr().out
    assert "parameters in" in said
    assert "its 97 tokens are not the 257 of bytes" in said, "else it would be a surprise later"
    assert "is not empty" in refused("convert", source, tmp_path / "model", "--mean")


def test_convert_refuses_what_it_does_not_know(tmp_path: Path, refused: Callable[..., str]) -> None:
    write_tensors(tmp_path / "other.safetensors", {"transformer.wte": np.zeros((2, 2), np.float32)})
    assert "transformer.wte" in refused("convert", tmp_path / "other.safetensors", tmp_path / "model")
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x04K\x01.")
    assert "is not a whole safetensors file" in refused("convert", tmp_path / "pickle.pt", tmp_path / "model")
    assert "there is no file" in refused("convert", tmp_path / "none", tmp_path / "model")


def test_commands_are_documented() -> None:
    commands = [importlib.import_module(f"tmm_lab.cli.{name}") for name in cli.COMMANDS]
    assert all(module.__doc__.startswith("`tmm ") for module in commands)
