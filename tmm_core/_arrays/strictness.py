"""JAX's strict modes, which are for its users' own code: what is computed here is the same with and without them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

__all__ = ["leniently"]

P = ParamSpec("P")
R = TypeVar("R")


def leniently(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function promote ranks and dtypes, and move constants to a device, whatever its caller forbids.

    The modes are `jax_numpy_rank_promotion`, `jax_numpy_dtype_promotion` and `jax_transfer_guard`. Rules, such as those
    of derivatives, JAX calls later than the function that asks for them: they need this, too.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _strict():
            return function(*args, **kwargs)
        jax = sys.modules["jax"]
        with ExitStack() as modes:
            modes.enter_context(jax.numpy_rank_promotion("allow"))
            modes.enter_context(jax.numpy_dtype_promotion("standard"))
            modes.enter_context(jax.transfer_guard("allow"))
            return function(*args, **kwargs)

    return called


def _strict() -> bool:
    """Return whether JAX has been imported and a mode is on: to enter them takes ten times as long as to look."""
    config = getattr(sys.modules.get("jax"), "config", None)  # none while JAX is being imported
    return config is not None and bool(
        config.jax_numpy_rank_promotion != "allow"
        or config.jax_numpy_dtype_promotion != "standard"
        or config.jax_transfer_guard_host_to_device
        or config.jax_transfer_guard_device_to_device
        or config.jax_transfer_guard_device_to_host
        or config.jax_transfer_guard
    )


_strict._dynamo_marked_constant = True  # type: ignore[attr-defined]  # PyTorch's compiler need not look at JAX's modules
