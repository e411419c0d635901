"""Model folders: there whole or not at all, and refused with the cause and the remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import REFERENCE
from support.requirements import import_or_skip, system_or_skip

from tmm_adapters.files import SUMS
from tmm_adapters.pretrained import (
    load_model,
    load_params,
    read_config,
    read_tensors,
    save_model,
    save_params,
    write_tensors,
)
from tmm_adapters.research_code import from_research_code
from tmm_adapters.tokenizers import ByteTokenizer
from tmm_core import TMMConfig, lm

CONFIG = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16)


@pytest.fixture
def params() -> dict[str, np.ndarray]:
    return lm.init_params(CONFIG, np.random.default_rng(0))


@pytest.fixture
def folder(tmp_path: Path, params: dict[str, np.ndarray]) -> Path:
    save_params(tmp_path / "model", params, CONFIG, ByteTokenizer())
    return tmp_path / "model"


def test_a_folder_gives_back_configuration_and_parameters(folder: Path, params: dict[str, np.ndarray]) -> None:
    assert read_config(folder) == CONFIG
    back = read_tensors(folder / "model.safetensors")
    assert back.keys() == params.keys()
    assert all((back[name] == params[name]).all() for name in params)
    model, tokenizer = load_model(folder, device="cpu")
    assert tokenizer.fingerprint == "bytes"
    assert all((array == params[name]).all() for name, array in model.params().items())


def test_torch_tensors_are_written_as_numpy_arrays_are(tmp_path: Path, params: dict[str, np.ndarray]) -> None:
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in params.items()}
    tensors["embed.weight"] = tensors["embed.weight"].T.contiguous().T  # any strides
    save_params(tmp_path / "torch", tensors, CONFIG)
    back = read_tensors(tmp_path / "torch" / "model.safetensors")
    assert all((back[name] == params[name]).all() for name in params)


def test_a_folder_that_holds_anything_is_left_alone(tmp_path: Path, params: dict[str, np.ndarray]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="is not empty: choose another"):
        save_params(tmp_path / "mine", params, CONFIG)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["letter.txt"]
    (tmp_path / "empty").mkdir()
    save_params(tmp_path / "empty", params, CONFIG)
    assert read_config(tmp_path / "empty") == CONFIG


def test_nothing_is_left_of_a_folder_that_could_not_be_written(
    tmp_path: Path, params: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_params(tmp_path / "model", params, CONFIG)
    assert list(tmp_path.iterdir()) == []


# In a process of its own: the limit holds for whatever a process writes, a test run's report as well.
WRITE_SMALL_FILES_ONLY = """
import resource, sys
from pathlib import Path
import numpy
from tmm_adapters.files import SUMS
from tmm_adapters.pretrained import save_params
from tmm_core import TMMConfig, lm

