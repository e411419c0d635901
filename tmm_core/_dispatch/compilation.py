"""How `torch.compile` meets the public functions: each as one operation, without the core importing torch."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .._arrays.strictness import with_jax_defaults

__all__ = ["one_operation"]

P = ParamSpec("P")
R = TypeVar("R")

_waiting: list[Callable[..., Any]] = []
_lock = threading.Lock()


def one_operation(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` one operation in graphs of `torch.compile`, which then need not follow its checks and choices.

    The compiler's later stages trace through it, with the bridge's differentiation and its recorded operations.
    """
    function = with_jax_defaults(function)
    _waiting.append(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        _admit()
        return function(*args, **kwargs)

    return called


def _admit() -> bool:
    """Tell the compiler, once it has been imported, which functions it may take as they are."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and _waiting:
        with _lock:  # two threads may come here first
            while _waiting:
                dynamo.allow_in_graph(_waiting.pop())
    return True


# What torch.compiler.assume_constant_result sets: the compiler really calls the function, before it looks at the next.
_admit._dynamo_marked_constant = True  # type: ignore[attr-defined]
