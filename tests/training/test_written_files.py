"""What is read of a run and of a model folder is what was written, or an error names the file and says what to do."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.requirements import system_or_skip
from support.training_runs import STEPS, unfinished

from tmm_adapters.files import SUMS, digest
from tmm_adapters.pretrained import load_model, load_params, read_tensors
from tmm_adapters.tokenizers import load_tokenizer, train_tokenizer
from tmm_lab.cli import main
from tmm_lab.data.text import open_text, write_text
from tmm_lab.data.tokens import write_tokens
from tmm_lab.training.listing import run_of
from tmm_lab.training.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")

NEWEST = f"checkpoints/step-{STEPS:08d}"
# Each file that is read again, and what reads it.
READERS: list[tuple[str, Callable[[Path], Any]]] = [
    *((f"{where}/{name}", load_params) for where in ("model", NEWEST) for name in ("config.json", "model.safetensors")),
    *((f"{where}/tokenizer.json", load_params) for where in ("model", NEWEST)),
    (f"{NEWEST}/optimizer.safetensors", lambda folder: read_tensors(folder / "optimizer.safetensors")),
    (f"parameters/step-{STEPS:08d}.safetensors", lambda folder: read_tensors(folder / f"step-{STEPS:08d}.safetensors")),
    ("tokenizer.json", load_tokenizer),
    ("data/text", lambda folder: open_text(folder / "text")),
    ("run.json", Run.open),
]


@pytest.fixture
def run(in_torch: Path, tmp_path: Path) -> Path:
    return shutil.copytree(in_torch, tmp_path / "run")


def flip(path: Path) -> None:
    """Change a bit of what a file holds, such that it can be read as before: a digit, or the last byte."""
    data = bytearray(path.read_bytes())
    digits = [match.start() for match in re.finditer(rb"(?<=: )\d", data)]
    data[digits[-1] if digits and path.suffix == ".json" else -1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
def test_a_changed_bit_is_refused(name: str, read: Callable[[Path], Any], run: Path) -> None:
    path = run / name
    read(path.parent)
    flip(path)
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} is (damaged|not what was written)"):
        read(path.parent)


@pytest.mark.parametrize("where", ["model", NEWEST, "."])
def test_a_lost_tokenizer_is_not_replaced(
    where: str, run: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / where / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json is missing, and SHA256SUMS beside it lists it"):
        load_tokenizer(run / where)
    if where != ".":
        for command in (
            ["generate", str(run / where), "--prompt", "a"],
            ["eval", str(run / where), "--text", str(text)],
        ):
            assert main(command) == 2
            assert "tokenizer.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "eval", "index"])
def test_an_older_model_is_taken_aloud(
    command: str, in_torch: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unfinished(in_torch, tmp_path / "run").folder
    flip(run / NEWEST / "optimizer.safetensors")
    options = {"generate": ["--prompt", "a", "--tokens", "1"], "eval": ["--text", str(text)], "index": ["--no-plot"]}
    assert main([command, str(run), *options[command]]) == 0
    said = capsys.readouterr()
    assert f"tmm: skipped {run / NEWEST}: optimizer.safetensors is damaged: its checksum" in said.err
    assert "step-00000008" in said.out + said.err


def test_a_run_is_loaded_as_its_model_is(run: Path) -> None:
    model, tokenizer = load_model(run, device="cpu")
    expected, _ = load_model(run / "model", device="cpu")
    assert tokenizer is not None
    assert all((p == expected.params()[name]).all() for name, p in model.params().items())
    (run / "model" / "model.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipped .*model: model\.safetensors is damaged"):
        model, _ = load_model(run, device="cpu")
    assert all((p == expected.params()[name]).all() for name, p in model.params().items()), "of the same step"
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(FileNotFoundError, match="has no intact checkpoint yet"):
        load_model(run)


def test_tokens_that_were_changed_are_made_of_the_text_again(tmp_path: Path) -> None:
    text = write_text(["one of many words. " * 30], tmp_path / "text").whole()
    tokenizer = train_tokenizer(["one of many words. " * 30], 270)
    path = tmp_path / "tokens.npy"
    before = np.array(write_tokens(text, tokenizer, path)[:])
    whole = path.read_bytes()
    flip(path)
    assert (write_tokens(text, tokenizer, path)[:] == before).all()
    assert path.read_bytes() == whole


def test_what_was_changed_on_purpose_is_read_once_its_digest_is_listed(run: Path) -> None:
    path = run / "model" / "config.json"
    path.write_text(path.read_text().replace('"max_len": 16', '"max_len": 8'))
    with pytest.raises(ValueError, match=rf"if the change was meant, list .*sha256sum config\.json >> {SUMS}"):
        load_params(run / "model")
    with (run / "model" / SUMS).open("a") as sums:
        sums.write(f"{digest(path)}  {path.name}\n")
    with pytest.raises(ValueError, match=r"does not fit its config\.json"):
        load_params(run / "model")


LOSSES: dict[str, Callable[[Path], Any]] = {
    "absent": lambda sums: None,
    "empty": Path.touch,
    "cut": lambda sums: sums.write_bytes(b"0123"),
    "folder": Path.mkdir,
    "nowhere": lambda sums: sums.symlink_to("nowhere"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("where", ["model", NEWEST, "parameters", "."])
def test_without_its_digests_nothing_of_a_run_is_used(where: str, loss: str, run: Path) -> None:
    sums = run / where / SUMS
    sums.unlink()
    LOSSES[loss](sums)
    readers = {"parameters": READERS[7], ".": READERS[8]}
    read = readers[where][1] if where in readers else load_params
    with pytest.raises(ValueError, match=r"SHA256SUMS (is damaged|beside it)"):
        read(run / where)
    if where == "model":
        with pytest.warns(UserWarning, match=r"skipped .*model: .*SHA256SUMS is (damaged|missing)"):
            load_params(run)


def test_a_model_that_is_a_link_to_nowhere_is_passed_over_aloud(run: Path) -> None:
    shutil.rmtree(run / "model")
    (run / "model").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=r"skipped .*model: SHA256SUMS is missing"):
        load_params(run)


# However the path is written


def test_a_figure_does_not_depend_on_how_the_folder_is_named(
    run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(run / "model")
    figures = []
    for directory, name in (
        (tmp_path, str(run / "model")),
        (run / "model", "."),
        (run, "model"),
        (run / "checkpoints", "step-00000012"),
        (run / "checkpoints", "../model/../checkpoints/step-00000012"),
        (tmp_path, "link"),
    ):
        monkeypatch.chdir(directory)
        found = run_of(Path(name))
        assert found is not None
        assert found.folder.samefile(run)
        if directory in (run / "model", tmp_path):
            capsys.readouterr()
            assert main(["eval", name, "--text", str(text)]) == 0
            figures.append(re.findall(r"^  (.+?) +(\d\.\d+)$", capsys.readouterr().out, re.M))
    assert figures == [figures[0]] * 3
    assert "4-gram" in str(figures)


def test_a_model_alone_reads_documents_as_its_run_does(
    arguments: Callable[..., list[str]], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the same weights have two figures."""
    (tmp_path / "short.txt").write_text("the of model\n")
    out = tmp_path / "run"
    assert main(arguments("torch", out, "--join-documents", "--steps", "2", "--evaluations", "1")) == 0
    alone = shutil.copytree(out / "model", tmp_path / "alone")
    figures = []
    for folder in (out, alone):
        capsys.readouterr()
        files = [str(tmp_path / "short.txt"), str(text)]
        assert main(["eval", str(folder), "--text", *files]) == 0
        figures += re.findall(r"this model +([\d.]+)", capsys.readouterr().out)
    assert len(set(figures)) == 1
    assert len(figures) == 2


# Who may read


def test_files_have_the_permissions_of_all_others(finished: Path, tmp_path: Path) -> None:
    """Those of the user's umask, whatever the library is that writes them."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in finished.rglob("*"):
        other = tmp_path / ("folder" if path.is_dir() else "file")
        assert path.stat().st_mode == other.stat().st_mode, path


def test_a_file_that_must_not_be_read_is_not_called_missing(run: Path) -> None:
    system_or_skip("posix", "permissions are POSIX's")
    for folder in (run, *run.parents):
        if folder != Path("/") and folder.stat().st_uid == os.getuid() and "pytest" in str(folder):
            folder.chmod(0o755)
    path = run / "model" / "model.safetensors"
    path.chmod(0)
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)
    try:
        for read in (lambda: read_tensors(path), lambda: load_params(run / "model")):
            with pytest.raises(PermissionError, match=r"model\.safetensors is there, but you may not read it"):
                read()
    finally:
        if as_root:
            os.seteuid(0)
