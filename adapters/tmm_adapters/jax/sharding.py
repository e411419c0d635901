"""The JAX model over several devices: a mesh whose axis `data` shares the rows of a batch, and `model` the channels.

XLA divides everything but token mixing, whose transforms it would gather on each device; every device mixes its own
rows and heads, without a message.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tmm_core import TMMConfig, lm
from tmm_core.errors import InputError

__all__ = ["by_heads", "by_rows", "check_mesh", "constrain", "replicate", "shardings"]

# The axis of each parameter that is divided: the outputs of maps into hidden channels and heads, the inputs of maps out
# of them, the heads of filters, and the vocabulary.
_DIVIDED = {
    "embed.weight": 0, "unembed.weight": 0,
    "up.weight": 0, "up.bias": 0, "down.weight": 1,
    "in_proj.weight": 0, "in_proj.bias": 0, "out_proj.weight": 1,
    "mix.lags": 0, "mix.lags2": 0, "mix.bias": 0, "mix.bias2": 0,
}  # fmt: skip


def shardings(config: TMMConfig, mesh: Mesh) -> tuple[dict[str, NamedSharding], NamedSharding]:
    """Return how the parameters lie on a mesh, by name, and how the arrays of a batch, (b, n), do.

    Parameters
    ----------
    config : TMMConfig
        The model.
    mesh : jax.sharding.Mesh
        With the axes `data` and `model`; `jax.sharding.Mesh(numpy.reshape(jax.devices(), (2, 2)), ("data", "model"))`
        makes one of four devices.

    Raises
    ------
    ValueError
        If the mesh has other axes.

    Notes
    -----
    A parameter whose size the axis `model` does not divide lies on every device whole.

    Examples
    --------
    >>> import numpy as np
    >>> mesh = Mesh(np.reshape(jax.devices()[:1], (1, 1)), ("data", "model"))
    >>> by_name, rows = shardings(TMMConfig(), mesh)
    >>> tuple(by_name["blocks.0.mlp.down.weight"].spec), tuple(rows.spec)
    ((None, 'model'), ('data',))
    """
    check_mesh(mesh, 0)
    parts = mesh.shape["model"]

    def place(name: str, shape: tuple[int, ...]) -> NamedSharding:
        axis = next((axis for ending, axis in _DIVIDED.items() if name.endswith(ending)), None)
        if axis is None or shape[axis] % parts:
            return NamedSharding(mesh, P())
        return NamedSharding(mesh, P(*(None for _ in range(axis)), "model"))

    by_name = {name: place(name, shape) for name, shape in lm.parameter_shapes(config).items()}
    return by_name, NamedSharding(mesh, P("data"))


def check_mesh(mesh: Mesh, rows: int) -> None:
    """Refuse a mesh that cannot share the rows of a batch."""
    if set(mesh.axis_names) != {"data", "model"} or any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise InputError(
            f"mesh must have the axes 'data' and 'model', of the type Auto, got {mesh.axis_names} of "
            f"{mesh.axis_types}: make it by jax.sharding.Mesh(devices, ('data', 'model'))"
        )
    if rows % mesh.shape["data"]:
        raise InputError(
            f"the mesh does not divide the batch: {rows} rows over {mesh.shape['data']} devices of the axis 'data'; "
            "take a batch that is a multiple of it"
        )


def by_rows(x: Array, mesh: Mesh | None) -> Array:
    """Return `(b, n, d)` with its rows divided."""
    rows: Array = x if mesh is None else lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
    return rows


def by_heads(
    mix: Callable[..., Array], lags: Array, x: Array, bias: Array | None, segment_ids: Array | None, mesh: Mesh
) -> Array:
    """Return `mix(lags, x, bias, segment_ids=segment_ids)`, where each device has its own rows and heads.

    One filter for all channels serves any share of them, unless its kernel reads its neighbours. Where heads cannot be
    divided, the devices along `model` do the same work.
    """
    heads, parts = lags.shape[0], mesh.shape["model"]
    alone = heads == 1 and lags.ndim == 2 and x.shape[-1] % parts == 0
    channels = "model" if alone or heads % parts == 0 else None
    filters = P(None if alone else channels)
    here = P("data", None, channels)
    mapped = jax.shard_map(
        lambda lags, x, bias, ids: mix(lags, x, bias, segment_ids=ids),
        mesh=mesh,
        in_specs=(filters, here, filters, P("data")),
        out_specs=here,
    )
    y: Array = mapped(lags, x, bias, segment_ids)
    return y


def constrain(tree: Any, config: TMMConfig, mesh: Mesh | None) -> Any:
    """Return a tree of parameters, and of what an optimiser keeps for each, as `shardings` says."""
    if mesh is None:
        return tree
    by_name, _ = shardings(config, mesh)
    whole = NamedSharding(mesh, P())

    def place(path: Any, array: Array) -> Array:
        placed: Array = lax.with_sharding_constraint(array, by_name.get(getattr(path[-1], "key", ""), whole))
        return placed

    return jax.tree_util.tree_map_with_path(place, tree)


def replicate(params: Mapping[str, Array], state: Any) -> Any:
    """Return an optimiser's first state with its numbers on the devices of the parameters.

    Its arrays are there already. A program that has met a number without a place is compiled again for one with it.
    """
    place = next((p.sharding for p in params.values() if not isinstance(p, jax.core.Tracer)), None)
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, P())
    return jax.tree.map(lambda a: jax.device_put(a, place) if a.ndim == 0 and place is not None else a, state)
