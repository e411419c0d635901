"""Which framework computes: PyTorch where it is installed, else JAX, unless the user says."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from tmm_core.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from tmm_adapters.tokenizers import Tokenizer

    from ..evaluation.measure import Model
    from .learner import Framework

__all__ = ["choose", "load", "open_model"]

Name = Literal["torch", "jax"]
# By name: what a model needs, what training needs besides, and the extra that brings both.
FRAMEWORKS: dict[Name, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "torch": (("torch",), ("transformers", "accelerate"), "train"),
    "jax": (("jax", "optax"), ("orbax.checkpoint",), "train-jax"),
}


def choose(name: str, *, training: bool = False) -> Name:
    """Return the framework that `--framework name` stands for; none is imported.

    Raises
    ------
    LookupError
        If it is not installed, or `auto` finds none.
    ValueError
        If there is no framework of that name.
    """
    usable = [known for known in FRAMEWORKS if not missing(known, training)]
    if name == "auto":
        if not usable:
            raise NotFoundError(
                "there is neither PyTorch nor JAX: pip install 'tmm-core[train]', or 'tmm-core[train-jax]'"
            )
        return usable[0]
    known = next((known for known in FRAMEWORKS if known == name), None)
    if known is None:
        raise InputError(f"--framework must be auto, {' or '.join(FRAMEWORKS)}, and is {name!r}")
    if known not in usable:
        instead = f", or take --framework {usable[0]}" if usable else ""
        raise NotFoundError(
            f"--framework {name} needs {', '.join(missing(known, training))}: "
            f"pip install 'tmm-core[{FRAMEWORKS[known][2]}]'{instead}"
        )
    return known


def missing(name: Name, training: bool) -> list[str]:
    """Return the libraries that a framework needs and this Python lacks."""
    model, more, _ = FRAMEWORKS[name]
    return [library for library in (*model, *(more if training else ())) if not _installed(library)]


def load(name: Name) -> Framework:
    """Import what trains with the framework called `name`."""
    return cast("Framework", import_module(f".{name}.place", __package__))


def open_model(name: Name, folder: Path, *, device: str) -> tuple[Model, Tokenizer]:
    """Return the model in a model folder, in the framework called `name`, and its tokenizer.

    Raises
    ------
    FileNotFoundError, ValueError
        As `folder.load_params`, and if the device is not there.
    """
    opened: Any = import_module(f".{name}.measure", __package__).open_model(folder, device=device)
    return cast("tuple[Model, Tokenizer]", opened)


def _installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except (ModuleNotFoundError, ValueError):  # the package that it is a part of is not there
        return False