config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16)
params = lm.init_params(config, numpy.random.default_rng(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_params(Path(sys.argv[1]), params, config)
except OSError as error:
    print(error)
"""


def test_a_write_that_the_system_refuses_is_an_oserror(tmp_path: Path) -> None:
    system_or_skip("posix", "limits are POSIX's")
    command = [sys.executable, "-c", WRITE_SMALL_FILES_ONLY, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.match(r"cannot write .*model: .*File too large", done.stdout), done
    assert list(tmp_path.iterdir()) == []


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.write_bytes({"header": b"\xff" * 16 + data[16:], "short": data[: len(data) // 2], "empty": b""}[how])


@pytest.fixture
def foreign(folder: Path) -> Path:
    """A folder as another tool leaves it, without digests."""
    (folder / SUMS).unlink()
    return folder


@pytest.mark.parametrize("how", ["header", "short", "empty"])
def test_damaged_weights_are_refused(foreign: Path, how: str) -> None:
    folder = foreign
    damaged(folder / "model.safetensors", how)
    with pytest.raises(
        ValueError, match=r"model\.safetensors is not a whole safetensors file .* copy or train it again"
    ):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda d: (d / "config.json").unlink(), FileNotFoundError, "is neither the folder of a run nor of a model"),
        (lambda d: (d / "config.json").write_text("{"), ValueError, "is not JSON"),
        (lambda d: (d / "config.json").write_text("[]"), ValueError, "does not describe a model"),
        (lambda d: (d / "model.safetensors").unlink(), FileNotFoundError, "there is no file"),
        (lambda d: (d / "tokenizer.json").write_text("no"), ValueError, "is not a tokenizer"),
    ],
)
def test_what_is_no_model_is_refused(foreign: Path, change: object, kind: type[Exception], message: str) -> None:
    change(foreign)  # type: ignore[operator]
    with pytest.raises(kind, match=message):
        load_model(foreign)


def test_missing_folders_and_later_versions_are_refused(foreign: Path, tmp_path: Path) -> None:
    folder = foreign
    with pytest.raises(FileNotFoundError, match="there is no model folder"):
        read_config(tmp_path / "nowhere")
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "tmm": {**fields["tmm"], "n_experts": 2}}))
    with pytest.raises(ValueError, match=r"unknown fields \['n_experts'\].*update"):
        read_config(folder)


def test_the_configuration_names_the_architecture(foreign: Path) -> None:
    folder = foreign
    fields = json.loads((folder / "config.json").read_text())
    assert fields["model_type"] == "tmm"
    (folder / "config.json").write_text(json.dumps({**fields, "tmm": {**fields["tmm"], "model_type": "ttm"}}))
    with pytest.raises(LookupError, match=r"config\.json: unknown architecture 'ttm': choose one of .*tmm"):
        load_model(folder)
    del fields["tmm"]["model_type"]
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="does not describe a model: expected the field 'model_type'"):
        load_model(folder)


def test_weights_of_another_model_are_refused(foreign: Path, params: dict[str, np.ndarray]) -> None:
    write_tensors(foreign / "model.safetensors", {**params, "embed.weight": params["embed.weight"][:-1]})
    with pytest.raises(ValueError, match=r"does not fit its config\.json: .*embed\.weight has the shape"):
        load_model(foreign)


def test_weights_that_are_no_numbers_are_refused(foreign: Path, params: dict[str, np.ndarray]) -> None:
    write_tensors(foreign / "model.safetensors", {**params, "unembed.weight": params["unembed.weight"] * np.nan})
    with pytest.raises(ValueError, match=r"is damaged: unembed\.weight is not finite"):
        load_model(foreign)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    small = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16, vocab_size=100)
    save_params(tmp_path / "small", lm.init_params(small, np.random.default_rng(0)), small, ByteTokenizer())
    with pytest.raises(ValueError, match="the tokenizer has 257 ids and the model only vocab_size=100"):
        load_model(tmp_path / "small")


def test_written_values_are_those_that_tensors_have(tmp_path: Path) -> None:
    torch = import_or_skip("torch")
    a = torch.randn(3, 4)
    written = {
        "negative": torch._neg_view(-a),
        "zero": torch._efficientzerotensor((3, 4)),
        "sparse": a.to_sparse(),
        "expanded": a[:1].expand(3, 4),
        "parameter": torch.nn.Parameter(a),
    }
    write_tensors(tmp_path / "tensors", written)
    back = read_tensors(tmp_path / "tensors", "pt")
    for name, tensor in written.items():
        assert torch.equal(back[name], tensor.detach().to_dense().clone()), name


# The names that users of other libraries expect


def test_what_is_loaded_is_what_is_saved(folder: Path, tmp_path: Path, params: dict[str, np.ndarray]) -> None:
    loaded = load_model(folder, device="cpu")
    save_model(tmp_path / "as model", *loaded)
    save_params(tmp_path / "as params", *load_params(folder))
    for copy in (tmp_path / "as model", tmp_path / "as params"):
        again, config, tokenizer = load_params(copy)
        assert (config, tokenizer and tokenizer.fingerprint) == (CONFIG, "bytes")
        assert all((again[name] == params[name]).all() for name in params)
    assert loaded[0].config == CONFIG
    import torch

    with pytest.raises(TypeError, match=r"the configuration of a Linear is a NoneType, .*pass config="):
        save_model(tmp_path / "linear", torch.nn.Linear(2, 2))


def test_a_folder_without_tokenizer_has_none(tmp_path: Path, params: dict[str, np.ndarray]) -> None:
    """Whatever the number of its tokens is: nobody said that they are bytes."""
    save_params(tmp_path / "model", params, CONFIG)
    assert load_model(tmp_path / "model", device="cpu")[1] is None
    assert load_params(tmp_path / "model")[2] is None


@pytest.mark.parametrize("source", sorted(REFERENCE.glob("*.safetensors")), ids=lambda path: path.stem)
def test_models_of_the_research_code_load_without_tokenizer(source: Path, tmp_path: Path) -> None:
    config, params = from_research_code(
        read_tensors(source), mean="mean" in source.stem if "softplus" in source.stem else None
    )
    save_params(tmp_path / "model", params, config)
    model, tokenizer = load_model(tmp_path / "model", device="cpu")
    assert tokenizer is None
    assert all((p == params[name]).all() for name, p in model.params().items())


def test_loss_and_text_have_the_names_of_transformers(folder: Path) -> None:
    import torch

    model, tokenizer = load_model(folder, device="cpu")
    ids = torch.tensor([tokenizer("some text")["input_ids"]])
    output = model(ids, labels=ids)
    assert output.loss is output["loss"]
    assert output.logits.shape == (1, 9, 257)
    with pytest.raises(AttributeError, match=r"no 'loss' among logits; give targets or labels"):
        _ = model(ids).loss
    greedy = model.generate(ids, 5, do_sample=False, eos_token_id=tokenizer.end_of_text)
    assert (greedy == model.generate(ids, 5, temperature=0, eos_token_id=tokenizer.end_of_text)).all()


# Where folders are made


def test_a_link_that_leads_nowhere_is_said_to(tmp_path: Path, params: dict[str, np.ndarray]) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for out in (tmp_path / "link", tmp_path / "link" / "model"):
        with pytest.raises(FileExistsError, match=r"link is a link to nowhere, which does not exist: make that folder"):
            save_params(out, params, CONFIG)
    (tmp_path / "nowhere").mkdir()
    save_params(tmp_path / "link", params, CONFIG)
    assert (tmp_path / "link").is_symlink()
    assert read_config(tmp_path / "nowhere") == CONFIG


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "Read-only file system; nothing can be written there, so choose another place"),
        (errno.ENOSPC, "No space left on device; make room"),
        (errno.EACCES, "Permission denied; choose another place, or let it be written"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named_as_it_was_asked_for(
    number: int, remedy: str, tmp_path: Path, params: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(OSError, match=rf"^cannot write {re.escape(str(tmp_path / 'model'))}: {remedy}$") as caught:
        save_params(tmp_path / "model", params, CONFIG)
    assert caught.value.errno == number
