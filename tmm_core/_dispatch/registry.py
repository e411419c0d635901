"""Who computes a product: engines and bridges, how they register, and how one is chosen.

An *engine* computes on concrete buffers. A *bridge* is what an array library needs around any engine: differentiation,
tracing, batching. The type of the arrays selects the bridge, the choice of backend selects the engine. A backend is an
object `Backend` registered in the entry-point group `tmm_core.backends` under the import name of the library that it
computes with, so that listing backends can look for the library without importing it.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from typing import Any

from .. import _dask
from .._arrays import exchange
from .._arrays.exchange import Array
from .._arrays.properties import result_dtype_name
from .._definition import toeplitz
from ..backend import Backend, Bridge, Engine, LayerStream, Operation, Request, Streamer, StreamLayer
from ..errors import InputError, NotFoundError

__all__ = [
    "available_backends",
    "bridge_of",
    "choose_engine",
    "choose_streamer",
    "chosen_backend",
    "compute",
    "get_backend",
    "registered_backends",
    "run",
    "use_backend",
]

GROUP = "tmm_core.backends"


class Definition:
    """The engine that runs `_maths` in array-API calls: in the arrays' own namespace, or always in NumPy."""

    def __init__(self, name: str) -> None:
        """Make the engine called `name`: `array_api` or `numpy`."""
        self.name = name
        self.matmul = toeplitz.causal_toeplitz_matmul
        self.correlate = toeplitz.causal_toeplitz_correlate

    def owns(self, array: Array) -> bool:
        """Return whether the engine computes on `array` as it is."""
        return self.name == "array_api" or exchange.library_of(array) == "numpy"

    def receive(self, array: Array) -> Array:
        """Return `array` as a NumPy array."""
        import numpy

        return exchange.share(array, numpy)

    def unsupported(self, request: Request) -> str | None:
        """Return why NumPy cannot serve a device; the arrays' own namespace serves them all."""
        if self.name == "numpy" and request.device != "cpu":
            return f"NumPy computes on the CPU, and the arrays are on {request.device!r}"
        return None

    def stream(self, layer: StreamLayer) -> LayerStream:
        """Return the streams of a layer by the definition."""
        return LayerStream(layer)


# The engines that `auto` tries for arrays of a library, fastest first; the definition serves what is left.
#
# Microseconds of the product, on two cores, float32 as (batch, n, heads, channels of a head), as many lags as times:
#     NumPy arrays                  numba  definition     Torch tensors                 numba  torch
#     (1, 16, 1, 8)                   367         247     (1, 16, 1, 8)                   469    453
#     (8, 32, 4, 128)                 353         300     (8, 64, 8, 64)                 1055   1483
#     (8, 64, 4, 128)                 545        1692     (8, 128, 8, 16)                 889   1535
#     (8, 128, 8, 16)                 983         959     (8, 512, 8, 16)                2255   6408
#     (4, 256, 8, 16)                1110        1936     (8, 1024, 4, 128)             14864  51464
#
#     compiled JAX programs         numba         jax     jnp.fft, padded to twice the length
#     (1, 16, 1, 8)                   236          50          47
#     (1, 64, 1, 64)                  229         148          93
#     (4, 64, 1, 64)                  244         224         179
#     (1, 128, 4, 64)                 479         592         391
#     (2, 64, 4, 128)                 449         925         729
#     (4, 256, 8, 16)                 572        2697        1293
#     (8, 512, 8, 16)                1225       19476       11195
#     (8, 1024, 1, 512)              5160      108636       83591
_FASTEST: dict[str, tuple[str, ...]] = {
    "numpy": ("numba",),
    "cupy": ("cupy",),
    "dask": ("numba", "cupy"),
    "torch": ("numba", "torch"),
    "jax": ("numba", "jax"),
}
# Signals so short and so few are not worth Numba's time to begin, where the definition's direct sums are at hand: by
# library, how many entries they have, and whose sums they are.
_FEW_TIMES = 128
_FEW: dict[str, tuple[int, str]] = {"numpy": (1 << 18, "array_api"), "jax": (1 << 14, "jax")}
# Libraries whose bridge is part of the core, since it needs no import.
_CORE_BRIDGES: dict[str, Bridge] = {"dask": _dask}

# The `with` blocks that are open here, each with its own key, the innermost last.
_blocks: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("tmm_backend", default=())


def available_backends() -> tuple[str, ...]:
    """Return the names of the backends whose library is installed, without importing any library.

    >>> "array_api" in available_backends()
    True
    """
    return tuple(name for name in registered_backends() if name == "array_api" or _installed(name))


def registered_backends() -> tuple[str, ...]:
    """Return the names of all registered backends, installed or not."""
    return ("array_api", "numpy", *sorted(_registered()))


@functools.cache
def get_backend(name: str) -> Backend:
    """Return the backend called `name`, importing its library.

    Parameters
    ----------
    name : str
        One of `registered_backends()`: `array_api`, `numpy`, or a name in the entry-point group `tmm_core.backends`.

    Raises
    ------
    LookupError
        If no such backend is registered, or its library cannot be imported; the message says what to install.

    Notes
    -----
    A failure is not remembered: the next call tries again.
    """
    if name == "array_api":
        compat = version("array-api-compat")
        return Backend(name, compat, ("any",), "every array of the array API, in its own namespace", Definition(name))
    if name == "numpy":
        _require_library("numpy", "pip install numpy")
        return Backend(name, version("numpy"), ("cpu",), "the definition, computed in NumPy", Definition(name))
    entry = _registered().get(name)
    if entry is None:
        raise NotFoundError(f"unknown backend {name!r}: choose 'auto' or one of {', '.join(registered_backends())}")
    _require_library(name, _remedy(entry))
    try:
        backend = entry.load()
    except Exception as error:  # whatever a broken installation raises, the user needs the same remedy
        raise NotFoundError(
            f"backend {name!r} cannot be loaded ({type(error).__name__}: {error}); to install it: {_remedy(entry)}"
        ) from error
    if not isinstance(backend, Backend):
        raise NotFoundError(f"backend {name!r} cannot be used: {entry.value} is no tmm_core.backend.Backend")
    return backend


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Choose the backend of every product computed inside the `with` block by this thread.

    Parameters
    ----------
    name : str
        A registered backend, or `auto` for the fastest one that serves the arrays.

    Raises
    ------
    LookupError
        If the backend is unknown or cannot be loaded.

    Examples
    --------
    >>> import numpy as np, tmm_core
    >>> with tmm_core.use_backend("numpy"):
    ...     tmm_core.causal_toeplitz_matmul(np.asarray([0.0, 1.0]), np.asarray([1.0, 2.0, 3.0]))
    array([0., 1., 2.])
    """
    if name != "auto":
        get_backend(name)
    block = (object(), name)
    _blocks.set((*_blocks.get(), block))
    try:
        yield
    finally:
        # Not by a token of the variable: blocks in generators end in any order, and in other threads.
        _blocks.set(tuple(other for other in _blocks.get() if other is not block))


def compute(
    operation: Operation, /, *arrays: Array, segment_ids: Array | None, backend: str | None, **options: Any
) -> Array:
    """Compute `operation` on arrays of one library: choose the engine, then go through the library's bridge."""
    library = exchange.library_of(arrays[0])
    request = Request(
        result_dtype_name(*arrays),
        exchange.device_kind(arrays[0]),
        segment_ids is not None,
        tuple(arrays[-1].shape),
    )
    engine = choose_engine(backend, library, request)
    bridge = bridge_of(library)
    if bridge is None:
        return run(engine, operation, *arrays, segment_ids=segment_ids, **options)
    return getattr(bridge, operation)(engine, *arrays, segment_ids=segment_ids, **options)


def run(engine: Engine, operation: Operation, /, *arrays: Array, segment_ids: Array | None, **options: Any) -> Array:
    """Let `engine` compute `operation` on concrete arrays of any one library; the result lives where they do."""
    beside = getattr(engine, "beside", None)  # of those that are `Queued`; to ask the protocol takes 10 us
    with nullcontext() if beside is None else beside(arrays[0]):
        if all(engine.owns(array) for array in arrays):
            return getattr(engine, operation)(*arrays, segment_ids=segment_ids, **options)
        received = [engine.receive(array) for array in arrays]
        ids = None if segment_ids is None else engine.receive(segment_ids)
        result = getattr(engine, operation)(*received, segment_ids=ids, **options)
        return exchange.share_like(result, arrays[0])


