"""The language model one token at a time, in array-API calls; public through `tmm_core.lm`."""

from __future__ import annotations

import copy
from typing import Any

from .._arrays.exchange import Array, namespace_of
from .._arrays.properties import device_of, nan_where, values_within_reach
from .._dispatch.checks import check_count
from ..config import TMMConfig
from ..errors import InputError
from ..streaming import StreamPlan, StreamState
from ..streaming import stream_init as init_layer
from ..streaming import stream_plan as plan_layer
from ..streaming import stream_prefill as prefill_layer
from ..streaming import stream_reorder as reorder_layer
from ..streaming import stream_step as step_layer
from ..streaming._refusals import no_room, other_plan
from . import model as lm
from .documents import documents_of, refused_rows
from .parameters import check_params

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


class DecodingPlan:
    """A model ready to be streamed: its parameters, and a plan for each of its token-mixing layers.

    Made by `lm.stream_plan`, shared by all its streams.

    Attributes
    ----------
    params, config
        The model.
    capacity : int
        Tokens that a text can have, its prompt included.
    layers : dict of StreamPlan
        By the names of the layers' lags.
    """

    def __init__(self, params: lm.Params, config: TMMConfig, capacity: int, layers: dict[str, StreamPlan]) -> None:
        """Keep the model and its layers' plans."""
        self.params = params
        self.config = config
        self.capacity = capacity
        self.layers = layers


class DecodingState:
    """One stream of a batch of texts, begun by `lm.stream_init`; consumed by each prefill and step.

    Attributes
    ----------
    plan : DecodingPlan
        Shared, never copied.
    batch_size : int
        Texts that are streamed together.
    layers : dict of StreamState
        By the names of the layers' lags.
    position : int
        Tokens that have come, padding included.
    """

    def __init__(self, plan: DecodingPlan, batch_size: int, layers: dict[str, StreamState], position: int = 0) -> None:
        """Keep the layers' streams."""
        self.plan = plan
        self.batch_size = batch_size
        self.layers = layers
        self.position = position

    def __copy__(self) -> DecodingState:
        """Return a stream that goes on by itself from where this one is; the plan is shared."""
        layers = {name: copy.copy(layer) for name, layer in self.layers.items()}
        return DecodingState(self.plan, self.batch_size, layers, self.position)

    def __deepcopy__(self, memo: dict[int, object]) -> DecodingState:
        """Return the same."""
        return self.__copy__()


def stream_plan(params: lm.Params, config: TMMConfig, capacity: int, *, backend: str | None = None) -> DecodingPlan:
    """Prepare to stream a model: the logits of `forward`, one token at a time.

    Parameters
    ----------
    params, config, backend
        As in `forward`; the plan keeps copies of the filters, and the other parameters as they are.
    capacity : int
        Tokens that a text can have, its prompt included.

    Returns
    -------
    DecodingPlan
        For any number of streams.

    Raises
    ------
    TypeError, ValueError, LookupError
        As `forward`; and if `capacity` is no integer of at least 1.

    Notes
    -----
    Cost and error are those of `tmm_core.stream_plan` in each layer.

    Examples
    --------
    >>> import numpy as np
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> params = lm.init_params(config, np.random.default_rng(0))
    >>> plan = stream_plan(params, config, 8)
    >>> logits, state = stream_prefill(plan, stream_init(plan, 1), np.asarray([[1, 4]]))
    >>> logits, state = stream_step(plan, state, np.asarray([2]))
    >>> np.allclose(logits, lm.forward(params, np.asarray([[1, 4, 2]]), config)[:, -1], atol=1e-6)
    True
    """
    capacity = check_count("capacity", capacity, 1)
    check_params(params, config)
    options: dict[str, Any] = {"softplus": config.softplus, "mean": config.mean, "backend": backend}
    layers = {
        name: plan_layer(params[name], capacity, bias=params.get(lm.bias_of(name)), **options)
        for name in params
        if name.endswith((".mix.lags", ".mix.lags2"))
    }
    return DecodingPlan(params, config, capacity, layers)


def stream_init(plan: DecodingPlan, batch_size: int) -> DecodingState:
    """Begin a stream of texts.

    Parameters
    ----------
    plan : DecodingPlan
        The model.
    batch_size : int
        Texts that are streamed together.

    Returns
    -------
    DecodingState
        Consumed by each prefill and step, which may change it in place: go on with the state that they return.

    Raises
    ------
    TypeError, ValueError
        If `batch_size` is no integer of at least 0.
    LookupError, ValueError
        If the plan's backend cannot be had, or cannot serve the parameters.

    Notes
    -----
    O(batch_size * capacity * d_model) memory a layer.
    """
    batch_size = check_count("batch_size", batch_size, 0)
    d, dtype = plan.config.d_model, plan.params["embed.weight"].dtype
    layers = {name: init_layer(layer, (batch_size,), d, dtype=dtype) for name, layer in plan.layers.items()}
    return DecodingState(plan, batch_size, layers)


