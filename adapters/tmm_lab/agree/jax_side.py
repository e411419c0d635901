"""What `tmm agree` compares, computed in JAX: products with both gradients, the model with every gradient, training."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tmm_adapters.jax import apply, from_params, loss, optimizer, train_step
from tmm_core import lm

from .inputs import ModelCase, Training
from .sides import Side

__all__ = ["JaxSide"]

Numbers = NDArray[Any]


class JaxSide(Side):
    """JAX: arrays, the model and its training."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let single operations be compiled quickly, there being hundreds, and once.

        JAX pulls back in the context of a mesh of no devices, and what is compiled in a context is for that alone.
        """
        no_mesh = jax.sharding.AbstractMesh((), ())
        with _optimised(False), jax.sharding.use_abstract_mesh(no_mesh):
            yield

    def array(self, values: Numbers, dtype: str) -> Array:
        """Return numbers as an array of JAX."""
        return jnp.asarray(values, dtype=dtype)

    def integers(self, ids: Numbers) -> Array:
        """Return tokens as JAX's own integers."""
        return jnp.asarray(ids)

    def pull_back(
        self, function: Callable[..., Array], inputs: tuple[Array, ...], cotangent: Array
    ) -> tuple[Array, ...]:
        """Return what `jax.vjp` returns."""
        cotangents: tuple[Array, ...] = jax.vjp(function, *inputs)[1](cotangent)
        return cotangents

    def model(self, case: ModelCase, dtype: str) -> dict[str, Numbers]:
        """Return what `apply` and the gradient of `loss` are: of some models in one program, as in training.

        The others go operation by operation, which variants share: to compile each would take minutes.
        """
        config, frozen = case.config, lm.frozen_names(case.config)
        params = from_params({name: p.astype(dtype) for name, p in case.params.items()}, config)
        trained = {name: p for name, p in params.items() if name not in frozen}

        def both(trained: dict[str, Array], params: dict[str, Array], ids: Array) -> dict[str, Array]:
            grads = jax.grad(lambda trained: loss({**params, **trained}, ids, config))(trained)
            return {"logits": apply(params, ids, config), **grads}

        with _optimised(True) if case.whole else nullcontext():
            computed = (jax.jit(both) if case.whole else both)(trained, params, jnp.asarray(case.ids))
        return {name: np.asarray(a) for name, a in computed.items()}

    def train(self, training: Training, dtype: str) -> dict[str, Numbers]:
        """Return the curve of `train_step`."""
        t = training
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
        with _optimised(True):
            for ids in t.batches():
                params, state, loss = train_step(params, state, {"input_ids": ids}, t.config, adamw)
                losses.append(float(loss))
        return {"": np.asarray(losses)}


@contextmanager
def _optimised(usual: bool) -> Iterator[None]:
    """Let programs be optimised as they are for users, or hardly."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not usual)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
