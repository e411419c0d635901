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
from .checks import check_arrays

__all__ = [
    "bridge_of",
    "choose_engine",
    "choose_streamer",
    "chosen_backend",
    "compute_correlate",
    "compute_matmul",
    "current_backend",
    "set_backend",
    "use_backend",
]

_in_block: ContextVar[str | None] = ContextVar("tmm_backend", default=None)
_in_process: str | None = None


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Choose the backend of every product that this thread, or this task, computes in a `with` block.

    Parameters
    ----------
    name : str
        A registered backend, or `auto` for the fastest one that serves the arrays.

    Raises
    ------
    TypeError
        If the name is no string.
    LookupError
        If the backend is unknown or cannot be loaded.

    Examples
    --------
    >>> import numpy as np, tmm_core
    >>> with tmm_core.use_backend("numpy"):
    ...     tmm_core.current_backend(np.ones(3))
    'numpy'
    """
    name, before = _checked(name), _in_block.get()
    _in_block.set(name)
    try:
        yield
    finally:
        _in_block.set(before)  # not by a token: a generator may end in another thread


def set_backend(name: str | None) -> None:
    """Choose the backend of every product that this process computes from here on, outside of `use_backend`.

    Parameters
    ----------
    name : str or None
        As for `use_backend`; None for what the environment variable `TMM_BACKEND` says.

    Raises
    ------
    TypeError, LookupError
        As `use_backend`.

    Examples
    --------
    >>> import numpy as np, tmm_core
    >>> tmm_core.set_backend("numpy")
    >>> tmm_core.current_backend(np.ones(3))
    'numpy'
    >>> tmm_core.set_backend(None)
    """
    global _in_process
    _in_process = None if name is None else _checked(name)


def _checked(name: str) -> str:
    """Return the name of a backend that can be used, or `auto`."""
    return "auto" if isinstance(name, str) and name == "auto" else get_backend(name).name


def current_backend(x: Array, /) -> str:
    """Return the name of the backend that computes products of x here and now, unless a call names another.

    Parameters
    ----------
    x : array, (..., n, d) or (n,), floating
        Signals: `auto` chooses by their library, device, dtype and shape.

    Raises
    ------
    TypeError, ValueError, LookupError
        As `causal_toeplitz_matmul`.

    Examples
    --------
    >>> import numpy as np
    >>> with use_backend("array_api"):
    ...     current_backend(np.ones((8, 4)))
    'array_api'
    """
    xp, (x,) = check_arrays(x=x)
    request = Request(result_dtype_name(x), device_kind(x), False, x.shape if x.ndim > 1 else (*x.shape, 1))
    return choose_engine(None, library_name(xp), request).name


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
    """Return what the argument, else `use_backend`, `set_backend` or `TMM_BACKEND` says, in this order; else `auto`."""
    if backend is not None:
        return _checked(backend)
    return _in_block.get() or _in_process or _environment_choice()


def choose_engine(backend: str | None, library: str, request: Request) -> Engine:
    """Return the engine that `chosen_backend` names, or the fastest one for `auto`."""
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
    try:
        return _checked(name)
    except LookupError as error:
        raise NotFoundError(f"the environment variable TMM_BACKEND is {name!r}: {error}") from error
