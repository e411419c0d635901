"""Language models one token at a time, whatever framework computes them; public through `tmm_core.lm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._arrays.exchange import Array, is_traced, namespace_of
from .._arrays.properties import indices_like, nan_where, values_within_reach
from .._arrays.strictness import with_jax_defaults
from .._dispatch.checks import check_count, check_kind, check_rows, no_room, other_plan
from ..config import TMMConfig
from ..errors import InputError
from . import model as lm
from .documents import documents_of, left_padded, refused_rows
from .parameters import check_params
from .plans import DecodingPlan, DecodingState, Filter, Mix

__all__ = [
    "filters_of",
    "prefill_padded",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
]


@dataclass(frozen=True)
class _ParamsModel:
    """The model of `lm.forward`."""

    params: lm.Params
    config: TMMConfig

    def filters(self) -> dict[str, Filter]:
        """Return the filters by the names of their lags."""
        return filters_of(self.params, self.config)

    def residual_stream(self, input_ids: Array, *, mix: Mix) -> Array:
        """Return what comes out of the last block."""
        return lm.blocks(self.params, input_ids, self.config, mix)

    def logits_of(self, x: Array) -> Array:
        """Return the logits of what comes out of the last block."""
        return lm.logits_of(self.params, x, self.config)

    def checked_tokens(self, input_ids: Array, attention_mask: Array | None, /) -> tuple[Array, Array | None]:
        """Return tokens as integers of the library."""
        ids, mask = lm.arrays_with(self.params, input_ids=input_ids, attention_mask=attention_mask)
        return lm.as_ids("input_ids", ids), mask


def filters_of(params: Mapping[str, Array], config: TMMConfig) -> dict[str, Filter]:
    """Return the filters of a model's parameters by the names of their lags."""
    return {
        name: Filter(p, params.get(lm.bias_of(name)), config.d_model, config.softplus, config.mean)
        for name, p in params.items()
        if name.endswith((".mix.lags", ".mix.lags2"))
    }


@with_jax_defaults
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
        As `forward`; if `capacity` is no integer of at least 1; and if the backend cannot be had or cannot stream.

    Notes
    -----
    Cost and error are those of `tmm_core.stream_plan` in each layer. Other models are streamed by
    `DecodingPlan(model, capacity)`, where `model` is a `StreamedModel`.

    Examples
    --------
    >>> import numpy as np
    >>> from tmm_core import lm
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> params = lm.init_params(config, np.random.default_rng(0))
    >>> plan = stream_plan(params, config, 8)
    >>> logits, state = stream_prefill(plan, stream_init(plan, 1), np.asarray([[1, 4]]))
    >>> beams = stream_reorder(state, np.asarray([0, 0]))
    >>> logits, beams = stream_step(plan, beams, np.asarray([2, 3]))
    >>> np.allclose(logits[0], lm.forward(params, np.asarray([1, 4, 2]), config)[-1], atol=1e-6)
    True
    """
    check_params(params, config)
    return DecodingPlan(_ParamsModel(params, config), capacity, backend=backend)


@with_jax_defaults
def stream_init(plan: DecodingPlan, batch_size: int) -> DecodingState:
    """Begin a stream of `batch_size` texts, in O(batch_size * lags * channels) memory a layer.

    Caches reach as far as the filters do, or to the capacity if that is nearer, and are renewed as they are used up.

    Each prefill and step consumes a state and may change it in place: go on with the one that they return.

    Raises
    ------
    TypeError, ValueError
        If `batch_size` is no integer of at least 0.
    """
    check_kind("plan", plan, DecodingPlan, "the order is (plan, batch_size), and stream_plan makes one")
    rows = check_count("batch_size", batch_size, 0)
    caches = {
        name: layer.new_cache(rows, plan.length_of(layer, plan.capacity), plan.channels[name])
        for name, layer in plan.layers.items()
    }
    return DecodingState(rows, caches, plan=(plan.number, plan.capacity, plan.positions))


@with_jax_defaults
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
        1 for a token and 0 for padding, before the tokens or after them; padding only with the first tokens of a
        stream. Rows are moved so that they end together.

    Returns
    -------
    logits : array, (b, vocab_size)
        Of the token after each row's last one.
    state : DecodingState
        The stream after the tokens.

    Raises
    ------
    TypeError, ValueError
        As the model's forward pass; and if the state is another plan's or batch's, the tokens exceed the capacity or
        the position bias, or there is padding after the first tokens. Where only traced values tell, logits are NaN.
    """
    _check_kinds(plan, state)
    input_ids, attention_mask = plan.model.checked_tokens(input_ids, attention_mask)
    if input_ids.ndim != 2 or input_ids.shape[0] != state.batch_size or input_ids.shape[1] == 0:
        raise InputError(
            f"input_ids must be ({state.batch_size}, n) with a token or more, for the stream's batch, and has the "
            f"shape {tuple(input_ids.shape)}: begin with the end-of-text token where there is no prompt"
        )
    padding, refused = None, None
    if attention_mask is not None:
        documents = documents_of(input_ids, attention_mask, None, wait=True)
        refused = None if values_within_reach(documents) else refused_rows(documents)
        input_ids, padding = left_padded(input_ids, attention_mask)
    logits, state = prefill_padded(plan, state, input_ids, padding)
    return logits if refused is None else nan_where(refused, logits), state


