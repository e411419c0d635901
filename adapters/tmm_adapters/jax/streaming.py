"""The JAX model one token at a time, by exact streaming: what `tmm_core.lm` does, in compiled programs.

A program takes the position as an argument, so that none is compiled again for the next token.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from tmm_core import TMMConfig, chosen_backend, lm
from tmm_core.backend import FunctionalStream, LayerStream, with_jax_defaults
from tmm_core.lm import DecodingState, stream_copy, stream_init, stream_prefill, stream_reorder, stream_step

from . import model
from .batches import check_batch, check_params
from .model import ComputeOptions, Precision

__all__ = [
    "DecodingPlan",
    "DecodingState",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
]


@dataclasses.dataclass(frozen=True)
class _Model:
    """A `tmm_core.lm.StreamedModel` of parameters."""

    params: Mapping[str, Array]
    config: TMMConfig
    options: ComputeOptions

    def filters(self) -> dict[str, lm.Filter]:
        return lm.filters_of(self.params, self.config)

    def residual_stream(self, input_ids: Array, *, mix: lm.Mix) -> Array:
        return model.residual_stream(self.params, input_ids, self.config, mix, self.options)

    def logits_of(self, x: Array) -> Array:
        return model.logits_of(self.params, x, self.config, self.options)

    def checked_tokens(self, input_ids: Any, attention_mask: Any, /) -> tuple[Array, Array | None]:
        batch = check_batch({"input_ids": input_ids, "attention_mask": attention_mask}, self.config, axes=(1, 2))
        return batch["input_ids"], batch.get("attention_mask")


class DecodingPlan(lm.DecodingPlan):
    """A model ready to be streamed; a tree of arrays, and so is a `DecodingState`."""

    model: _Model
    layers: dict[str, FunctionalStream]  # type: ignore[assignment]

    def length_of(self, layer: FunctionalStream, count: int) -> int:  # type: ignore[override]
        """Return a length of caches of whole leaves: loops over tokens work on a leaf at a time."""
        return -(-max(count, 1) // layer.leaf) * layer.leaf

    def with_places(self, state: DecodingState, count: int) -> None:
        """Leave the caches as they are: programs are compiled for their lengths, and they have all places."""

    def begin(self, tokens: Array, padding: Array | None, left: int) -> tuple[Array, dict[str, Array]]:
        """Take a first prompt (b, n); a program is compiled for each length."""
        logits, caches = _begin(self, tokens, padding, left)
        return logits, caches

    def resume(
        self, caches: Mapping[str, Array], at: Any, position: Any, padding: Array | None, tokens: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Take tokens (b, n) that follow; the caches, which are donated, keep their lengths."""
        logits, later = _resume(self, caches, at, position, padding, tokens)
        return logits, later

    def step(
        self, caches: Mapping[str, Array], at: Any, position: Any, padding: Array | None, tokens: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Take a token of each row (b,); the caches are donated, and tiles are programs of their own."""
        logits, later = _advance(self, caches, at, position, padding, tokens)
        return logits, {name: layer.add_tile(later[name], at + 1) for name, layer in self.layers.items()}

    def advance(
        self, caches: Mapping[str, Array], at: Any, position: Any, padding: Array | None, tokens: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Return the logits after one more token of each row, and the caches, or windows of them, without tiles."""
        return self.through(tokens, lambda name, layer, x: layer.advance(caches[name], at, position, padding, x))


@with_jax_defaults
def stream_plan(
    params: Mapping[str, Array],
    config: TMMConfig,
    capacity: int,
    *,
    precision: Precision = "float32",
    backend: str | None = None,
) -> DecodingPlan:
    """Prepare to stream a model: the logits of `apply`, one token at a time.

    See `tmm_core.lm.stream_plan` for an example, and `apply` for `precision` and what is raised. Everything is on one
    device.

    Notes
    -----
    Streams are mixed, and caches kept, in the dtype of the parameters, in float32 for halves, with either `precision`.
    Make plans outside of programs: each call of one would return the number by which streams know their plan. Inside a
    program of one's own, with a traced position, XLA may copy the caches at each step. Caches have places for the whole
    capacity, for programs are compiled for their lengths; those of `generate` are renewed.
    """
    check_params(params, config)
    options = ComputeOptions(precision)
    plan = DecodingPlan(_Model({}, config, options), capacity)
    mixing = {name: p for name, p in params.items() if ".mix." in name}
    planned, nan_lags = _planned(
        mixing, config=config, options=options, capacity=plan.capacity, backend=chosen_backend(backend)
    )
    plan.model, plan.positions = _Model(dict(params), config, options), planned.positions
    plan.layers, plan.channels = planned.layers, planned.channels
    for name, layer in plan.layers.items():
        if isinstance(layer, LayerStream):
            layer.nan_lags = bool(nan_lags[name])
    return plan


@functools.partial(jax.jit, static_argnames=("config", "options", "capacity", "backend"))
def _planned(
    mixing: Any, *, config: TMMConfig, options: ComputeOptions, capacity: int, backend: str
) -> tuple[DecodingPlan, dict[str, Array]]:
    """Return a plan without parameters, and which of its filters have lags that are NaN.

    One program: compiling the same operations one by one takes longer than anything else that a short text waits for.
    """
    plan = DecodingPlan(_Model(mixing, config, options), capacity, backend=backend)
    plan.model = _Model({}, config, options)
    lags = {name: layer.layer.lags for name, layer in plan.layers.items() if isinstance(layer, LayerStream)}
    return plan, {name: jnp.any(jnp.isnan(a)) for name, a in lags.items()}


@functools.partial(jax.jit, static_argnums=3)
def _begin(plan: DecodingPlan, tokens: Array, padding: Array | None, left: int) -> Any:
    return lm.DecodingPlan.begin(plan, tokens, padding, left)


@functools.partial(jax.jit, donate_argnums=1)
def _resume(plan: DecodingPlan, caches: Any, at: Any, position: Any, padding: Array | None, tokens: Array) -> Any:
    return lm.DecodingPlan.resume(plan, caches, at, position, padding, tokens)


@functools.partial(jax.jit, donate_argnums=1)
def _advance(plan: DecodingPlan, caches: Any, at: Any, position: Any, padding: Array | None, tokens: Array) -> Any:
    return plan.advance(caches, at, position, padding, tokens)


def _plan_parts(plan: DecodingPlan) -> tuple[Any, Any]:
    rest = (plan.model.config, plan.model.options, plan.capacity, plan.positions, tuple(plan.channels.items()))
    return (plan.model.params, plan.layers, plan.number), rest


def _plan_of(rest: Any, children: Any) -> DecodingPlan:
    plan = object.__new__(DecodingPlan)
    params, plan.layers, plan.number = children
    config, options, plan.capacity, plan.positions, channels = rest
    plan.model, plan.channels = _Model(params, config, options), dict(channels)
    return plan


def _state_parts(state: DecodingState) -> tuple[Any, Any]:
    children = (state.caches, state.padding, state.position, state.at, state.end, state.number)
    return children, (state.batch_size, state.capacity, state.positions)


def _state_of(rest: Any, children: Any) -> DecodingState:
    state = object.__new__(DecodingState)
    state.caches, state.padding, state.position, state.at, state.end, state.number = children
    state.batch_size, state.capacity, state.positions = rest
    return state


jax.tree_util.register_pytree_node(DecodingPlan, _plan_parts, _plan_of)
jax.tree_util.register_pytree_node(DecodingState, _state_parts, _state_of)
