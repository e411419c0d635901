"""The way of a product: the engine is chosen, and called through the bridge of the arrays' library."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from .._arrays.exchange import Array, device_kind, library_name
from .._arrays.properties import result_dtype_name
from ..backend import (
    Backend,
    Bridge,
    Engine,
    LazyBridge,
    Method,
    Rank,
    Request,
    StreamBridge,
    Streamer,
    described_backends,
    get_backend,
    run_correlate,
    run_matmul,
)
from ..errors import InputError, NotFoundError

__all__ = [
    "bridge_of",
    "choose_engine",
    "choose_streamer",
    "chosen_backend",
    "compute_correlate",
    "compute_matmul",
    "use_backend",
]

# The `with` blocks that are open here, each with its own key, the innermost last.
_blocks: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("tmm_backend", default=())


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


def compute_matmul(
    xp: ModuleType,
    w: Array,
    x: Array,
    /,
    *,
    adjoint: bool,
    method: Method,
    segment_ids: Array | None,
    ordered: bool,
    backend: str | None,
) -> Array:
    """Return the product of checked arrays, `(h, m, k)` and `(..., n, d)`, by the chosen engine."""
    library = library_name(xp)
    request = Request(result_dtype_name(w, x), device_kind(x), segment_ids is not None, x.shape)
    engine, bridge = choose_engine(backend, library, request), bridge_of(library)
    if bridge is None:
        return run_matmul(engine, w, x, adjoint=adjoint, method=method, segment_ids=segment_ids, ordered=ordered)
    return bridge.matmul(engine, w, x, adjoint=adjoint, method=method, segment_ids=segment_ids)


def compute_correlate(
    xp: ModuleType,
    x: Array,
    g: Array,
    /,
    *,
    lags: int,
    heads: int,
    kernel_size: int,
    method: Method,
    segment_ids: Array | None,
    ordered: bool,
    backend: str | None,
) -> Array:
    """Return the correlation `(heads, kernel_size, lags)` of checked arrays `(..., n, d)`, by the chosen engine."""
    library = library_name(xp)
    request = Request(result_dtype_name(x, g), device_kind(x), segment_ids is not None, x.shape)
    engine, bridge = choose_engine(backend, library, request), bridge_of(library)
    shape = {"lags": lags, "heads": heads, "kernel_size": kernel_size}
    if bridge is None:
        return run_correlate(engine, x, g, **shape, method=method, segment_ids=segment_ids, ordered=ordered)
    return bridge.correlate(engine, x, g, **shape, method=method, segment_ids=segment_ids)


def chosen_backend(backend: str | None = None) -> str:
    """Return the name that the argument, else the `with` block, else `TMM_BACKEND` says, `auto` for none."""
    if backend is not None:
        return backend
    blocks = _blocks.get()
    return blocks[-1][1] if blocks else _environment_choice()


def choose_engine(backend: str | None, library: str, request: Request) -> Engine:
    """Return the engine of the argument, else of the `with` block, else of `TMM_BACKEND`, else the fastest one."""
    name = chosen_backend(backend)
    if name == "auto":
        fastest = next(_supporting(library, request), None)
        return get_backend("array_api").engine if fastest is None else fastest
    engine = get_backend(name).engine
    reason = engine.unsupported(request)
    if reason is not None:
        raise InputError(f"backend {name!r} cannot serve this call: {reason}; choose another, or 'auto'")
    return engine


def choose_streamer(name: str, library: str, request: Request) -> Any:
    """Return the engine that streams arrays of a library: the chosen one, else the fastest that can.

    It is a `Streamer`, unless the library's bridge is content with products.
    """
    bridge = bridge_of(library)
    lazy = isinstance(bridge, LazyBridge)

    def streams(engine: Engine) -> bool:
        return bridge.streams(engine) if isinstance(bridge, StreamBridge) else isinstance(engine, Streamer)

    if name == "auto":
        for engine in () if lazy else _supporting(library, request):
            if streams(engine):
                return engine
        name = "array_api"
    engine = choose_engine(name, library, request)
    if streams(engine) and (not lazy or name == "array_api"):
        return engine
    why = "these have no memory yet that it could step in" if lazy else "its engine is no Streamer"
    raise InputError(f"backend {name!r} cannot stream {library} arrays: {why}; choose 'auto' or 'array_api'")


def _supporting(library: str, request: Request) -> Iterator[Engine]:
    """Yield the engines that `auto` may take for a request, the fastest first."""
    ranked: list[tuple[int, Backend]] = []
    for backend, rank in _candidates(library):
        number = rank if isinstance(rank, int) else rank(request)
        if number is not None:
            ranked.append((number, backend))
    ranked.sort(key=lambda pair: -pair[0])
    for _, backend in ranked:
        engine = _engine_or_none(backend)
        if engine is not None and engine.unsupported(request) is None:
            yield engine


@functools.cache
def _candidates(library: str) -> tuple[tuple[Backend, Rank], ...]:
    """Return the installed backends that rank for arrays of a library."""
    return tuple(
        (backend, backend.ranks[library])
        for backend in described_backends()
        if library in backend.ranks and backend.is_installed
    )


@functools.cache
def _engine_or_none(backend: Backend) -> Engine | None:
    """Return an engine, or None, once with a warning, where its library is installed and broken."""
    try:
        return get_backend(backend.name).engine
    except NotFoundError as error:
        warnings.warn(f"a fast backend is passed over: {error}", RuntimeWarning, stacklevel=2)
        return None


@functools.cache
def bridge_of(library: str) -> Bridge | None:
    """Return the bridge for arrays of `library`, or None where the library needs none.

    A backend of the library's own name that is broken may be the one that has it, and is refused.
    """
    found = [backend for backend in described_backends(needed=library) if backend.bridge_for == library]
    if len(found) > 1:
        names = " and ".join(repr(backend.name) for backend in found)
        raise NotFoundError(f"backends {names} both have a bridge for arrays of {library}: uninstall one")
    return found[0].bridge if found else None


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
