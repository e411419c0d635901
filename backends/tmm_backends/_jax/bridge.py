"""The bridge: two operations of JAX, closed under differentiation and batching, whichever engine computes them.

The product `y = T(w) x` (or with the transpose, `y = T(w)^T x`) and the correlation `c[j] = sum_t g[t] x[t - j]` are
bilinear, and each is transposed into the others: with a cotangent v of y, x has `T(w)^T v` (or `T(w) v`) and w has
`correlate(x, v)` (or `correlate(v, x)`); with a cotangent v of c, g has `T(v) x` and x has `T(v)^T g`. Adjoints and
gradients in the sense of complex numbers conjugate a factor before or after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tmm_core.backend import (
    Engine,
    FunctionalStream,
    InputError,
    LayerStream,
    Method,
    Streamer,
    StreamLayer,
    conj,
    result_dtype_name,
    with_jax_defaults,
)

from . import evaluate, host
from .streaming import JaxStream

__all__ = ["JaxBridge"]

Array = jax.Array


class JaxBridge:
    """What JAX arrays need around any engine."""

    def matmul(
        self, engine: Engine, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None
    ) -> Array:
        """Return the product as an operation that JAX differentiates, batches and traces."""
        w = conj(w) if adjoint else w
        return _bind(product_p, w, x, segment_ids, engine=engine, transposed=adjoint, method=method)

    def correlate(
        self,
        engine: Engine,
        x: Array,
        g: Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Array | None,
    ) -> Array:
        """Return the correlation as such an operation."""
        options = {"lags": lags, "heads": heads, "kernel_size": kernel_size, "method": method}
        return _bind(correlate_p, conj(x), g, segment_ids, engine=engine, **options)

    def streams(self, engine: Engine) -> bool:
        """Return True: compiled programs need no more than an engine's products."""
        return True

    def stream(self, engine: Engine, layer: StreamLayer, /) -> LayerStream:
        """Return the streams of an engine of JAX arrays; else the definition, compiled, with the engine's products."""
        if not (isinstance(engine, Streamer) and engine.owns(layer.lags)):
            return JaxStream(layer)
        stream = engine.stream(layer)
        if type(stream) is LayerStream:  # the definition
            return JaxStream(layer)
        if isinstance(stream, FunctionalStream):
            return stream
        raise InputError(
            f"backend {engine.name!r} cannot stream jax arrays: its {type(stream).__name__} is no FunctionalStream, "
            "which compiled programs call; choose 'auto' or 'array_api'"
        )


def _bind(operation: Primitive, first: Array, second: Array, ids: Array | None, **params: Any) -> Array:
    arrays = [first, second] if ids is None else [first, second, ids]
    result: Array = operation.bind(*_varying_together(arrays), **params)
    return result


def _varying_together(arrays: list[Array]) -> list[Array]:
    """Return arrays that vary over the same axes of a mesh: inside `shard_map`, JAX sums cotangents where they do not.

    Its own operations convert their operands so, too.
    """
    varying = [_varying(array) for array in arrays]
    every = frozenset[str]().union(*varying)
    return [
        lax.pcast(array, tuple(sorted(every - its)), to="varying") if every - its else array
        for array, its in zip(arrays, varying, strict=True)
    ]


def _varying(array: Array) -> frozenset[str]:
    """Return the axes of a mesh over which an array varies: JAX has renamed where it notes them."""
    aval: Any = jax.typeof(array)
    noted = getattr(aval, "manual_axis_type", None)
    axes: frozenset[str] = getattr(aval, "vma", frozenset()) if noted is None else noted.varying
    return axes


def _operation(name: str, evaluated: Callable[..., Array], shaped: Callable[..., Any]) -> Primitive:
    """Return an operation of JAX that has the rules of this module."""
    operation = Primitive(f"tmm_{name}")
    operation.def_impl(functools.partial(_concrete, operation, evaluated))
    operation.def_abstract_eval(shaped)
    ad.primitive_jvps[operation] = functools.partial(_tangent, operation)
    jet.jet_rules[operation] = functools.partial(_taylor_series, operation)
    for on_cpu, platform in ((False, None), (True, "cpu")):
        rule = mlir.lower_fun(functools.partial(_lowered, name, evaluated, shaped, on_cpu), multiple_results=False)
        mlir.register_lowering(operation, rule, platform=platform)
    return operation


# Evaluation ----------------------------------------------------------------------------------------------------------


