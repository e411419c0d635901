"""Compilation of kernels: without the GIL, with exact checks for NaN, and kept on disk where a folder is writable."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

import numba

from .machine_code import FOLDER, KeptCode
from .target import FAST

__all__ = ["device_function", "exact_device_function", "exact_kernel", "kernel"]


def device_function(function: Callable[..., Any], fastmath: Collection[str] = FAST) -> Any:
    """Compile a function that only kernels and other device functions call."""
    return numba.njit(nogil=True, fastmath=set(fastmath), error_model="numpy")(function)


def kernel(function: Callable[..., Any], fastmath: Collection[str] = FAST) -> Any:
    """Compile a function that Python calls, for each tuple of dtype tags (its first argument), and keep the code."""
    compiled = device_function(function, fastmath)
    compiled._cache = KeptCode(function, FOLDER)  # as `cache=True` does, with Numba's own files
    ready: set[tuple[type, ...]] = set()

    @functools.wraps(function)
    def call(dtype_tags: tuple[Any, ...], *arguments: Any) -> Any:
        key = tuple(type(number) for number in dtype_tags)
        if key not in ready:
            with _compiling:  # one thread compiles, others wait for it
                if key not in ready:
                    result = compiled(dtype_tags, *arguments)
                    ready.add(key)
                    return result
        return compiled(dtype_tags, *arguments)

    def entry(*arguments: Any) -> Callable[..., Any]:
        """Return the compiled function for arguments of these types, which have been passed before.

        To call it skips the lookup of types.
        """
        signature = tuple(numba.typeof(argument) for argument in arguments)
        result: Any = compiled.overloads[signature]
        found: Callable[..., Any] = result.entry_point
        return found

    call.entry = entry  # type: ignore[attr-defined]
    return call


exact_device_function = functools.partial(device_function, fastmath=())
exact_kernel = functools.partial(kernel, fastmath=())
"""The same, with every operation in the order in which it is written."""

_compiling = threading.RLock()
if hasattr(os, "register_at_fork"):  # else a child that is forked while another thread compiles waits for ever
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )
