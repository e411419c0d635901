"""What the environment says of a run: the processes that torchrun began; all other settings are the command's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tmm_core.errors import InputError

__all__ = ["LAUNCHER", "launched", "rank", "without_variables"]

_NUMBERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
LAUNCHER = (*_NUMBERS, "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells its processes; some of them without the others are left over from something else."""


def launched() -> bool:
    """Return whether torchrun, or another launcher that sets all that it does, began this process.

    Raises
    ------
    ValueError
        If one of its numbers is none.
    """
    if not all(os.environ.get(name) for name in LAUNCHER):
        return False
    for name in _NUMBERS:
        if not os.environ[name].isdecimal():
            raise InputError(f"the environment variable {name} must be a number, and is {os.environ[name]!r}: unset it")
    return True


def rank() -> int:
    """Return the number of this process among those that torchrun began, 0 if it began none."""
    return int(os.environ["RANK"]) if launched() else 0


@contextmanager
def without_variables(*prefixes: str) -> Iterator[None]:
    """Keep variables whose names begin so from the libraries while the block lasts."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)
