"""Model folders: `config.json`, `model.safetensors` and, where the model has one, `tokenizer.json`; and `hub`'s files.

`config.json` holds the fields of the configuration and, as `model_type`, the name of its architecture, which decides
what is loaded; where transformers loads the folder as well they are its field `tmm`, beside those of transformers. The
tensors have the names of the parameters, so a folder serves every framework of the architecture. A folder is written
under a temporary name and renamed when complete: it is there whole, or not at all. `SHA256SUMS` in it tells what was
written, and nothing else is read; folders of other tools, which have none, are read as they are.
"""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tmm_core.backend import namespace_of, plain_memory
from tmm_core.errors import InputError, InputTypeError, MissingFileError, NotFoundError
from tmm_core.fields import Configuration

from .architecture import ModelConfig, architectures, config_from_dict, get_architecture
from .checkpoints import CONFIG, WEIGHTS, find_model
from .devices import torch_device
from .files import as_json, atomic_folder, check, open_to_read, parse_json, require_empty
from .hub import hub_files

if TYPE_CHECKING:
    from .tokenizers import Tokenizer

__all__ = [
    "WEIGHTS",
    "joins_documents",
    "load_model",
    "load_params",
    "read_config",
    "read_tensors",
    "save_model",
    "save_params",
    "write_json",
    "write_model",
    "write_tensors",
]

Arrays = Literal["numpy", "pt"]

_JOINS = "join_documents"


def save_model(
    folder: str | os.PathLike[str],
    model: Any,
    tokenizer: Tokenizer | None = None,
    *,
    config: ModelConfig | None = None,
) -> None:
    """Write a Torch model as a new model folder, from which `load_model` returns it.

    Parameters
    ----------
    folder : path
        Must not exist yet, or be empty.
    model : nn.Module
        On any device.
    tokenizer : Tokenizer, optional
        What turns text into the model's token ids.
    config : ModelConfig, optional
        By default `model.config`; to be given where that is another library's.

    Raises
    ------
    FileExistsError
        If `folder` holds anything.
    OSError
        If it cannot be written, for example on a full disk; nothing is left then.
    TypeError
        If there is no configuration.
    """
    config = getattr(model, "config", None) if config is None else config
    if getattr(config, "model_type", None) not in architectures() or not isinstance(config, Configuration):
        raise InputTypeError(
            f"the configuration of a {type(model).__name__} is a {type(config).__name__}, which is none of an "
            "architecture: pass config=, what the model was made from"
        )
    save_params(folder, model.state_dict(), config, tokenizer)  # type: ignore[arg-type]


def save_params(
    folder: str | os.PathLike[str],
    params: Mapping[str, Any],
    config: ModelConfig,
    tokenizer: Tokenizer | None = None,
    *,
    join_documents: bool = False,
    results: Mapping[str, float] | None = None,
) -> None:
    """Write parameters as a new model folder, from which `load_params` returns them.

    Parameters
    ----------
    folder : path
        Must not exist yet, or be empty.
    params : mapping of str to array
        Parameters by name, all Torch tensors or all NumPy arrays.
    config : ModelConfig
        The model.
    tokenizer : Tokenizer, optional
        What turns text into the model's token ids.
    join_documents : bool
        Whether documents that share a context see each other, as in the model's training.
    results : mapping, optional
        Numbers of the training by name, for the model card.

    Raises
    ------
    FileExistsError
        If `folder` holds anything.
    OSError
        If it cannot be written, for example on a full disk; nothing is left then.
    """
    folder = Path(folder)
    require_empty(folder)
    with atomic_folder(folder) as temporary:
        write_model(temporary, params, config, tokenizer, join_documents=join_documents, results=results)


def write_model(
    folder: Path,
    params: Mapping[str, Any],
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    *,
    join_documents: bool,
    results: Mapping[str, float] | None = None,
) -> None:
    """Write the files of a model into the existing `folder`; see `save_params`."""
    fields = get_architecture(config.model_type).file_fields(config)
    write_json(folder / CONFIG, fields | ({_JOINS: True} if join_documents else {}))
    write_tensors(folder / WEIGHTS, params)
    if tokenizer is not None:
        tokenizer.save(folder)
    for name, text in hub_files(fields, config, tokenizer, results or {}).items():
        (folder / name).write_text(text, encoding="utf-8")


def read_config(folder: str | os.PathLike[str]) -> ModelConfig:
    """Return the configuration of a model folder, of the class that belongs to its architecture.

    Raises
    ------
    FileNotFoundError
        If there is no folder, or it has no `config.json`.
    LookupError
        If its architecture is not registered.
    ValueError
        If the file is not a configuration.
    """
    path, fields = _config_fields(Path(folder))
    fields.pop(_JOINS, None)
    try:
        return config_from_dict(fields.get("tmm", fields))
    except NotFoundError as error:
        raise NotFoundError(f"{path}: {error}") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} does not describe a model: {error}") from error


def joins_documents(folder: str | os.PathLike[str]) -> bool:
    """Return whether the model in a model folder reads documents that share a context as one text.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_config`.
    """
    return _config_fields(Path(folder))[1].get(_JOINS) is True


