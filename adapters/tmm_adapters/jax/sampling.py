"""Tokens sampled from logits in JAX: greedily, or by temperature, top-k and top-p."""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from tmm_core.backend import with_jax_defaults
from tmm_core.errors import InputError

from ..generation import Sampling
from .model import at_least_float32

__all__ = ["StaticSampling", "key_of", "parameters_of", "sample", "uniform"]


class StaticSampling(NamedTuple):
    """What programs are compiled for: whether and how logits are sampled from."""

    greedy: bool
    top_k: int | None
    nucleus: bool
    eos_token_id: int | None


@with_jax_defaults
def parameters_of(sampling: Sampling) -> Array:
    """Return what programs are given of sampling when they run: (2,), the temperature and the probability of top-p."""
    tiny = float(jnp.finfo("float32").tiny)  # XLA may multiply by a reciprocal, of which it makes 0 if it is smaller
    return jnp.asarray([min(max(sampling.temperature, tiny), 1 / tiny), sampling.top_p], "float32")


@with_jax_defaults
def key_of(seed: int) -> Array:
    """Return a seed of 64 bits as two numbers, so that no two are alike; JAX's own take 32 unless told otherwise."""
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed must be at least 0 and less than 2**64, got {seed}: take its remainder")
    return jnp.asarray([seed & 0xFFFFFFFF, seed >> 32], "uint32")


def uniform(keys: Array, step: Array) -> Array:
    """Return a number in [0, 1) for each row."""
    return jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, step)))(keys)


def sample(logits: Array, uniform: Array | None, parameters: Array, sampling: StaticSampling) -> Array:
    """Return a token for each row of logits (b, V), by numbers in [0, 1); the likeliest without."""
    if uniform is None:
        return jnp.argmax(logits, axis=-1)
    logits = at_least_float32(logits)
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)  # however small the temperature, the likeliest is finite
    logits = logits.astype("float32")
    p, ids = jax.nn.softmax(logits / parameters[0], axis=-1), None
    if sampling.nucleus or sampling.top_k is not None:
        k = p.shape[1] if sampling.top_k is None else min(sampling.top_k, p.shape[1])
        p, ids = lax.top_k(p, k)  # (b, k)
        p = p / jnp.sum(p, axis=-1, keepdims=True)
        kept = (jnp.cumsum(p, axis=-1) - p < parameters[1]).at[:, 0].set(True)
        p = jnp.where(kept, p, 0)
    total = jnp.cumsum(p, axis=-1)
    # The first whose running sum exceeds the number; one of no probability never is.
    at = jnp.sum(total <= uniform[:, None] * total[:, -1:], axis=-1)
    at = jnp.minimum(at, jnp.sum(total < total[:, -1:], axis=-1))  # where rounding made the number the whole sum
    return at if ids is None else jnp.take_along_axis(ids, at[:, None], axis=-1)[:, 0]
