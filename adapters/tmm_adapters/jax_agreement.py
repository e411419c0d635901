"""What `tmm agree` compares, computed in JAX: products with both gradients, the model with every gradient, training."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tmm_core import lm

from .agree.inputs import ModelCase, Training
from .agree.sides import Side
from .jax import apply, from_params, loss, optimizer, train_step

__all__ = ["JaxSide"]

Numbers = NDArray[Any]


class JaxSide(Side):
    """JAX: arrays, the model and its training."""

    def __init__(self) -> None:
        """Let single operations be compiled quickly: there are thousands, each for an array or two."""
        jax.config.update("jax_disable_most_optimizations", True)

    def array(self, values: Numbers, dtype: str) -> Array:
        """Return numbers as an array of JAX."""
        return jnp.asarray(values, dtype=dtype)

    def integers(self, ids: Numbers) -> Array:
        """Return tokens as JAX's own integers."""
        return jnp.asarray(ids)

    def pull_back(
        self, function: Callable[..., Array], inputs: tuple[Array, ...], cotangent: Array
    ) -> tuple[Array, ...] | None:
        """Return what `jax.vjp` returns."""
        cotangents: tuple[Array, ...] = jax.vjp(function, *inputs)[1](cotangent)
        return cotangents

    def model(self, case: ModelCase, dtype: str) -> dict[str, Numbers]:
        """Return what `apply` and the gradient of `loss` are, computed operation by operation.

        Variants share most operations, but no program: to compile each would take minutes. Training is compiled.
        """
        config, frozen = case.config, lm.frozen_names(case.config)
        params = from_params({name: p.astype(dtype) for name, p in case.params.items()}, config)
        trained = {name: p for name, p in params.items() if name not in frozen}
        ids = jnp.asarray(case.ids)
        grads = jax.grad(lambda trained: loss({**params, **trained}, ids, config))(trained)
        logits = apply(params, ids, config)
        return {name: np.asarray(a) for name, a in {"logits": logits, **grads}.items()}

    def train(self, training: Training, dtype: str) -> dict[str, Numbers]:
        """Return the curve of `train_step`."""
        t = training
        jax.config.update("jax_disable_most_optimizations", False)
        adamw = optimizer(
            t.config,
            learning_rate=t.learning_rate,
            weight_decay=t.weight_decay,
            beta1=t.beta1,
            beta2=t.beta2,
            clip=t.clip,
        )
        params = from_params(t.params(dtype), t.config)
        state, losses = adamw.init(params), []
        for ids in t.batches():
            params, state, loss = train_step(params, state, {"input_ids": ids}, t.config, adamw)
            losses.append(float(loss))
        jax.config.update("jax_disable_most_optimizations", True)
        return {"": np.asarray(losses)}
