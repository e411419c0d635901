"""Which framework trains: PyTorch where it is installed, else JAX, unless the user says."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from .learner import Framework

__all__ = ["choose", "load"]

Name = Literal["torch", "jax"]
# By name: what training with it imports, and the extra that brings that.
FRAMEWORKS: dict[Name, tuple[tuple[str, ...], str]] = {
    "torch": (("torch", "transformers", "accelerate"), "train"),
    "jax": (("jax", "optax", "orbax.checkpoint"), "train-jax"),
}


def choose(name: str) -> Name:
    """Return the framework that `--framework name` stands for; none is imported.

    Raises
    ------
    LookupError
        If it is not installed, or `auto` finds none.
    """
    if name == "auto":
        found = [other for other in FRAMEWORKS if not missing(other)]
        if not found:
            raise LookupError("no framework to train with: pip install 'tmm-core[train]', or 'tmm-core[train-jax]'")
        return found[0]
    known = next((known for known in FRAMEWORKS if known == name), None)
    if known is None:
        raise ValueError(f"--framework must be auto, {' or '.join(FRAMEWORKS)}, and is {name!r}")
    lacking = missing(known)
    if lacking:
        others = [other for other in FRAMEWORKS if not missing(other)]
        instead = f", or take --framework {others[0]}" if others else ""
        raise LookupError(
            f"--framework {name} needs {', '.join(lacking)}: pip install 'tmm-core[{FRAMEWORKS[known][1]}]'{instead}"
        )
    return known


def missing(name: Name) -> list[str]:
    """Return the libraries that training with a framework needs and this Python lacks."""
    return [library for library in FRAMEWORKS[name][0] if not _installed(library)]


def load(name: Name) -> Framework:
    """Import what trains with the framework called `name`."""
    return cast("Framework", import_module(f".{name}_place", __package__))


def _installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except (ModuleNotFoundError, ValueError):  # the package that it is a part of is not there
        return False
