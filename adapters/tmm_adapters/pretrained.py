"""Model folders: `config.json`, `model.safetensors` and, unless tokens are bytes, `tokenizer.json`.

`config.json` holds the fields of the configuration and, as `model_type`, the name of its architecture, which decides
what is loaded. The tensors have the names of the parameters, so a folder serves every framework of the architecture. A
folder is written under a temporary name and renamed when complete: it is there whole, or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tmm_core.backend import namespace_of
from tmm_core.errors import InputError, MissingFileError, NotFoundError

from .architecture import ModelConfig, config_from_dict, get_architecture
from .devices import torch_device
from .files import atomic_folder, require_empty

if TYPE_CHECKING:
    from .tokenizers import Tokenizer

__all__ = [
    "CONFIG",
    "WEIGHTS",
    "is_model",
    "load_model",
    "load_params",
    "read_config",
    "read_tensors",
    "save_model",
    "write_json",
    "write_model",
    "write_tensors",
]

CONFIG, WEIGHTS = "config.json", "model.safetensors"

Arrays = Literal["numpy", "pt"]


def is_model(folder: str | os.PathLike[str]) -> bool:
    """Return whether `folder` looks like a model folder: whether it has a `config.json`."""
    return (Path(folder) / CONFIG).is_file()


def save_model(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    tensors: Mapping[str, Any],
    *,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a new model folder; it appears under its name when complete.

    Parameters
    ----------
    folder : path
        Must not exist yet, or be empty.
    config : ModelConfig
        The model.
    tensors : mapping of str to array
        Parameters by name, all Torch tensors or all NumPy arrays.
    tokenizer : Tokenizer, optional
        What turns text into the model's token ids; None for bytes.

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
        write_model(temporary, config, tensors, tokenizer=tokenizer)


def write_model(folder: Path, config: ModelConfig, tensors: Mapping[str, Any], *, tokenizer: Tokenizer | None) -> None:
    """Write the files of a model into the existing `folder`."""
    write_json(folder / CONFIG, get_architecture(config.model_type).file_fields(config))
    write_tensors(folder / WEIGHTS, tensors)
    if tokenizer is not None:
        tokenizer.save(folder)


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
    folder = Path(folder)
    path = folder / CONFIG
    if not folder.is_dir():
        raise MissingFileError(f"there is no model folder {folder}: check the path")
    if not path.is_file():
        raise MissingFileError(
            f"{folder} is not a model folder: it has no {CONFIG}; give the folder of a run or of a model"
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): the folder is damaged, write it anew") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path} does not describe a model: expected an object with the field 'model_type'")
    try:
        return config_from_dict(fields.get("tmm", fields))
    except NotFoundError as error:
        raise NotFoundError(f"{path}: {error}") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} does not describe a model: {error}") from error


def load_model(folder: str | os.PathLike[str], *, device: str = "auto") -> tuple[Any, Tokenizer]:
    """Return the Torch model in a model folder, ready to use, and its tokenizer.

    The model is what its architecture computes with, such as `tmm_adapters.torch.LanguageModel`.

    Parameters
    ----------
    folder : path
        The model folder.
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
) -> tuple[dict[str, Any], ModelConfig, Tokenizer]:
    """Return the parameters in a model folder by name, its configuration and its tokenizer.

    Parameters
    ----------
    folder : path
        The model folder.
    framework : {"numpy", "pt"}
        NumPy arrays, in which bfloat16 becomes float32, or Torch tensors on the CPU.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is damaged, the weights are not those of the configuration, or the tokenizer does not fit.
    """
    from .tokenizers import check_fits, load_tokenizer

    config, tokenizer, path = read_config(folder), load_tokenizer(folder), Path(folder) / WEIGHTS
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
    ValueError
        If the file is truncated or not a safetensors file.
    """

    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}: check the path, and whether its folder is whole")
    try:
        with safe_open(path, framework=framework) as file:
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


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write tensors of one library to a safetensors file; a full disk is an OSError, as for any other file."""
    import numpy as np
    from safetensors import SafetensorError

    try:
        if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
            import safetensors.numpy as writer
        else:
            import safetensors.torch as writer  # type: ignore[no-redef]
        writer.save_file({name: _contiguous(tensor) for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _contiguous(tensor: Any) -> Any:
    """Return `tensor` in the order that safetensors writes."""
    if hasattr(tensor, "detach"):
        return tensor.detach().contiguous()
    import numpy as np

    return np.ascontiguousarray(tensor)
