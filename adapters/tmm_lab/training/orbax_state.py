"""What training in JAX needs to go on, as an Orbax folder: parameters, mu and nu by parameter, and the step."""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]

from tmm_adapters.files import WriteError
from tmm_core.errors import InputError

__all__ = ["read_state", "write_state"]

_PARTS = {"params", "mu", "nu", "step"}


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `params`, `mu` and `nu`, each arrays by parameter, and `step` into the new `folder`.

    Raises
    ------
    WriteError
        If it cannot be written, for example on a full disk.

    Notes
    -----
    Orbax writes in threads, which have done so when this returns.
    """
    needed = sum(array.nbytes for array in jax.tree.leaves(dict(state)))
    if shutil.disk_usage(folder.parent).free < needed:  # Orbax would tell it less clearly, and only when it is full
        raise WriteError(folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def save(checkpointer: ocp.Checkpointer, path: Path) -> None:
        checkpointer.save(path, args=ocp.args.PyTreeSave(dict(state)))

    _, failure = _by_orbax(folder, save)
    if failure is not None:
        raise WriteError(folder, OSError(failure))


def read_state(folder: Path) -> dict[str, Any]:
    """Return what `write_state` wrote, as NumPy arrays, wherever it was computed.

    Raises
    ------
    ValueError
        If the folder is damaged, or holds something else.
    """

    def restore(checkpointer: ocp.Checkpointer, path: Path) -> Any:
        found = checkpointer.metadata(path).item_metadata
        if found is None:
            raise InputError("it has no metadata")
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), found.tree)
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))

    state, failure = _by_orbax(folder, restore)
    if failure is not None:
        raise InputError(f"{folder} is no whole Orbax folder ({failure}); resume from another checkpoint")
    if not isinstance(state, dict) or set(state) != _PARTS:
        raise InputError(f"{folder} must hold {', '.join(sorted(_PARTS))}; resume from another checkpoint")
    return state


def _by_orbax(folder: Path, function: Callable[[Any, Path], Any]) -> tuple[Any, str | None]:
    """Return what `function` returns, given a path of the folder, and what went wrong, in a few words.

    Orbax, TensorStore and JSON have each their own exceptions, and tell of them in logs as well.
    """
    with _without_logs(), _text_path(folder.absolute()) as path:
        try:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                return function(checkpointer, path), None
        except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
            failure = str(error).split("[tensorstore_spec", 1)[0].strip()
        gc.collect()  # tasks whose exceptions nobody asked for complain when they go
    return None, failure


@contextmanager
def _text_path(folder: Path) -> Iterator[Path]:
    """Give a path of a folder that is text: TensorStore takes no other, and on Linux names may be any bytes."""
    try:
        os.fspath(folder).encode()
    except UnicodeEncodeError:
        handle = os.open(folder.parent, os.O_RDONLY)
        try:
            yield Path(f"/dev/fd/{handle}", folder.name)
        finally:
            os.close(handle)
    else:
        yield folder


@contextmanager
def _without_logs() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
