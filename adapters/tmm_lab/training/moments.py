"""The averages that AdamW keeps of each parameter, the same in every framework, read from the checkpoint of any.

PyTorch keeps it as safetensors, named by parameter, `<parameter>.<key>`, as in `embed.weight.exp_avg`; JAX in the Orbax
folder of `orbax_state`. No pickles are written, and none is ever read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tmm_adapters.extras import how_to_install
from tmm_adapters.pretrained import read_tensors
from tmm_core.errors import InputError, MissingFileError, NotFoundError

__all__ = ["OPTIMIZER", "ORBAX", "Moments", "read_moments"]

OPTIMIZER, ORBAX = "optimizer.safetensors", "state.orbax"
_KEYS = ("exp_avg", "exp_avg_sq")


class Moments(NamedTuple):
    """The averages of AdamW, by the names of the parameters that are trained, and how many gradients they are of."""

    mu: dict[str, Any]
    """Of gradients."""
    nu: dict[str, Any]
    """Of their squares."""
    steps: int


def read_moments(checkpoint: Path, shapes: Mapping[str, tuple[int, ...]]) -> Moments:
    """Return what a checkpoint, of any framework, keeps of AdamW.

    Parameters
    ----------
    checkpoint : Path
        The folder.
    shapes : mapping of str to tuple
        Those of the parameters that are trained.

    Raises
    ------
    FileNotFoundError
        If it keeps nothing: it is a model, and no checkpoint of a run.
    LookupError
        If JAX wrote it, and it or Orbax is not installed.
    ValueError
        If it is damaged, or of another model.
    """
    if (checkpoint / OPTIMIZER).is_file():
        moments = _of_torch(checkpoint / OPTIMIZER)
    elif (checkpoint / ORBAX).is_dir():
        moments = _of_jax(checkpoint / ORBAX)
    else:
        raise MissingFileError(f"{checkpoint} has neither {OPTIMIZER} nor {ORBAX}: resume from another checkpoint")
    for found in (moments.mu, moments.nu):
        wrong = set(found) ^ set(shapes) or {name for name in shapes if found[name].shape != shapes[name]}
        if wrong:
            raise InputError(
                f"the optimiser's state in {checkpoint} is of another model: {min(wrong)} does not fit; "
                "resume from another checkpoint"
            )
    return moments


def _of_torch(path: Path) -> Moments:
    parts: dict[str, dict[str, Any]] = {key: {} for key in (*_KEYS, "step")}
    for name, tensor in read_tensors(path).items():
        parameter, _, key = name.rpartition(".")
        if key not in parts:
            raise InputError(f"{path} holds {name}, which AdamW does not keep; resume from another checkpoint")
        parts[key][parameter] = tensor
    steps = {int(step.item()) for step in parts["step"].values()}
    if len(steps) > 1:
        raise InputError(f"{path} has parameters of several steps, {sorted(steps)}; resume from another checkpoint")
    return Moments(parts["exp_avg"], parts["exp_avg_sq"], *steps or {0})


def _of_jax(folder: Path) -> Moments:
    try:
        from .orbax_state import read_state
    except ImportError as error:
        raise NotFoundError(
            f"{folder} was written by JAX, and to read it needs {error.name}: "
            f"{how_to_install('jax', 'orbax.checkpoint')}, or go on with --framework jax where that is installed"
        ) from error
    state = read_state(folder)
    return Moments(state["mu"], state["nu"], int(state["step"]))
