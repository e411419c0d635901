"""What training in JAX needs to go on: what AdamW keeps, with the norm of the last gradient for the records.

The learning rate and the order of the text follow from the step, so they are not kept.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array

from tmm_core.backend import with_jax_defaults

from ..moments import ORBAX, Moments
from ..orbax_state import write_state

__all__ = ["moments_of", "norm_of", "set_moments", "with_norm", "write_moments"]


@functools.cache  # a program is compiled for each
def with_norm(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return `inner` with the norm of the last gradient in its state."""

    @with_jax_defaults
    def first_state(params: Any) -> Any:
        state = inner.init(params)
        count = next(part for part in state if isinstance(part, optax.ScaleByAdamState)).count
        return {"norm": jnp.zeros_like(count, jnp.float32), "inner": state}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        changes, kept = inner.update(updates, state["inner"], params)
        return changes, {"norm": optax.tree_utils.tree_norm(updates).astype(jnp.float32), "inner": kept}

    return optax.GradientTransformation(first_state, update)


def norm_of(state: Any) -> Array:
    """Return the norm of the last gradient."""
    norm: Array = state["norm"]
    return norm


def moments_of(state: Any) -> Any:
    """Return what AdamW keeps, with the fields `count`, `mu` and `nu`."""
    return next(part for part in state["inner"] if isinstance(part, optax.ScaleByAdamState))


def set_moments(state: Any, moments: Moments) -> Any:
    """Return `state` with `moments`, whose averages are on the devices."""
    count = jax.device_put(np.asarray(moments.steps, np.int32), moments_of(state).count.sharding)
    adam = optax.ScaleByAdamState(count, moments.mu, moments.nu)
    inner = (adam if isinstance(part, optax.ScaleByAdamState) else part for part in state["inner"])
    return {**state, "inner": tuple(inner)}


def write_moments(folder: Path, params: Mapping[str, Array], state: Any) -> None:
    """Write parameters and the optimiser's state of each as an Orbax folder, which is enough for other tools of JAX."""
    adam = moments_of(state)
    write_state(folder / ORBAX, {"params": params, "mu": adam.mu, "nu": adam.nu, "step": adam.count})