def _config_fields(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the configuration file of a model folder, and what it holds."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise MissingFileError(f"there is no model folder {folder}: check the path")
    check(path)
    if not path.is_file():
        raise MissingFileError(
            f"{folder} is not a model folder: it has no {CONFIG}; give the folder of a run or of a model"
        )
    try:
        with open_to_read(path) as file:
            fields = parse_json(file.read())
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): the folder is damaged, write it anew") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path} does not describe a model: expected an object with the field 'model_type'")
    return path, fields


def load_model(folder: str | os.PathLike[str], *, device: str = "auto") -> tuple[Any, Tokenizer | None]:
    """Return the Torch model in a folder, ready to use, and its tokenizer, None where it has none.

    The model is what its architecture computes with, such as `tmm_adapters.torch.LanguageModel`.

    Parameters
    ----------
    folder : path
        The folder of a model, or of a run, as `find_model` takes it.
    device : str
        As `devices.torch_device` takes it.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load_params`, and if the device is not there.
    LookupError
        If PyTorch is not installed.
    """
    where = torch_device(device)
    tensors, config, tokenizer = load_params(folder, "pt")
    model = get_architecture(config.model_type).torch_from_params(tensors, config)
    return model.to(where).eval(), tokenizer


def load_params(
    folder: str | os.PathLike[str], framework: Arrays = "numpy"
) -> tuple[dict[str, Any], ModelConfig, Tokenizer | None]:
    """Return the parameters in a folder by name, the configuration, and the tokenizer, None where there is none.

    Parameters
    ----------
    folder : path
        The folder of a model, or of a run, as `find_model` takes it.
    framework : {"numpy", "pt"}
        NumPy arrays, in which bfloat16 becomes float32, or Torch tensors on the CPU.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is damaged, the weights are not those of the configuration, or the tokenizer does not fit.

    Warns
    -----
    UserWarning
        If the newest model of a run is damaged, and an older one is taken.
    """
    from .tokenizers import check_fits, load_tokenizer

    folder, skipped = find_model(Path(folder))
    for reason in skipped:
        warnings.warn(f"skipped {reason}", stacklevel=2)
    config, tokenizer, path = read_config(folder), load_tokenizer(folder), folder / WEIGHTS
    if tokenizer is not None:
        check_fits(tokenizer, config.vocab_size)
    params = read_tensors(path, framework)
    bad = [name for name, array in params.items() if not bool(namespace_of(array).isfinite(array).all())]
    if bad:
        raise InputError(f"{path} is damaged: {bad[0]} is not finite; copy or train it again")
    try:
        get_architecture(config.model_type).check_params(params, config)
    except ValueError as error:
        raise InputError(f"{path} does not fit its {CONFIG}: {error}") from error
    return params, config, tokenizer


def read_tensors(path: str | os.PathLike[str], framework: Arrays = "numpy", *, containing: str = "") -> dict[str, Any]:
    """Return the tensors of a safetensors file whose names contain a word, by default all of them.

    They are NumPy arrays, or Torch tensors (`pt`) on the CPU. NumPy lacks bfloat16, which becomes float32 there,
    without loss; that asks for ml_dtypes.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    PermissionError
        If the file must not be read.
    ValueError
        If the file is not what was written, or no safetensors file.
    """

    from safetensors import SafetensorError, safe_open

    path = Path(path)
    check(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}: check the path, and whether its folder is whole")
    try:
        with open_to_read(path) as opened, safe_open(_text_path(path, opened.fileno()), framework=framework) as file:
            names = [name for name in file.keys() if containing in name]  # noqa: SIM118  (not a mapping)
            short = [name for name in names if file.get_slice(name).get_dtype() == "BF16"]
            if framework == "numpy" and short:
                import ml_dtypes  # noqa: F401  (tells NumPy what bfloat16 is)
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}): it is truncated or damaged; copy or train it again"
        ) from error
    if framework == "numpy":
        tensors |= {name: tensors[name].astype("float32") for name in short}
    return tensors


def _text_path(path: Path, descriptor: int) -> Path:
    """Return a path of an open file that is text: safetensors takes no other, and on Linux names may be any bytes."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return Path(f"/dev/fd/{descriptor}")
    return path


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors of one library to a safetensors file; a full disk is an OSError, as for any other file."""
    import numpy as np
    from safetensors import SafetensorError

    path.touch()
    mode = path.stat().st_mode  # as for any other new file; safetensors from 0.8 on lets only the owner read its own
    try:
        if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
            import safetensors.numpy as writer
        else:
            import safetensors.torch as writer  # type: ignore[no-redef]
        writer.save_file({name: _contiguous(tensor) for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number) if found else str(error), str(path)) from error
    path.chmod(mode)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON."""
    path.write_text(as_json(value), encoding="utf-8")


def _contiguous(tensor: Any) -> Any:
    """Return `tensor` in the order that safetensors writes."""
    if hasattr(tensor, "detach"):
        return plain_memory(tensor).contiguous()
    import numpy as np

    return np.ascontiguousarray(tensor)
