"""What training in JAX needs to go on, as an Orbax folder: parameters, mu and nu by parameter, and the step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]

__all__ = ["read_state", "write_state"]

_PARTS = {"params", "mu", "nu", "step"}


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `params`, `mu` and `nu`, each arrays by parameter, and `step` into the new `folder`.

    Raises
    ------
    OSError
        If it cannot be written, for example on a full disk.

    Notes
    -----
    Orbax writes in threads, which have ended when this returns.
    """
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(dict(state)))


def read_state(folder: Path) -> dict[str, Any]:
    """Return what `write_state` wrote, as NumPy arrays, wherever it was computed.

    Raises
    ------
    ValueError
        If the folder is damaged, or holds something else.
    """
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            tree = checkpointer.metadata(folder.absolute()).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            state = checkpointer.restore(folder.absolute(), args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    except Exception as error:  # Orbax, TensorStore and JSON have each their own
        raise ValueError(f"{folder} is no whole Orbax folder ({error}); resume from another checkpoint") from error
    if not isinstance(state, dict) or set(state) != _PARTS:
        raise ValueError(f"{folder} must hold {', '.join(sorted(_PARTS))}; resume from another checkpoint")
    return state
