"""What is compared: a library's arrays with the engine of a backend; and why others cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from tmm_adapters.extras import how_to_install
from tmm_core import get_backend, registered_backends
from tmm_core.errors import NotFoundError, did_you_mean
from tmm_core.testing.libraries import get_library

__all__ = ["FRAMEWORKS", "Configuration", "configurations"]

FRAMEWORKS = ("torch", "jax")
"""The libraries that differentiate and train."""


@dataclass(frozen=True)
class Configuration:
    """One way to compute, a column of the table."""

    library: str
    """Whose arrays the operations are called with."""
    engine: str
    """The backend that computes the products."""

    @property
    def name(self) -> str:
        """`numba`, or `torch+numba` for the arrays of one library and the engine of another."""
        own = self.engine == self.library or (self.library == "numpy" and self.engine not in FRAMEWORKS)
        return self.engine if own else f"{self.library}+{self.engine}"

    def has(self, topic: str) -> bool:
        """Return whether the library has a topic: then every case of it must be there."""
        return self.library in FRAMEWORKS or topic not in ("differentiate", "train")


def configurations(names: Sequence[str] = ()) -> tuple[list[Configuration], dict[str, str]]:
    """Return every configuration that can be computed here, and by name the reasons of the others.

    A backend computes on arrays of its own library; where that is not one of arrays, as with Numba and with most
    backends of other people, on NumPy's. `array_api` is the definition, which NumPy runs as `numpy`.

    Parameters
    ----------
    names : sequence of str
        Only these, if there are any.

    Raises
    ------
    LookupError
        If one of `names` is unknown, or cannot be computed here.
    """
    own = (*FRAMEWORKS, "cupy")
    every = [Configuration(name if name in own else "numpy", name) for name in registered_backends()]
    every = [c for c in every if c.engine != "array_api"] + [Configuration(name, "numba") for name in FRAMEWORKS]
    order = {name: i for i, name in enumerate(("numpy", "numba", "torch", "torch+numba", "jax", "jax+numba"))}
    every.sort(key=lambda configuration: order.get(configuration.name, len(order)))
    reasons = {c: _missing(c) for c in every if not names or c.name in names}
    unknown = [name for name in names if name not in {c.name for c in every}]
    if unknown:
        known = [c.name for c in every]
        raise NotFoundError(
            f"there is no configuration {unknown[0]!r}: choose from {', '.join(known)}{did_you_mean(unknown[0], known)}"
        )
    missing = {c.name: reason for c, reason in reasons.items() if reason is not None}
    for name, reason in missing.items() if names else ():
        raise NotFoundError(f"{name} cannot be compared here: {reason}")
    return [c for c, reason in reasons.items() if reason is None], missing


def _missing(configuration: Configuration) -> str | None:
    """Return why a configuration cannot be computed here."""
    try:
        for name in dict.fromkeys((configuration.library, configuration.engine)):
            get_backend(name)
        get_library(configuration.library)
    except LookupError as error:
        return str(error)
    if configuration.library == "jax" and not find_spec("optax"):
        return f"training needs optax: {how_to_install('optax')}"
    return None
