"""The Toeplitz MLP Mixer language model in JAX: layer, block and model, of pure functions, and their training.

Parameters are a flat dict from names to arrays, those of `tmm_core.lm`, which computes the same logits in array-API
calls. The mathematics of token mixing is `tmm_core.mix_tokens`; everything else is `jax.nn`.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from tmm_core import TMMConfig, lm, mix_tokens
from tmm_core.backend import share, with_jax_defaults
from tmm_core.lm import Mix

from .batches import check_batch, check_params, targets_of
from .sharding import by_heads, by_rows

__all__ = [
    "ComputeOptions",
    "apply",
    "at_least_float32",
    "block",
    "cross_entropy",
    "from_params",
    "init",
    "logits_of",
    "loss",
    "mlp",
    "residual_stream",
    "token_mixing",
]

Params = Mapping[str, Array]
Precision = Literal["float32", "bfloat16"]


class ComputeOptions(NamedTuple):
    """How a model is computed, which changes none of its mathematics."""

    precision: Precision = "float32"
    """`float32` is the arithmetic of the parameters, whatever their dtype; `bfloat16` that of linear maps, mixed."""
    mesh: Mesh | None = None
    """Devices that share the work, along the axes `data` (rows of a batch) and `model` (channels)."""
    backend: str | None = None
    """Who computes the Toeplitz products; see `tmm_core.use_backend`."""


DEFAULT = ComputeOptions()


def token_mixing(
    params: Params, i: int, x: Array, config: TMMConfig, mix: Mix, options: ComputeOptions = DEFAULT
) -> Array:
    """Project into heads, multiply each by its causal Toeplitz matrix, project back."""
    p = _part(params, f"blocks.{i}.mix")
    if config.has_projections:
        x = _linear(_part(p, "in_proj"), x, options)  # (b, n, d); head i owns the channels [i d/h, (i+1) d/h)
    x = mix(f"blocks.{i}.mix.lags", x)
    if config.mix_layers == 2:
        x = mix(f"blocks.{i}.mix.lags2", jax.nn.silu(x))
    return _linear(_part(p, "out_proj"), x, options) if config.has_projections else x


def mlp(params: Params, i: int, x: Array, config: TMMConfig, options: ComputeOptions = DEFAULT) -> Array:
    """Mix the channels of each token."""
    p = _part(params, f"blocks.{i}.mlp")
    x = _linear(_part(p, "up"), x, options)  # (b, n, d) -> (b, n, d_mlp)
    x = jax.nn.silu(x) if config.activation == "silu" else jax.nn.gelu(x, approximate=True)
    return _linear(_part(p, "down"), x, options)  # (b, n, d_mlp) -> (b, n, d)


def block(params: Params, i: int, x: Array, config: TMMConfig, mix: Mix, options: ComputeOptions = DEFAULT) -> Array:
    """Return the residual stream after block i: channels and tokens, in the order of the configuration."""
    if config.order == "mlp_first":
        x = x + mlp(params, i, _norm(_part(params, f"blocks.{i}.mlp_norm"), x, config), config, options)
    x = x + token_mixing(params, i, _norm(_part(params, f"blocks.{i}.mix_norm"), x, config), config, mix, options)
    if config.order == "mix_first":
        x = x + mlp(params, i, _norm(_part(params, f"blocks.{i}.mlp_norm"), x, config), config, options)
    return x


@with_jax_defaults
def init(config: TMMConfig, seed: int = 0) -> dict[str, Array]:
    """Return the initial parameters, float32, those of `tmm_core.lm.init_params` on every framework.

    Parameters
    ----------
    config : TMMConfig
        The model.
    seed : int
        Of a NumPy generator.

    Examples
    --------
    >>> init(TMMConfig(), seed=1)["blocks.0.mix.lags"].shape
    (4, 512)
    """
    return from_params(lm.init_params(config, np.random.default_rng(seed)), config)


@with_jax_defaults
def from_params(params: Mapping[str, Any], config: TMMConfig) -> dict[str, Array]:
    """Return copies of `params`, arrays of any library under the names of `tmm_core.lm`, in their dtype.

    Raises
    ------
    TypeError
        If a parameter is no floating array, or is float64 while JAX makes float32 of that.
    ValueError
        If names or shapes are not those of `config`.
    """
    lm.check_params(params, config)
    return {name: jnp.array(share(params[name], jnp), copy=True) for name in lm.parameter_shapes(config)}


@with_jax_defaults
def apply(
    params: Params,
    input_ids: Any,
    config: TMMConfig,
    *,
    attention_mask: Any = None,
    segment_ids: Any = None,
    precision: Precision = "float32",
    mesh: Mesh | None = None,
    backend: str | None = None,
) -> Array:
    """Return the logits of the next token at every position, (b, n, vocab_size).

    See `tmm_core.lm.forward` for the parameters that are not described here, what is raised, and the cost.

    Parameters
    ----------
    params : mapping of names to arrays
        JAX's.
    input_ids, attention_mask, segment_ids : arrays, (b, n), JAX's or NumPy's
        Tokens, padding and documents; logits at padding are finite and mean nothing.
    precision : {"float32", "bfloat16"}
        `bfloat16` computes linear maps, what is between them and the logits in bfloat16, from parameters, a residual
        stream and norms that keep their own dtype, as Torch's autocast does; `float32` changes no dtype.
    mesh : jax.sharding.Mesh, optional
        Devices that share the work, where parameters and batch lie as `tmm_adapters.jax.sharding.shardings` says.

    Raises
    ------
    TypeError
        If parameters are not JAX's, or tokens no integers.
    ValueError
        As `tmm_core.lm.forward`; and if float64 is not enabled, or the mesh does not divide the batch. What depends on
        the values of a batch is refused outside of traced code and in the memory of the CPU; elsewhere a token outside
        the vocabulary and all after it, and rows that would be refused, become NaN.

    Notes
    -----
    Called outside `jax.jit` it computes operation by operation, which is slow.

    Examples
    --------
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> apply(init(config), jnp.asarray([[1, 4, 2]]), config).shape
    (1, 3, 5)
    """
    options = ComputeOptions(precision, mesh, backend)
    batch = {"input_ids": input_ids, "attention_mask": attention_mask, "segment_ids": segment_ids}
    check_params(params, config)
    batch = check_batch(batch, config, mesh)
    documents = lm.documents_of(batch["input_ids"], batch.get("attention_mask"), batch.get("segment_ids"))  # (b, n)
    x = residual_stream(params, batch["input_ids"], config, _whole(params, config, documents, options), options)
    logits = logits_of(params, x, config, options)
    refused = lm.refused_rows(documents)
    return logits if refused is None else jnp.where(refused[..., None], jnp.nan, logits)


def residual_stream(
    params: Params, input_ids: Array, config: TMMConfig, mix: Mix, options: ComputeOptions = DEFAULT
) -> Array:
    """Return what comes out of the last block, (..., d)."""
    x = by_rows(_embed(params["embed.weight"], input_ids), options.mesh)  # (b, n) -> (b, n, d)
    for i in range(config.n_layers):
        x = block(params, i, x, config, mix, options)
    return x


def logits_of(params: Params, x: Array, config: TMMConfig, options: ComputeOptions = DEFAULT) -> Array:
    """Return the logits, (..., vocab_size), of what comes out of the last block."""
    if config.final_norm:
        x = _norm(_part(params, "final_norm"), x, config)
    unembed = params["embed.weight" if config.tie_embeddings else "unembed.weight"]
    return _linear({"weight": unembed}, x, options)  # (..., d) -> (..., V)


@with_jax_defaults
def loss(
    params: Params,
    input_ids: Any,
    config: TMMConfig,
    *,
    labels: Any = None,
    targets: Any = None,
    attention_mask: Any = None,
    segment_ids: Any = None,
    precision: Precision = "float32",
    mesh: Mesh | None = None,
    backend: str | None = None,
) -> Array:
    """Return the mean cross-entropy (nats) of each token given those before it, (), in float32 or above.

    See `tmm_core.lm.loss` for `labels` and `targets`, and `apply` for the other parameters and what is raised.
    """
    masks = {"attention_mask": attention_mask, "segment_ids": segment_ids}
    batch = {"input_ids": input_ids, "labels": labels, "targets": targets, **masks}
    check_params(params, config)
    targets = targets_of(check_batch(batch, config, mesh))
    logits = apply(params, input_ids, config, **masks, precision=precision, mesh=mesh, backend=backend)
    return cross_entropy(logits, targets) / jnp.sum(targets != lm.IGNORED)


def _embed(table: Array, ids: Array) -> Array:
    """Return the rows of tokens; NaN for what is outside the vocabulary, where negative numbers would count back."""
    return jnp.take(table, jnp.where(ids < 0, table.shape[0], ids), axis=0, mode="fill", fill_value=jnp.nan)


def _whole(params: Params, config: TMMConfig, documents: Array | None, options: ComputeOptions) -> Mix:
    """Return how whole sequences are mixed; over a mesh each device mixes its own rows and heads."""
    mixed = functools.partial(mix_tokens, softplus=config.softplus, mean=config.mean, backend=options.backend)

    def mix(name: str, x: Array) -> Array:
        lags, bias = params[name], params.get(lm.bias_of(name))
        if options.mesh is not None:
            return by_heads(mixed, lags, x, bias, documents, options.mesh)
        y: Array = mixed(lags, x, bias, segment_ids=documents)
        return y

    return mix


def _linear(p: Params, x: Array, options: ComputeOptions) -> Array:
    """Return `x weight^T + bias` with every bit of the inputs, as Torch does: JAX would use fewer on accelerators."""
    dtype = jnp.bfloat16 if options.precision == "bfloat16" else x.dtype
    x, weight = x.astype(dtype), p["weight"].astype(dtype)
    if x.ndim == 2:  # a token of each row: with the weight on the left XLA reads it as it lies, and copies no transpose
        y = jnp.matmul(weight, x.T, precision=lax.Precision.HIGHEST).T
    else:
        y = jnp.matmul(x, weight.T, precision=lax.Precision.HIGHEST)
    return y + p["bias"].astype(dtype) if "bias" in p else y


def _norm(p: Params, x: Array, config: TMMConfig) -> Array:
    """Return the configured norm; RMSNorm's own eps is the machine epsilon."""
    y = at_least_float32(x)
    if config.norm == "rms":
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + jnp.finfo(x.dtype).eps) * p["weight"]
    else:
        y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5) * p["weight"] + p["bias"]
    return y.astype(x.dtype)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Return the summed cross-entropy (nats) of the targets that count."""
    logits = at_least_float32(logits)
    counts = targets != lm.IGNORED
    safe = jnp.where(counts & (targets >= 0), targets, 0)
    chosen = jnp.take_along_axis(logits, safe[..., None], axis=-1, mode="fill", fill_value=jnp.nan)[..., 0]
    nats = jax.nn.logsumexp(logits, axis=-1) - jnp.where(counts & (targets < 0), jnp.nan, chosen)
    return jnp.sum(jnp.where(counts, nats, 0))


def at_least_float32(x: Array) -> Array:
    """Return halves as float32, others as they are."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _part(params: Params, prefix: str) -> dict[str, Array]:
    """Return the parameters under a prefix, by the rest of their names."""
    return {name.removeprefix(prefix + "."): p for name, p in params.items() if name.startswith(prefix + ".")}
