"""The JAX language model one token at a time, by exact streaming: what `tmm_core.lm` does, in compiled programs.

A program takes the position as an argument, so that none is compiled again for the next token.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tmm_core import TMMConfig, lm, streaming
from tmm_core._dispatch.checks import check_count
from tmm_core.errors import InputError, InputTypeError
from tmm_core.lm.decoding import ended_together
from tmm_core.lm.documents import documents_of, refused_rows
from tmm_core.streaming._refusals import no_room, other_plan

from . import model
from .batches import check_batch, check_params
from .model import How, Precision

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


_numbers = itertools.count()


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "layers", "number"],
    meta_fields=["config", "capacity", "precision"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class DecodingPlan:
    """A model ready to be streamed: its parameters, and what streams each of its filters; a tree of arrays."""

    params: Mapping[str, Array]
    layers: Mapping[str, Any]
    """By the names of the lags."""
    number: Any
    """An integer, another one for each plan, by which a stream knows its own."""
    config: TMMConfig
    capacity: int
    precision: Precision


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["tapes", "padding", "position", "at", "end", "plan_number"],
    meta_fields=["config", "capacity"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class DecodingState:
    """One stream of a batch of texts; a tree of arrays, consumed by each step."""

    tapes: Mapping[str, Array]
    """By the names of the lags: (b, length, d), whose first entry is of the time `position - at`."""
    padding: Array
    """(b,): left padding of each row, from where positions are counted."""
    position: Any
    """Tokens that have come, padding included: an integer, traced in compiled programs."""
    at: Any
    """The tapes' entry of the next token."""
    end: Any
    """The first position that there is no place for."""
    plan_number: Any
    """The `number` of the plan that the stream is of."""
    config: TMMConfig
    capacity: int

    @property
    def batch_size(self) -> int:
        """Texts that are streamed together."""
        return int(self.padding.shape[0])


def stream_plan(
    params: Mapping[str, Array],
    config: TMMConfig,
    capacity: int,
    *,
    precision: Precision = "float32",
    backend: str | None = None,
) -> DecodingPlan:
    """Prepare to stream a model: the logits of `apply`, one token at a time.

    Parameters
    ----------
    params, config, precision, backend
        As in `apply`; the plan keeps copies of the filters, and the other parameters as they are, on one device.
    capacity : int
        Tokens that a text can have, its prompt included.

    Returns
    -------
    DecodingPlan
        For any number of streams.

    Raises
    ------
    TypeError, ValueError, LookupError
        As `apply`; and if `capacity` is no integer of at least 1.

    Notes
    -----
    Cost and error are those of `tmm_core.stream_plan` in each layer. Streams are mixed, and tapes kept, in the dtype of
    the parameters with either `precision`. Make plans outside of programs: each call of one would return the number by
    which streams know their plan.

    Examples
    --------
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> params = model.init(config)
    >>> plan = stream_plan(params, config, 8)
    >>> logits, state = stream_prefill(plan, stream_init(plan, 1), jnp.asarray([[1, 4]]))
    >>> logits, state = stream_step(plan, state, jnp.asarray([2]))
    >>> bool(jnp.allclose(logits, model.apply(params, jnp.asarray([[1, 4, 2]]), config)[:, -1], atol=1e-6))
    True
    """
    capacity = check_count("capacity", capacity, 1)
    check_params(params, config)
    dtype = params["embed.weight"].dtype
    options: dict[str, Any] = {"softplus": config.softplus, "mean": config.mean, "backend": backend}
    layers = {
        name: streaming.stream_plan(params[name], capacity, bias=params.get(lm.bias_of(name)), **options).steps(dtype)
        for name in params
        if name.endswith((".mix.lags", ".mix.lags2"))
    }
    return DecodingPlan(dict(params), layers, next(_numbers), config, capacity, precision)


def stream_init(plan: DecodingPlan, batch_size: int) -> DecodingState:
    """Begin a stream of `batch_size` texts; see `tmm_core.stream_init`."""
    batch_size = check_count("batch_size", batch_size, 0)
    tapes = {
        name: layer.new_tape((batch_size, plan.config.d_model), _whole_leaves(plan.capacity, layer))
        for name, layer in plan.layers.items()
    }
    padding = jnp.zeros(batch_size, "int32")
    return DecodingState(tapes, padding, 0, 0, _end(plan, 0), plan.number, plan.config, plan.capacity)


