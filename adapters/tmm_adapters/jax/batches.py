"""Batches of the JAX model: tokens, documents and padding, next-token targets, and what is refused.

What depends on values is refused where they are at hand, and makes NaN in traced code and on accelerators, where to
look at them is to wait for them.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from tmm_core import TMMConfig, lm
from tmm_core.backend import with_jax_defaults
from tmm_core.errors import InputError, InputTypeError

from .sharding import check_mesh

__all__ = ["check_batch", "check_params", "targets_of"]

NAMES = ("input_ids", "labels", "targets", "attention_mask", "segment_ids")
"""What a batch may hold."""


@with_jax_defaults
def targets_of(batch: Mapping[str, Array]) -> Array:
    """Return the next-token targets (..., n), -100 for none, of a batch's targets or labels, else of its tokens."""
    ids, targets = batch["input_ids"], batch.get("targets")
    documents = lm.documents_of(ids, batch.get("attention_mask"), batch.get("segment_ids"))
    found: Any = lm.targets_of(ids, batch.get("labels", ids if targets is None else None), targets, documents)
    return found  # type: ignore[no-any-return]


def check_params(params: Mapping[str, Array], config: TMMConfig) -> None:
    """Refuse parameters that are not JAX's, or not those of `config`."""
    lm.check_params(params, config)
    for name, p in params.items():
        if not isinstance(p, Array):
            kind = f"{type(p).__module__.split('.')[0]}.{type(p).__name__}"
            raise InputTypeError(f"params must be JAX arrays, and {name} is a {kind}: convert them by from_params")
        if p.dtype == jnp.float64 and jax.dtypes.canonicalize_dtype(float) != jnp.float64:
            raise InputError(
                f"{name} is float64, of which JAX makes float32 unless told otherwise: "
                "jax.config.update('jax_enable_x64', True), or convert the parameters"
            )


@with_jax_defaults
def check_batch(
    batch: Mapping[str, Any], config: TMMConfig, mesh: Mesh | None = None, *, axes: Collection[int] = (2,)
) -> dict[str, Array]:
    """Return the arrays of a batch as JAX's integers, and refuse what the model would misread."""
    if not isinstance(batch, Mapping):
        raise InputTypeError(f"batch must be a mapping of names to arrays, got {type(batch).__name__}")
    given = {name: array for name, array in batch.items() if array is not None}
    if "input_ids" not in given or not given.keys() <= set(NAMES):
        raise InputError(f"a batch holds input_ids, and may hold {', '.join(NAMES[1:])}; got {', '.join(given)}")
    for name, array in given.items():
        _check_kind(name, array)
    shape = given["input_ids"].shape
    if len(shape) not in axes:
        raise InputError(f"input_ids must have the shape (batch, n), got {shape}")
    for name, array in given.items():
        if array.shape != shape:
            raise InputError(f"{name} must have the shape of input_ids: got {array.shape} and {shape}")
    if mesh is not None:
        check_mesh(mesh, shape[-2])
    _check_values({name: np.asarray(array) for name, array in given.items() if _at_hand(array)}, config)
    integer = jax.dtypes.canonicalize_dtype(int)
    return {name: jnp.asarray(array).astype(integer) for name, array in given.items()}


def _check_kind(name: str, array: Any) -> None:
    if not isinstance(array, Array | np.ndarray):
        kind = f"{type(array).__module__.split('.')[0]}.{type(array).__name__}"
        raise InputTypeError(f"{name} must be an array of JAX or NumPy, got {kind}: convert it first")
    if not jnp.issubdtype(array.dtype, jnp.integer) and (name != "attention_mask" or array.dtype != bool):
        raise InputTypeError(f"{name} must be an array of integers, got {array.dtype}: tokens are whole numbers")


def _check_values(known: Mapping[str, Any], config: TMMConfig) -> None:
    for name, counted in (("input_ids", slice(None)), ("labels", slice(1, None)), ("targets", slice(None))):
        if name in known:
            what: Literal["token", "label"] = "token" if name == "input_ids" else "label"
            lm.check_vocabulary(what, known[name][..., counted], config.vocab_size)
    masks = [known.get(name) for name in ("attention_mask", "segment_ids")]
    shaped = next((mask for mask in masks if mask is not None), None)
    if shaped is not None:
        lm.documents_of(shaped, *masks)  # refuses masks with holes, and ids that go back


def _at_hand(array: Any) -> bool:
    """Return whether to look at values costs no waiting."""
    if isinstance(array, jax.core.Tracer):
        return False
    return isinstance(array, np.ndarray) or all(device.platform == "cpu" for device in array.devices())
