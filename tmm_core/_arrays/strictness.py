"""What JAX asks of its users' own code: strict modes, and axes of a mesh of which every operation must say more.

What is computed here is the same with and without them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

from .properties import compiling

__all__ = ["with_jax_defaults"]

P = ParamSpec("P")
R = TypeVar("R")


def with_jax_defaults(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function promote ranks and dtypes, move constants and divide what devices share, as JAX does by default.

    The modes are `jax_numpy_rank_promotion`, `jax_numpy_dtype_promotion` and `jax_transfer_guard`. Rules, such as those
    of derivatives, JAX calls later than the function that asks for them: they need this, too.

    The axes are explicit ones, as those of `jax.make_mesh` are: how an array is cut is part of its type, and many
    operations are refused that do not say how their result is. Here they are computed on automatic axes, and the
    results given back on the explicit ones, cut as the argument that is most like them.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if compiling():  # by PyTorch, whose compiler need not look at JAX
            return function(*args, **kwargs)
        jax: Any = sys.modules.get("jax")
        if not hasattr(jax, "sharding"):  # as long as it is being imported
            return function(*args, **kwargs)
        mesh = _explicit_mesh(jax, (*args, *kwargs.values()))
        if mesh is None and not _strict(jax.config):
            return function(*args, **kwargs)
        with ExitStack() as modes:
            modes.enter_context(jax.numpy_rank_promotion("allow"))
            modes.enter_context(jax.numpy_dtype_promotion("standard"))
            modes.enter_context(jax.transfer_guard("allow"))
            return function(*args, **kwargs) if mesh is None else _automatically(jax, mesh, function, args, kwargs)

    return called


def _strict(config: Any) -> bool:
    """Return whether a mode is on: to enter them takes ten times as long as to look."""
    return bool(
        config.jax_numpy_rank_promotion != "allow"
        or config.jax_numpy_dtype_promotion != "standard"
        or config.jax_transfer_guard_host_to_device
        or config.jax_transfer_guard_device_to_device
        or config.jax_transfer_guard_device_to_host
        or config.jax_transfer_guard
    )


# Explicit axes -------------------------------------------------------------------------------------------------------

_kinds: dict[type, str] = dict.fromkeys((type(None), bool, int, float, str), "other")
"""What instances of a class are: arrays or traced ones of JAX, containers of such, or other; looked at once."""


def _kind_of(jax: Any, cls: type) -> str:
    kinds = {"traced": jax.core.Tracer, "array": jax.Array, "container": (dict, list, tuple)}
    _kinds[cls] = next((kind for kind, base in kinds.items() if issubclass(cls, base)), "other")
    return _kinds[cls]


def _explicit_mesh(jax: Any, arguments: Iterable[Any]) -> Any:
    """Return the mesh with explicit axes that an array among arguments lies on, or that the caller computes in."""
    for argument in arguments:
        kind = _kinds.get(type(argument)) or _kind_of(jax, type(argument))
        if kind == "other":
            continue
        if kind == "array":
            mesh = getattr(argument.sharding, "mesh", None)
        elif kind == "traced":
            mesh = jax.typeof(argument).sharding.mesh
        else:
            mesh = _explicit_mesh(jax, argument.values() if isinstance(argument, dict) else argument)
        if mesh is not None and jax.sharding.AxisType.Explicit in mesh.axis_types:
            return mesh
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.axis_types and jax.sharding.AxisType.Explicit in mesh.axis_types else None


def _automatically(jax: Any, mesh: Any, function: Callable[..., R], args: Any, kwargs: Any) -> R:
    """Return what a function returns of arguments whose arrays JAX may divide as it sees fit."""
    Auto, Explicit, P = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit, jax.sharding.PartitionSpec
    concrete = isinstance(mesh, jax.sharding.Mesh)
    automatic = _retyped(jax, mesh, [Auto if kind == Explicit else kind for kind in mesh.axis_types])
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_no_container)
    cut: list[tuple[tuple[int, ...], Any]] = []
    with jax.sharding.use_abstract_mesh(getattr(automatic, "abstract_mesh", automatic)):
        for i, leaf in enumerate(leaves):
            sharding = jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None
            if sharding is not None and Explicit in sharding.mesh.axis_types:
                cut.append((leaf.shape, sharding.spec))
                leaves[i] = jax.sharding.reshard(leaf, P())  # says no more of its axes; nothing is moved
            elif sharding is not None and sharding.mesh.empty and concrete and not isinstance(leaf, jax.core.Tracer):
                leaves[i] = jax.device_put(leaf, jax.sharding.NamedSharding(automatic, P()))  # from one device
        args, kwargs = jax.tree.unflatten(tree, leaves)
        result = function(*args, **kwargs)

    def given_back(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):  # a stream, for example, which keeps its arrays to itself
            return leaf
        sharding = jax.sharding.NamedSharding(mesh, P(*_cut_like(leaf.shape, cut)))
        if isinstance(leaf, jax.core.Tracer) or not concrete:
            return jax.sharding.reshard(leaf, sharding)
        return jax.device_put(leaf, sharding)  # from a program, JAX could not read empty arrays that are cut

    returned: R = jax.tree.map(given_back, result, is_leaf=_is_no_container)
    return returned


def _retyped(jax: Any, mesh: Any, kinds: Sequence[Any]) -> Any:
    """Return a mesh, of devices or abstract, with axes of other kinds."""
    if isinstance(mesh, jax.sharding.Mesh):
        return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=tuple(kinds))
    return mesh.update(axis_types=tuple(kinds))


def _is_no_container(part: Any) -> bool:
    return not isinstance(part, dict | list | tuple)


def _cut_like(shape: tuple[int, ...], cut: list[tuple[tuple[int, ...], Any]]) -> tuple[Any, ...]:
    """Return how a result is cut: as the first argument of its shape, else as that with most cuts at the same sizes."""
    shared = [
        tuple(part if a == b else None for a, b, part in zip(shape, theirs, spec, strict=False)) for theirs, spec in cut
    ]
    same = [spec for (theirs, _), spec in zip(cut, shared, strict=True) if theirs == shape]
    return same[0] if same else max(shared, key=lambda spec: sum(part is not None for part in spec), default=())