def _whole_leaves(count: int, layer: Any) -> int:
    """Return a length of tapes of whole leaves: loops over tokens work on a leaf at a time."""
    return -(-max(count, 1) // int(layer.leaf)) * int(layer.leaf)


def _end(plan: DecodingPlan, free: Any) -> Any:
    """Return the first position that a stream has no place for, where every row has as much padding as `free`."""
    limited = plan.config.position_bias and plan.config.n_layers > 0
    return min(plan.capacity, plan.config.max_len + free) if limited else plan.capacity


def stream_prefill(
    plan: DecodingPlan, state: DecodingState, input_ids: Any, attention_mask: Any = None
) -> tuple[Array, DecodingState]:
    """Take several tokens of each text at once, and return the logits of the token after them.

    Parameters
    ----------
    plan : DecodingPlan
        The model.
    state : DecodingState
        A stream of this plan; consumed.
    input_ids : array of integers, (b, n)
        One token or more: a prompt, or what follows in a conversation.
    attention_mask : array, (b, n), optional
        1 for a token and 0 for padding, before the tokens or after them; only for the first tokens of a stream. Rows
        are moved so that they end together.

    Returns
    -------
    logits : array, (b, vocab_size)
        Of the token after each row's last one.
    state : DecodingState
        The stream after the tokens.

    Raises
    ------
    TypeError, ValueError
        As `apply`; and if the state is another plan's or batch's, the tokens exceed the capacity or the position bias,
        or there is padding after the first tokens. Where a program does not know the plan, the position or the mask,
        the logits become NaN in place of the first two and of a bad mask.

    Notes
    -----
    A program is compiled for each length; `generate` rounds lengths up.
    """
    ids = check_batch({"input_ids": input_ids, "attention_mask": attention_mask}, plan.config)
    tokens, mask = ids["input_ids"], ids.get("attention_mask")
    _check_state(plan, state, tokens)
    if tokens.shape[1] == 0:
        raise InputError(
            "input_ids must have a token or more: begin with the end-of-text token where there is no prompt"
        )
    begins = _known(state.position) and int(state.position) == 0
    if begins and mask is not None:
        refused = refused_rows(documents_of(tokens, mask, None))
        tokens, moved = ended_together(tokens, mask)
        padding = state.padding if moved is None else moved.astype("int32")
        logits, state = prefilled(plan, state, tokens, padding)
        return logits if refused is None else jnp.where(refused, jnp.nan, logits), state
    if begins:
        return prefilled(plan, state, tokens, state.padding)
    if mask is not None:
        raise InputError("attention_mask is for the first tokens of a stream: pass none with those that follow")
    count = tokens.shape[1]
    _check_room(state, count)
    logits, tapes = _resume(plan, state.tapes, state.at, state.position, state.padding, tokens)
    later = dataclasses.replace(state, tapes=tapes, position=state.position + count, at=0)
    return _nan_where_refused(plan, state, count, logits), later


def prefilled(plan: DecodingPlan, state: DecodingState, tokens: Array, padding: Array) -> tuple[Array, DecodingState]:
    """Return the logits after the first tokens of a stream, which end together, and the stream."""
    count = int(tokens.shape[1])
    free = int(jnp.min(padding)) if _known(padding) and padding.size else 0
    state = dataclasses.replace(state, padding=padding, end=_end(plan, free))
    _check_room(state, count)
    left = plan.capacity - count
    length = max((_whole_leaves(left, layer) for layer in plan.layers.values()), default=0)
    logits, tapes = _begin(plan, tokens, padding, length)
    later = dataclasses.replace(state, tapes=tapes, position=count, at=0)
    return _nan_where_refused(plan, state, count, logits), later


@functools.partial(jax.jit, static_argnums=3)
def _begin(plan: DecodingPlan, tokens: Array, padding: Array, length: int) -> tuple[Array, dict[str, Array]]:
    tapes = {}

    def mix(name: str, x: Array) -> Array:
        mixed, tapes[name] = plan.layers[name].begun(x.astype(plan.params[name].dtype), padding, length)
        y: Array = mixed.astype(x.dtype)
        return y

    x = model.residual_stream(plan.params, _tokens_only(tokens, padding), plan.config, mix, How(plan.precision))
    return model.logits_of(plan.params, x[:, -1], plan.config, How(plan.precision)), tapes


def _tokens_only(tokens: Array, padding: Array) -> Array:
    """Return the tokens with token 0 for padding, which may hold none."""
    return jnp.where(jnp.arange(tokens.shape[1]) >= padding[:, None], tokens, 0)


@functools.partial(jax.jit, donate_argnums=1)
def _resume(
    plan: DecodingPlan, tapes: Any, at: Any, position: Any, padding: Array, tokens: Array
) -> tuple[Array, dict[str, Array]]:
    later = {}

    def mix(name: str, x: Array) -> Array:
        mixed, later[name] = plan.layers[name].resumed(tapes[name], at, position, padding, x)
        y: Array = mixed.astype(x.dtype)
        return y

    x = model.residual_stream(plan.params, tokens, plan.config, mix, How(plan.precision))
    return model.logits_of(plan.params, x[:, -1], plan.config, How(plan.precision)), later


def stream_step(plan: DecodingPlan, state: DecodingState, tokens: Any) -> tuple[Array, DecodingState]:
    """Take the next token of each text, and return the logits of the one after it.

    Parameters
    ----------
    plan : DecodingPlan
        The model.
    state : DecodingState
        A stream of this plan; consumed.
    tokens : array of integers, (b,)
        One a row.

    Returns
    -------
    logits : array, (b, vocab_size)
        What `apply` returns at this position.
    state : DecodingState
        The stream after the tokens.

    Raises
    ------
    TypeError, ValueError
        As `stream_prefill`.

    Notes
    -----
    Inside a program of one's own, with a traced position, XLA may copy the tapes at each step.
    """
    if getattr(tokens, "ndim", 1) != 1:
        raise InputError(f"tokens must be (b,), one for each row of the stream, and have the shape {tokens.shape}")
    tokens = check_batch({"input_ids": tokens}, plan.config, axes=(1,))["input_ids"]
    _check_state(plan, state, tokens)
    _check_room(state, 1)
    logits, tapes = _advance(plan, state.tapes, state.at, state.position, state.padding, tokens)
    known, u = _known(state.at), state.at + 1
    for name, layer in plan.layers.items():
        tapes[name] = layer.tiled(tapes[name], u) if known else layer.with_any_tile(tapes[name], u)
    later = dataclasses.replace(state, tapes=tapes, position=state.position + 1, at=u)
    return _nan_where_refused(plan, state, 1, logits), later


@functools.partial(jax.jit, donate_argnums=1)
def _advance(
    plan: DecodingPlan, tapes: Any, at: Any, position: Any, padding: Array, tokens: Array
) -> tuple[Array, dict[str, Array]]:
    return advanced(plan, tapes, at, position, padding, tokens)


def advanced(
    plan: DecodingPlan, tapes: Any, at: Any, position: Any, padding: Array, tokens: Array
) -> tuple[Array, dict[str, Array]]:
    """Return the logits after one more token of each row, and the tapes, or windows of them, without tiles."""
    later = {}

    def mix(name: str, x: Array) -> Array:
        given = x.astype(tapes[name].dtype)
        mixed, later[name] = plan.layers[name].advanced(tapes[name], at, position, padding, given)
        y: Array = mixed.astype(x.dtype)
        return y

    x = model.residual_stream(plan.params, tokens, plan.config, mix, How(plan.precision))
    return model.logits_of(plan.params, x, plan.config, How(plan.precision)), later


def stream_copy(state: DecodingState) -> DecodingState:
    """Return a stream that goes on by itself from where this one is; the plan is shared."""
    return dataclasses.replace(state, tapes={name: jnp.array(tape) for name, tape in state.tapes.items()})


def stream_reorder(state: DecodingState, indices: Any) -> DecodingState:
    """Return a stream of the rows `indices`, (other_b,), of this one; see `tmm_core.stream_reorder`."""
    if not isinstance(indices, Array | np.ndarray):
        raise InputTypeError(
            f"indices must be an array of JAX or NumPy, got {type(indices).__name__}: convert them first"
        )
    indices, count = jnp.asarray(indices), state.batch_size
    if indices.ndim != 1 or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise InputError(f"indices must be integers (b,), rows of the batch, and are {indices.dtype} {indices.shape}")
    if _known(indices) and not bool(jnp.all((indices >= 0) & (indices < count))):
        raise InputError(f"indices must be rows of the batch, 0 to {count - 1}")
    tapes = {name: tape[indices] for name, tape in state.tapes.items()}
    return dataclasses.replace(state, tapes=tapes, padding=state.padding[indices])


def _known(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def _check_state(plan: DecodingPlan, state: DecodingState, tokens: Array) -> None:
    """Refuse a stream of another plan, as far as it is known, or of another batch."""
    same = (state.config, state.capacity) == (plan.config, plan.capacity)
    if not same or (_numbers_known(plan, state) and int(plan.number) != int(state.plan_number)):
        raise other_plan()
    if tokens.shape[0] != state.batch_size:
        raise InputError(
            f"the stream has {state.batch_size} rows and there are tokens for {tokens.shape[0]}: one stream a batch"
        )


def _check_room(state: DecodingState, count: int) -> None:
    """Refuse more tokens than there is place for, as far as it is known."""
    if _known(state.position) and _known(state.end) and int(state.position) + count > int(state.end):
        raise no_room(int(state.position), count, state.capacity, state.config.max_len)


def _nan_where_refused(plan: DecodingPlan, state: DecodingState, count: int, logits: Array) -> Array:
    """Return NaN where only values that are traced tell that a stream cannot take `count` more tokens of a plan."""
    if not _numbers_known(plan, state):
        logits = jnp.where(plan.number == state.plan_number, logits, jnp.nan)
    if not (_known(state.position) and _known(state.end)):
        logits = jnp.where(state.position + count > state.end, jnp.nan, logits)
    return logits


def _numbers_known(plan: DecodingPlan, state: DecodingState) -> bool:
    return _known(plan.number) and _known(state.plan_number)