@with_jax_defaults
def prefill_padded(
    plan: DecodingPlan, state: DecodingState, input_ids: Array, padding: Array | None
) -> tuple[Array, DecodingState]:
    """Return the logits after tokens that were checked and end together, and the stream after them."""
    count, begins = int(input_ids.shape[1]), state.position == 0
    begins = not is_traced(begins) and bool(begins)
    if padding is not None and not begins:
        raise InputError(
            f"padding comes before a stream's first token, and {state.position} have come: pass no attention_mask"
        )
    end = state.end_after(padding) if begins else state.end
    wrong = _refused(plan, state, count, end)
    if begins:
        cache = next(iter(state.caches.values()), None)
        padding = padding if padding is None or cache is None else indices_like(padding, cache)
        logits, state.caches = plan.begin(input_ids, padding, plan.capacity - count)
        state.padding, state.end = padding, end
    else:
        plan.with_places(state, count)
        logits, state.caches = plan.resume(state.caches, state.at, state.position, state.padding, input_ids)
    state.position, state.at = state.position + count, 0
    return logits if wrong is False else nan_where(wrong, logits), state


@with_jax_defaults
def stream_step(plan: DecodingPlan, state: DecodingState, input_ids: Array) -> tuple[Array, DecodingState]:
    """Take the next token of each text, integers (b,); return the logits and the stream after it.

    See `stream_prefill` for what is returned and raised: the logits, (b, vocab_size), are those that the model's
    forward pass returns at this position.
    """
    _check_kinds(plan, state)
    input_ids, _ = plan.model.checked_tokens(input_ids, None)
    if tuple(input_ids.shape) != (state.batch_size,):
        raise InputError(
            f"input_ids must be ({state.batch_size},), one for each row of the stream, and have the shape "
            f"{tuple(input_ids.shape)}"
        )
    wrong = _refused(plan, state, 1, state.end)
    plan.with_places(state, 1)
    logits, state.caches = plan.step(state.caches, state.at, state.position, state.padding, input_ids)
    state.position, state.at = state.position + 1, state.at + 1
    return logits if wrong is False else nan_where(wrong, logits), state


def _check_kinds(plan: DecodingPlan, state: DecodingState) -> None:
    """Refuse what is no plan and state of a model."""
    for name, value, kind in (("plan", plan, DecodingPlan), ("state", state, DecodingState)):
        check_kind(name, value, kind, "the order is (plan, state, input_ids)")


def stream_copy(state: DecodingState) -> DecodingState:
    """Return a stream that goes on by itself from where this one is; the plan is shared."""
    check_kind("state", state, DecodingState, "stream_init, stream_prefill and stream_step return one")
    return state.__copy__()


@with_jax_defaults
def stream_reorder(state: DecodingState, indices: Array) -> DecodingState:
    """Return a stream of other rows of this one.

    Parameters
    ----------
    state : DecodingState
        A stream, which stays as it is.
    indices : array of integers, (other_b,), of any library
        Rows of the batch, in any order and number.

    Returns
    -------
    DecodingState
        Of `other_b` texts; the plan is shared.

    Raises
    ------
    TypeError
        If indices are no array of integers.
    ValueError
        If there is no such row, or the shape is another.
    """
    check_kind("state", state, DecodingState, "the order is (state, indices)")
    indices = check_rows(indices, state.batch_size)
    if indices.ndim != 1:
        raise InputError(f"indices must be (b,), rows of the batch, and have the shape {tuple(indices.shape)}")

    def rows(a: Array) -> Array:
        return namespace_of(a).take(a, indices_like(indices, a), axis=0)

    padding = None if state.padding is None else rows(state.padding)
    end = state.end if is_traced(state.end) else None  # fewer rows may go on for longer: known outside programs only
    caches = {name: rows(cache) for name, cache in state.caches.items()}
    return state.with_rows(int(indices.shape[0]), caches, padding, end)


def _refused(plan: DecodingPlan, state: DecodingState, count: int, end: int) -> Any:
    """Refuse another plan's stream and more tokens than there is place for; where values are traced, return which."""
    wrong: Any = False
    if is_traced(other := plan.number != state.number):
        wrong = other
    elif other:
        raise other_plan()
    if is_traced(full := state.position + count > end):
        wrong = wrong | full
    elif full:
        raise no_room(int(state.position), count, state.capacity, state.positions)
    return wrong
