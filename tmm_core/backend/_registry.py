"""The description of a backend, and how one is found by its name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ..errors import InputTypeError, NotFoundError, did_you_mean
from ._built_in import ArrayApiEngine, NumpyEngine
from ._entries import BUILT_IN, entries, is_installed, remedy
from ._protocols import Bridge, Engine, Request

__all__ = [
    "Backend",
    "Rank",
    "available_backends",
    "described_backends",
    "get_backend",
    "registered_backends",
]

Rank = int | Callable[[Request], int | None]
"""How soon `auto` takes an engine, higher ones first: a number, or what tells it of a request; None for not at all."""


@dataclass(frozen=True, eq=False)
class Backend:
    """What an entry point names: the description of a backend, made without importing its library."""

    name: str
    """The entry point's name."""
    requires: tuple[str, ...]
    """Import names of the libraries that it needs, first the one whose version is the backend's."""
    serves: str
    """In a few words, the arrays and dtypes served."""
    load_engine: Callable[[], Engine] | None = None
    """Returns the engine; called once, when it is first needed. This is where the library is imported."""
    load_bridge: Callable[[], Bridge] | None = None
    """Returns the bridge; called once, when arrays of `bridge_for` are first met."""
    bridge_for: str | None = None
    """The import name of the library whose arrays the bridge is for."""
    ranks: Mapping[str, Rank] = field(default_factory=dict)
    """By import name of the arrays' library, whether and how soon `auto` takes the engine for them.

    Here engines have 10 for arrays of the library that they compute with, and 20 where they are faster than that
    one. Where no engine has a rank, or none supports the request, the definition computes.
    """

    @property
    def version(self) -> str:
        """The version of the first library required, which is imported; empty where none is."""
        return str(import_module(self.requires[0]).__version__) if self.requires else ""

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine, loaded at first use."""
        if self.load_engine is None:
            raise NotFoundError(f"backend {self.name!r} has no engine, only a bridge for arrays of {self.bridge_for}")
        engine: Engine = self._loaded(self.load_engine)
        return engine

    @functools.cached_property
    def bridge(self) -> Bridge:
        """The bridge, loaded at first use."""
        if self.load_bridge is None:
            raise NotFoundError(f"backend {self.name!r} has no bridge, only an engine")
        bridge: Bridge = self._loaded(self.load_bridge)
        return bridge

    @property
    def is_installed(self) -> bool:
        """Whether the libraries required are installed; nothing is imported."""
        return all(map(is_installed, self.requires))

    def check_installed(self) -> None:
        """Raise a LookupError that says what to install where a library required is missing."""
        for library in self.requires:
            if not is_installed(library):
                raise NotFoundError(
                    f"backend {self.name!r} needs the library {library!r}, which is not installed: "
                    f"{remedy(self.name, self.requires)}"
                )

    def _loaded(self, load: Callable[[], Any]) -> Any:
        """Return what `load` returns, or raise the one error that says what to install."""
        self.check_installed()
        try:
            return load()
        except Exception as error:  # whatever a broken installation raises, the user needs the same remedy
            raise NotFoundError(
                f"backend {self.name!r} cannot be loaded ({type(error).__name__}: {error}); "
                f"to install it: {remedy(self.name, self.requires)}"
            ) from error


_PARTS = ("name", "devices", "owns", "receive", "unsupported", "matmul", "correlate")
"""What an engine must have."""

_BUILT_IN = {
    "array_api": Backend(
        "array_api", ("array_api_compat",), "every array of the array API, in its own namespace", ArrayApiEngine
    ),
    "numpy": Backend("numpy", ("numpy",), "the definition, computed in NumPy", NumpyEngine),
}


def registered_backends() -> tuple[str, ...]:
    """Return the names of all registered backends that compute, installed or not, without importing any library.

    >>> registered_backends()[:2]
    ('array_api', 'numpy')
    """
    names = (*BUILT_IN, *entries())
    return tuple(name for name in names if (backend := _described_or_none(name)) is None or backend.load_engine)


def available_backends() -> tuple[str, ...]:
    """Return the names of the backends whose libraries are installed, without importing any library.

    >>> "array_api" in available_backends()
    True
    """
    return tuple(backend.name for backend in described_backends() if backend.load_engine and backend.is_installed)


def get_backend(name: str) -> Backend:
    """Return the backend called `name`, with its engine, importing its library.

    Parameters
    ----------
    name : str
        One of `registered_backends()`: `array_api`, `numpy`, or a name in the entry-point group `tmm_core.backends`.

    Raises
    ------
    TypeError
        If the name is no string.
    LookupError
        If no such backend is registered, or its library cannot be imported; the message says what to install.

    Notes
    -----
    A failure is not remembered: the next call tries again.
    """
    if not isinstance(name, str):
        raise InputTypeError(f"backend must be the name of one, a string, and is {name!r}")
    if name == "auto":
        raise NotFoundError("'auto' chooses a backend and is none: tmm_core.current_backend(x) says which one it takes")
    return _usable(name)


@functools.cache
def _usable(name: str) -> Backend:
    """Return a backend whose engine has been loaded and looked at."""
    backend = _described(name)
    backend.check_installed()
    lacking = [part for part in _PARTS if not hasattr(backend.engine, part)]
    if lacking:
        raise NotFoundError(
            f"backend {name!r} cannot be used: its engine lacks {', '.join(lacking)} of tmm_core.backend.Engine"
        )
    if backend.engine.name != name:  # by which compiled programs and other processes find it again
        raise NotFoundError(f"backend {name!r} cannot be used: its engine calls itself {backend.engine.name!r}")
    return backend


def described_backends(needed: str = "") -> Iterator[Backend]:
    """Yield every registered backend, installed or not.

    One whose description cannot be read is passed over, once with a warning; the one called `needed` raises.
    """
    for name in (*BUILT_IN, *entries()):
        backend = _described(name) if name == needed else _described_or_none(name)
        if backend is not None:
            yield backend


@functools.cache
def _described_or_none(name: str) -> Backend | None:
    """Return a description, or None, once with a warning, where it cannot be read."""
    try:
        return _described(name)
    except NotFoundError as error:
        warnings.warn(f"a backend is passed over: {error}", RuntimeWarning, stacklevel=2)
        return None


@functools.cache
def _described(name: str) -> Backend:
    """Return the object that an entry point names."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    entry = entries().get(name)
    if entry is None:
        known = registered_backends()
        raise NotFoundError(
            f"unknown backend {name!r}: choose 'auto' or one of {', '.join(known)}{did_you_mean(name, known)}"
        )
    try:
        backend = entry.load()
    except Exception as error:  # whatever a broken module raises
        raise NotFoundError(
            f"backend {name!r} cannot be loaded ({type(error).__name__}: {error}): {entry.value} must be importable"
        ) from error
    if not isinstance(backend, Backend) or backend.name != name:
        what = f"the backend {backend.name!r}" if isinstance(backend, Backend) else f"a {type(backend).__name__}"
        raise NotFoundError(
            f"backend {name!r} cannot be used: {entry.value} must be a tmm_core.backend.Backend of that name, and is "
            f"{what}"
        )
    return backend
