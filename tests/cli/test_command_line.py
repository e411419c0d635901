"""The command line: help, messages, and errors that are one clear line and no traceback."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import REFERENCE, REQUIRED, TINY
from support.processes import run_python
from support.requirements import skip_without, system_or_skip

from tmm_core.errors import TMMError
from tmm_lab import cli
from tmm_lab.cli import main

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


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


def test_commands_are_documented() -> None:
    commands = [importlib.import_module(f"tmm_lab.cli.{name}") for name in cli.COMMANDS]
    assert all(module.__doc__.startswith("`tmm ") for module in commands)


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
        (ModuleNotFoundError("No module named 'rich'", name="rich"), 1, "pip install 'tmm-core[train]' or"),
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
    """A program may call `main` again when the first stderr is closed; the logger is left as it was.

    JAX's libraries write to stderr what comes to the root logger.
    """
    log = logging.getLogger("tmm_core")
    before = (log.level, log.propagate, list(log.handlers))

    def run(arguments: argparse.Namespace) -> int:
        log.info("compiling %d kernels", 3)
        log.debug("a detail")
        return 0

    monkeypatch.setattr("tmm_lab.cli.backends.run", run)
    for _ in range(2):
        stderr = io.StringIO()
        monkeypatch.setattr("sys.stderr", stderr)
        monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(stderr)])
        assert main(["backends"]) == 0
        assert stderr.getvalue() == "tmm: compiling 3 kernels\n"
        stderr.close()
    assert (log.level, log.propagate, log.handlers) == before


def test_warnings_are_told_as_all_else_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: argparse.Namespace) -> int:
        warnings.warn("it is odd", RuntimeWarning, stacklevel=1)
        return 0

    before = warnings.showwarning
    monkeypatch.setattr("tmm_lab.cli.backends.run", run)
    assert main(["backends"]) == 0
    assert capsys.readouterr().err == "tmm: warning: it is odd\n"
    assert warnings.showwarning is before


def test_an_unknown_backend_in_the_environment_is_refused(model: Path) -> None:
    """The variable is read once, so in another process; `tmm index` starts quickly."""
    command = [sys.executable, "-c", "import sys; from tmm_lab.cli import main; sys.exit(main(sys.argv[1:]))"]
    environment = {**os.environ, "TMM_BACKEND": "abacus"}
    options = ["index", str(model), "--no-plot"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "TMM_BACKEND is 'abacus': unknown backend" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_that_is_wrong_is_bad_input_and_not_a_failure(
    tmp_path: Path, model: Path, text: Path, refused: Callable[..., str]
) -> None:
    for command in (
        ["train", *TINY, "--text", text, "--out", text / "run"],
        ["convert", REFERENCE / "flat.safetensors", text / "run"],
        ["train", *TINY, "--text", tmp_path / "none.txt"],
        ["generate", tmp_path / "none", "--prompt", "a"],
        ["eval", model, "--text", tmp_path / "none"],
        ["generate", model, "--prompts", tmp_path],
        ["convert", REFERENCE / "flat.safetensors", tmp_path / "new", "--tokenizer", tmp_path],
    ):
        assert re.search(r"choose|check|name", refused(*command, code=2)), "the remedy"


def test_names_are_written_as_they_are_and_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names need be no text, and a name that is shown should serve to be typed again."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    said = "run \udcff\udcfe, é 🙂 \ud83d\n"
    monkeypatch.setattr("tmm_lab.cli.backends.run", lambda arguments: print(said, end="") or 0)
    assert main(["backends"]) == 0
    assert stream.buffer.getvalue() == b"run \xff\xfe, \\xe9 \\U0001f642 \\ud83d\n"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_what_a_command_does_not_know_is_told_with_its_own_usage(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Abbreviations are not known: what begins one option today may begin two tomorrow."""
    for unknown, hint in (("--debu", "; did you mean --debug?"), ("--surely-unknown", "")):
        with pytest.raises(SystemExit) as stopped:
            main([command, *REQUIRED.get(command, []), unknown])
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"usage: tmm {command} ")
        assert said.endswith(f"tmm {command}: error: unrecognized arguments: {unknown}{hint}\n")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (["trian"], "train"),
        (["train", "--n_heads", "2"], "--n-heads"),
        (["train", "--arch", "lama"], "llama"),
        (["train", "--preset", "papr"], "paper"),
        (["train", "--backend", "Nubma"], "numba"),
        (["train", "--precision", "bfloat"], "bfloat16"),
        (["train", "--framework", "tourch"], "torch"),
        (["compare", "--arch", "tmm", "hiena"], "hyena"),
        (["study", "eficiency", "--quick"], "efficiency"),
        (["agree", "nump"], "numpy"),
        (["bench", "prodct"], "product"),
        (["train", "texts/"], "--text texts/"),
        (["compare", "llama"], "--arch llama"),
        (["generate", "The module"], "--prompt 'The module'"),
        (["eval", __file__], f"--text {__file__}"),
        (["eval", ".", "notes.txt", "--text", "a"], "--text notes.txt"),
    ],
    ids=" ".join,
)
def test_what_is_nearly_right_is_told_what_may_be_meant(
    command: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(command)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--n-heads", "3", "--d-model", "8"], "--n-heads 3 does not divide --d-model 8: every head needs"),
        (["--mean"], "--mean asks for --softplus: only positive"),
        (["--arch", "mamba2", "--n-heads", "1"], "--n-groups 8 does not divide --n-heads 1"),
        (["--arch", "hyena", "--n-features", "4"], "--n-features must be odd"),
        (["--arch", "llama", "--d-model", "0"], "--d-model must be at least 1, and is 0"),
    ],
)
def test_a_model_that_cannot_be_is_told_by_the_options(
    options: list[str], said: str, refused: Callable[..., str]
) -> None:
    assert said in refused("train", *options, code=2)


@pytest.mark.parametrize("module", ["argparse", "tmm_lab.cli", "tmm_lab.cli.train", "tmm_core.errors"])
def test_ctrl_c_while_the_command_line_is_imported_is_130(module: str) -> None:
    """The program is interrupted as it imports a module, the first of its own among them."""
    if os.name == "nt":
        skip_without("posix", "Ctrl-C is no signal there")
    code = f"""
        import importlib.abc, os, runpy, signal, sys
        class Interrupter(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tmm_core", "argparse")]:
            del sys.modules[name]
        sys.meta_path.insert(0, Interrupter())
        sys.argv = ["tmm", "backends"]
        runpy.run_module("tmm_lab", run_name="__main__")
        """
    done = run_python(code, fails=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ntmm: stopped\n")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_current_folder_that_is_gone_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    """MKL would end the process without a word of where."""
    system_or_skip("posix", "other systems keep a folder that is in use")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "the current folder is not there any more" in refused(command, *REQUIRED.get(command, []), code=2)