@with_jax_defaults
def _concrete(
    operation: Primitive, evaluated: Callable[..., Array], *arrays: Array, engine: Engine, **options: Any
) -> Array:
    """Compute on arrays that have values; cotangents and constants may be NumPy's."""
    arrays = tuple(jnp.asarray(array) for array in arrays)
    on_one = _on_one_accelerator(arrays)
    if engine.owns(arrays[0]) or on_one or all(_is_on_first_cpu(array) for array in arrays):
        result: Array = evaluated(engine, *arrays, **options)
        # JAX may use memory anew that nobody holds any more, and does not know that another library still reads it.
        return result.block_until_ready() if on_one and not engine.owns(arrays[0]) else result
    try:
        spread: Array = _compiled(operation)(*arrays, engine=engine, **options)
        return spread.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise host.cause_of(error) from None


def _is_on_first_cpu(array: Array) -> bool:
    """Return whether NumPy can share the whole of an array, and its results come back to the same place."""
    return array.devices() == {jax.local_devices(backend="cpu")[0]}


def _on_one_accelerator(arrays: tuple[Array, ...]) -> bool:
    """Return whether arrays lie on one device, which is no CPU."""
    devices = set().union(*(array.devices() for array in arrays))
    return len(devices) == 1 and next(iter(devices)).platform != "cpu"


@functools.cache
def _compiled(operation: Primitive) -> Any:
    """Return the operation as a program of its own, which JAX spreads over the devices of its arrays."""
    options = ("transposed",) if operation is product_p else ("lags", "heads", "kernel_size")
    return jax.jit(operation.bind, static_argnames=("engine", "method", *options))


def _shape_of_product(w: Any, x: Any, *ids: Any, **_: Any) -> Any:
    """Return the shape and dtype of a product."""
    return x.update(dtype=jnp.dtype(result_dtype_name(w, x)), weak_type=False)


def _shape_of_correlation(x: Any, g: Any, *ids: Any, lags: int, heads: int, kernel_size: int, **_: Any) -> Any:
    """Return the shape and dtype of a correlation."""
    whole = jax.sharding.NamedSharding(g.sharding.mesh, jax.sharding.PartitionSpec())
    dtype = jnp.dtype(result_dtype_name(x, g))
    return g.update(shape=(heads, kernel_size, lags), dtype=dtype, weak_type=False, sharding=whole)


@with_jax_defaults
def _lowered(
    name: str,
    evaluated: Callable[..., Array],
    shaped: Callable[..., Any],
    on_cpu: bool,
    *arrays: Array,
    engine: Engine,
    **options: Any,
) -> Array:
    """Compute in a program that is being compiled, for CPUs or for any platform."""
    if engine.owns(arrays[0]):
        return evaluated(engine, *arrays, **options)
    if not on_cpu:
        raise InputError(
            f"backend {engine.name!r} is called by programs on a CPU only, and this one is compiled for another "
            "platform: choose backend='jax', or call outside jit, vmap and shard_map"
        )
    return host.call(engine, name, shaped(*map(jax.typeof, arrays), **options), *arrays, **options)


# Differentiation -----------------------------------------------------------------------------------------------------


@with_jax_defaults
def _tangent(operation: Primitive, primals: Any, tangents: Any, **params: Any) -> tuple[Array, Any]:
    """Return the result and its tangent: the operation itself, once for each factor."""
    first, second, *ids = primals
    first_t, second_t = (None if type(t) is ad.Zero else t for t in tangents[:2])
    parts = [
        operation.bind(a, b, *ids, **params)
        for a, b in ((first_t, second), (first, second_t))
        if a is not None and b is not None
    ]
    return operation.bind(*primals, **params), parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _as(cotangent: Array, factor: Any) -> Array:
    """Return a cotangent in the dtype of the factor that it belongs to: real for real."""
    if jnp.iscomplexobj(cotangent) and not jnp.issubdtype(factor.aval.dtype, jnp.complexfloating):
        cotangent = cotangent.real
    return cotangent.astype(factor.aval.dtype)


@with_jax_defaults
def _transposed_product(
    v: Any, w: Any, x: Any, *ids: Any, engine: Engine, transposed: bool, method: Method
) -> list[Array | None]:
    """Return the cotangent of the factor that is not known."""
    if type(v) is ad.Zero:
        return [None] * (2 + len(ids))
    common: dict[str, Any] = {"engine": engine, "method": method}
    if ad.is_undefined_primal(w):
        heads, kernel_size, lags = w.aval.shape
        pair = (v, x) if transposed else (x, v)
        gradient = correlate_p.bind(*pair, *ids, lags=lags, heads=heads, kernel_size=kernel_size, **common)
        return [_as(gradient, w), None, *(None for _ in ids)]
    return [None, _as(product_p.bind(w, v, *ids, transposed=not transposed, **common), x), *(None for _ in ids)]