def chosen_backend(backend: str | None = None) -> str:
    """Return the name that the argument, else the `with` block, else `TMM_BACKEND` says, `auto` for none."""
    blocks = _blocks.get()
    return backend if backend is not None else blocks[-1][1] if blocks else _environment_choice()


def choose_streamer(name: str, library: str, request: Request) -> Streamer:
    """Return the engine that streams arrays of a library: the chosen one, else the fastest that can."""
    if library == "dask" and name == "auto":  # its arrays have no memory that an engine could step in
        name = "array_api"
    if name != "auto":
        engine = choose_engine(name, library, request)
        if isinstance(engine, Streamer) and (library != "dask" or name == "array_api"):
            return engine
        why = "Dask's arrays have no memory to step in" if library == "dask" else "its engine is no Streamer"
        raise InputError(f"backend {name!r} cannot stream {library} arrays: {why}; choose 'auto' or 'array_api'")
    for engine in _fastest_engines(library):
        if isinstance(engine, Streamer) and engine.unsupported(request) is None:
            return engine
    return choose_streamer("array_api", library, request)


def choose_engine(backend: str | None, library: str, request: Request) -> Engine:
    """Return the engine of the argument, else of the `with` block, else of `TMM_BACKEND`, else the fastest one."""
    name = chosen_backend(backend)
    if name != "auto":
        engine = get_backend(name).engine
        reason = engine.unsupported(request)
        if reason is not None:
            raise InputError(f"backend {name!r} cannot serve this call: {reason}; choose another, or 'auto'")
        return engine
    engines = _fastest_engines(library)
    if _is_small(library, request):
        engines = (get_backend(_FEW[library][1]).engine, *engines)
    for engine in engines:
        if engine.unsupported(request) is None:
            return engine
    return get_backend("array_api").engine


@functools.cache
def _fastest_engines(library: str) -> tuple[Engine, ...]:
    """Return the engines of the table that can run here; one that is installed but broken is warned of, once."""
    engines = []
    for name in _FASTEST.get(library, ()):
        if name in _registered() and _installed(name):
            try:
                engines.append(get_backend(name).engine)
            except LookupError as error:
                warnings.warn(f"the fastest backend is passed over: {error}", RuntimeWarning, stacklevel=2)
    return tuple(engines)


def _is_small(library: str, request: Request) -> bool:
    """Return whether a library's small calls are left to another engine, and this is one."""
    if library not in _FEW:  # before the shape is looked at, which a compiler would guard for
        return False
    if library == "jax" and request.segments:  # many small operations, which take seconds to compile
        return False
    shape = request.shape
    return len(shape) > 1 and shape[-2] <= _FEW_TIMES and math.prod(shape) < _FEW[library][0]


@functools.cache
def _environment_choice() -> str:
    """Return `TMM_BACKEND`, read and checked once a process."""
    name = os.environ.get("TMM_BACKEND", "").strip() or "auto"
    if name != "auto":
        try:
            get_backend(name)
        except LookupError as error:
            raise NotFoundError(f"the environment variable TMM_BACKEND is {name!r}: {error}") from error
    return name


def bridge_of(library: str) -> Bridge | None:
    """Return the bridge for arrays of `library`, or None where the library needs none."""
    if library in _CORE_BRIDGES:
        return _CORE_BRIDGES[library]
    return get_backend(library).bridge if library in _registered() else None


@functools.cache
def _registered() -> dict[str, EntryPoint]:
    """Return the entry points by name; two that claim one name are an error, since a choice must be clear."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value or entry.name in ("auto", "array_api", "numpy"):
            raise NotFoundError(
                f"backend name {entry.name!r} is taken: {entry.value} cannot register it in {GROUP!r}; uninstall one"
            )
    return found


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a part of a missing library, or a stand-in for one
        return False


def _require_library(name: str, remedy: str) -> None:
    if not _installed(name):
        raise NotFoundError(f"backend {name!r} needs the library {name!r}, which is not installed: {remedy}")


def _remedy(entry: EntryPoint) -> str:
    """Return the command that installs a backend's library: the extras of its distribution named after it."""
    distribution = entry.dist
    if distribution is None:
        return f"install {entry.name}"
    extras = distribution.metadata.get_all("Provides-Extra") or []
    fitting = [extra for extra in extras if extra.startswith(entry.name)] or [entry.name]
    return " or ".join(f"pip install '{distribution.name}[{extra}]'" for extra in fitting)
