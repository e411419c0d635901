"""Who computes: a library's arrays and the engine of a backend; and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from tmm_core import get_backend, registered_backends
from tmm_core.errors import NotFoundError

from .sides import ArraySide, Side, TorchSide

__all__ = ["Column", "columns"]

# What the sides need besides the library itself.
_MODELS = {"torch": ("torch", "train"), "jax": ("optax", "train-jax")}

# By library the topics that it has nothing of; NumPy trains by gradients written out.
_LACKS: dict[str, tuple[str, ...]] = {"numpy": ("differentiate",), "torch": (), "jax": ()}


@dataclass(frozen=True)
class Column:
    """One way to compute, a column of the table."""

    library: str
    """Whose arrays the operations are called with."""
    engine: str
    """The backend that computes the products."""

    @property
    def name(self) -> str:
        """`numba`, or `torch+numba` for the arrays of one library and the engine of another."""
        own = self.engine == self.library or (self.library == "numpy" and self.engine not in ("jax", "torch"))
        return self.engine if own else f"{self.library}+{self.engine}"

    def does(self, topic: str) -> bool:
        """Return whether the library has a topic of `measures.TOPICS`: then every case of it must be there."""
        return topic not in _LACKS.get(self.library, ("differentiate", "train"))

    def side(self) -> Side:
        """Return the library's side, importing the library."""
        if self.library == "torch":
            return TorchSide()
        if self.library == "jax":
            from .jax_side import JaxSide

            return JaxSide()
        return Side() if self.library == "numpy" else ArraySide(self.library)


def columns(names: Sequence[str] = ()) -> tuple[list[Column], dict[str, str]]:
    """Return every column that can be computed here, and by name the reasons of the others.

    Parameters
    ----------
    names : sequence of str
        Only these columns, if there are any.

    Raises
    ------
    LookupError
        If one of `names` is unknown, or cannot be computed here.

    Notes
    -----
    A backend computes on arrays of its own library; where that is not one of arrays, as with Numba and with most
    backends of other people, on NumPy's. `array_api` is the definition, which NumPy runs in the column `numpy`.
    """
    every = [Column(_library(name), name) for name in registered_backends() if name != "array_api"]
    every += [Column(library, "numba") for library in ("torch", "jax")]
    order = {name: i for i, name in enumerate(("numpy", "numba", "torch", "torch+numba", "jax", "jax+numba"))}
    every.sort(key=lambda column: order.get(column.name, len(order)))
    unknown = [name for name in names if name not in {column.name for column in every}]
    if unknown:
        raise NotFoundError(f"there is no column {unknown[0]!r}: choose from {', '.join(c.name for c in every)}")
    found, missing = [], {}
    for column in every:
        if names and column.name not in names:
            continue
        reason = _missing(column)
        if reason is None:
            found.append(column)
        elif names:
            raise NotFoundError(f"{column.name} cannot be compared here: {reason}")
        else:
            missing[column.name] = reason
    return found, missing


def _library(backend: str) -> str:
    return backend if backend in ("torch", "jax", "cupy") else "numpy"


def _missing(column: Column) -> str | None:
    """Return why a column cannot be computed here."""
    for name in dict.fromkeys((column.library, column.engine)):
        try:
            backend = get_backend(name)
        except LookupError as error:
            return str(error)
        if not backend.engine.devices:
            return backend.serves
    needed, extra = _MODELS.get(column.library, ("numpy", ""))
    return None if find_spec(needed) else f"the model needs {needed}: pip install 'tmm-core[{extra}]'"