def stream_prefill(
    plan: DecodingPlan, state: DecodingState, input_ids: Array, attention_mask: Array | None = None
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
    attention_mask : array of booleans or numbers, (b, n), optional
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
        As `forward`; and if the state is another plan's or batch's, the tokens exceed the capacity, or there is
        padding after the first tokens. In traced code a bad mask makes the logits NaN.

    Examples
    --------
    >>> import numpy as np
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> plan = stream_plan(lm.init_params(config, np.random.default_rng(0)), config, 8)
    >>> ids, mask = np.asarray([[1, 4, 2], [3, 0, 0]]), np.asarray([[1, 1, 1], [1, 0, 0]])
    >>> logits, state = stream_prefill(plan, stream_init(plan, 2), ids, mask)
    >>> logits.shape
    (2, 5)
    """
    if state.plan is not plan:
        raise other_plan()
    xp = namespace_of(input_ids, attention_mask)
    if input_ids.ndim != 2 or input_ids.shape[0] != state.batch_size or input_ids.shape[1] == 0:
        raise InputError(
            f"input_ids must be ({state.batch_size}, n) with a token or more, for the stream's batch, and has the "
            f"shape {tuple(input_ids.shape)}: begin with the end-of-text token where there is no prompt"
        )
    input_ids = lm.as_ids(xp, input_ids, "token")
    padding, refused = None, None
    if attention_mask is not None:
        documents = documents_of(input_ids, attention_mask, None, wait=True)
        refused = None if values_within_reach(documents) else refused_rows(documents)
        input_ids, padding = ended_together(input_ids, attention_mask)
    _check_room(plan, state, input_ids.shape[1])
    layers = state.layers

    def mix(name: str, x: Array) -> Array:
        y, layers[name] = prefill_layer(plan.layers[name], layers[name], x, padding=padding)
        return y

    x = lm.blocks(plan.params, input_ids, plan.config, mix)
    state.position += int(input_ids.shape[1])
    logits = lm.logits_of(plan.params, x[:, -1, :], plan.config)
    return logits if refused is None else nan_where(refused, logits), state


def ended_together(ids: Array, mask: Array) -> tuple[Array, Array | None]:
    """Return the tokens with all padding before them, none that all rows have, and how much each row has of it."""
    xp = namespace_of(ids, mask)
    batch, n = ids.shape
    token = xp.astype(xp.astype(mask, xp.bool), ids.dtype)
    padding = n - xp.sum(token, axis=-1)  # (b,)
    after = xp.sum(xp.astype(xp.cumulative_sum(xp.flip(token, axis=-1), axis=-1) == 0, ids.dtype), axis=-1)
    times = xp.arange(n, dtype=ids.dtype, device=device_of(ids))
    rows = xp.arange(batch, dtype=ids.dtype, device=device_of(ids))[:, None]
    source = xp.remainder(times - after[:, None], n)
    moved = xp.reshape(xp.take(xp.reshape(ids, (-1,)), xp.reshape(source + n * rows, (-1,))), (batch, n))
    moved = xp.where(times >= padding[:, None], moved, xp.zeros_like(moved))  # padding may hold no token at all
    if values_within_reach(padding):
        common = int(xp.min(padding)) if batch else 0
        moved, padding = moved[:, common:], padding - common
        if not bool(xp.any(padding > 0)):
            return moved, None
    return moved, padding


def stream_step(plan: DecodingPlan, state: DecodingState, tokens: Array) -> tuple[Array, DecodingState]:
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
        What `forward` returns at this position.
    state : DecodingState
        The stream after the tokens.

    Raises
    ------
    TypeError, ValueError
        As `stream_prefill`.

    Examples
    --------
    >>> import numpy as np
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> plan = stream_plan(lm.init_params(config, np.random.default_rng(0)), config, 8)
    >>> state = stream_init(plan, 1)
    >>> for token in (1, 4, 2):
    ...     logits, state = stream_step(plan, state, np.asarray([token]))
    >>> logits.shape, state.position
    ((1, 5), 3)
    """
    if state.plan is not plan:
        raise other_plan()
    xp = namespace_of(tokens)
    if tuple(tokens.shape) != (state.batch_size,):
        raise InputError(
            f"tokens must be ({state.batch_size},), one for each row of the stream, and have the shape "
            f"{tuple(tokens.shape)}"
        )
    tokens = lm.as_ids(xp, tokens, "token")
    _check_room(plan, state, 1)
    layers = state.layers

    def mix(name: str, x: Array) -> Array:
        y, layers[name] = step_layer(plan.layers[name], layers[name], x)
        return y

    logits = lm.logits_of(plan.params, lm.blocks(plan.params, tokens, plan.config, mix), plan.config)
    state.position += 1
    return logits, state


def stream_copy(state: DecodingState) -> DecodingState:
    """Return a stream that goes on by itself from where this one is; the plan is shared."""
    return copy.copy(state)


def stream_reorder(state: DecodingState, indices: Array) -> DecodingState:
    """Return a stream of other rows of this one.

    Parameters
    ----------
    state : DecodingState
        A stream, which stays as it is.
    indices : array of integers, (other_b,)
        Rows of the batch, in any order and number.

    Returns
    -------
    DecodingState
        Of `other_b` texts; the plan is shared.

    Raises
    ------
    TypeError
        If indices are no integers of the parameters' library.
    ValueError
        If there is no such row, or the shape is another.

    Examples
    --------
    >>> import numpy as np
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> plan = stream_plan(lm.init_params(config, np.random.default_rng(0)), config, 8)
    >>> stream_reorder(stream_init(plan, 2), np.asarray([1, 1, 0])).batch_size
    3
    """
    namespace_of(indices)  # refuses what is no array
    if indices.ndim != 1:
        raise InputError(f"indices must be (b,), rows of the batch, and have the shape {tuple(indices.shape)}")
    layers = {name: reorder_layer(layer, indices) for name, layer in state.layers.items()}
    return DecodingState(state.plan, int(indices.shape[0]), layers, state.position)


def _check_room(plan: DecodingPlan, state: DecodingState, count: int) -> None:
    """Refuse more tokens than there is place for, also where no layer would."""
    if state.position + count > plan.capacity:
        raise no_room(state.position, count, plan.capacity)