@with_jax_defaults
def _transposed_correlation(
    v: Any, x: Any, g: Any, *ids: Any, engine: Engine, lags: int, heads: int, kernel_size: int, method: Method
) -> list[Array | None]:
    if type(v) is ad.Zero:
        return [None] * (2 + len(ids))
    common: dict[str, Any] = {"engine": engine, "method": method}
    if ad.is_undefined_primal(x):
        return [_as(product_p.bind(v, g, *ids, transposed=True, **common), x), None, *(None for _ in ids)]
    return [None, _as(product_p.bind(v, x, *ids, transposed=False, **common), g), *(None for _ in ids)]


@with_jax_defaults
def _taylor_series(operation: Primitive, primals: Any, series: Any, **params: Any) -> tuple[Array, list[Array]]:
    """Return the result and its Taylor coefficients along a curve: Leibniz' rule, as JAX scales coefficients."""
    bound = SimpleNamespace(bind=lambda first, second: operation.bind(first, second, *primals[2:], **params))
    result, coefficients = jet._bilinear_taylor_rule(bound, primals[:2], series[:2])
    return result, coefficients


# Batching ------------------------------------------------------------------------------------------------------------


@with_jax_defaults
def _batched_product(arrays: Any, dims: Any, **params: Any) -> tuple[Array, int]:
    """Batch over `x` as more rows, over `w` as more heads."""
    (w, x, *ids), (w_dim, x_dim, *ids_dim) = arrays, dims
    size = _batch_size(arrays, dims)
    x = _front(x, x_dim, size)
    if size == 0:  # no heads
        return jnp.zeros(x.shape, result_dtype_name(w, x)), 0
    if w_dim is None:
        ids = [_front(some, dim, size) for some, dim in zip(ids, ids_dim, strict=True)]
        return product_p.bind(w, x, *ids, **params), 0
    w = jnp.moveaxis(w, w_dim, 0)
    if ids_dim and ids_dim[0] is not None:  # heads share their documents: one by one
        each = (w, x, jnp.moveaxis(ids[0], ids_dim[0], 0))
        return lax.map(lambda row: product_p.bind(*row, **params), each), 0
    y = product_p.bind(w.reshape(-1, *w.shape[2:]), _as_channels(x), *ids, **params)
    return y.reshape(*y.shape[:-1], size, -1), y.ndim - 1


@with_jax_defaults
def _batched_correlation(arrays: Any, dims: Any, *, heads: int, **params: Any) -> tuple[Array, int]:
    """Batch as more heads."""
    (x, g, *ids), (x_dim, g_dim, *ids_dim) = arrays, dims
    size = _batch_size(arrays, dims)
    x, g = _front(x, x_dim, size), _front(g, g_dim, size)
    if size == 0:
        return jnp.zeros((0, heads, params["kernel_size"], params["lags"]), result_dtype_name(x, g)), 0
    if ids_dim and ids_dim[0] is not None:
        each = (x, g, jnp.moveaxis(ids[0], ids_dim[0], 0))
        return lax.map(lambda row: correlate_p.bind(*row, heads=heads, **params), each), 0
    c = correlate_p.bind(_as_channels(x), _as_channels(g), *ids, heads=size * heads, **params)
    return c.reshape(size, heads, *c.shape[1:]), 0


def _batch_size(arrays: Any, dims: Any) -> Any:
    return next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)


def _front(a: Array, dim: int | None, size: int) -> Array:
    """Return `a` with the batch in front, repeated where it has none."""
    return jnp.broadcast_to(a, (size, *a.shape)) if dim is None else jnp.moveaxis(a, dim, 0)


def _as_channels(a: Array) -> Array:
    """Return a batch of signals `(batch, ..., n, d)` side by side, `(..., n, batch * d)`."""
    a = jnp.moveaxis(a, 0, -2)
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])


product_p = _operation("matmul", evaluate.product, _shape_of_product)
ad.primitive_transposes[product_p] = _transposed_product
batching.primitive_batchers[product_p] = _batched_product
correlate_p = _operation("correlate", evaluate.correlation, _shape_of_correlation)
ad.primitive_transposes[correlate_p] = _transposed_correlation
batching.primitive_batchers[correlate_p] = _batched_correlation
