"""The PyTorch language model one token at a time, by exact streaming: what `tmm_core.lm` does, through its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tmm_core import lm, streaming
from tmm_core._dispatch.checks import check_count
from tmm_core.errors import InputError
from tmm_core.lm import DecodingState, stream_copy, stream_reorder
from tmm_core.lm.decoding import ended_together
from tmm_core.lm.documents import documents_of
from tmm_core.streaming._refusals import no_room, other_plan

if TYPE_CHECKING:
    from .model import LanguageModel

__all__ = [
    "DecodingPlan",
    "DecodingState",
    "aligned",
    "evaluating",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
]


class DecodingPlan(lm.DecodingPlan):
    """A model ready to be streamed, made by `LanguageModel.stream_plan`, which goes on by the model's modules."""

    def __init__(self, model: LanguageModel, capacity: int, layers: dict[str, streaming.StreamPlan]) -> None:
        """Keep the plans by the names of the layers' lags, and what the parameters were."""
        super().__init__(dict(model.named_parameters()), model.tmm_config, capacity, layers)
        self.model = model
        # Tensors of inference mode have no version. A list that is compared whole takes a third of the time a step.
        self._places = [
            (module._parameters, name)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._parameters: list[Any] = [places[name] for places, name in self._places]
        self._ids = list(map(id, self._parameters))
        self._versioned = [parameter for parameter in self._parameters if not parameter.is_inference()]
        self._versions = self._current()

    def _current(self) -> list[int]:
        return [parameter._version for parameter in self._versioned]

    def check(self, model: LanguageModel) -> None:
        """Refuse another model, or parameters that are no longer those of the plan's filters."""
        if self.model is not model:
            raise InputError("the plan belongs to another model: expected one that this model's stream_plan made")
        if [id(places[name]) for places, name in self._places] != self._ids or self._current() != self._versions:
            raise InputError("the model's parameters have changed since the plan was made: make a new plan")


@torch.no_grad()
def stream_plan(model: LanguageModel, capacity: int, *, backend: str | None = None) -> DecodingPlan:
    """Prepare to stream the model: the logits of `forward`, one token at a time.

    Parameters
    ----------
    model : LanguageModel
        Whose method this is.
    capacity : int
        Tokens that a text can have, its prompt included; no more than the position bias has.
    backend : str, optional
        Who computes; see `tmm_core.use_backend`.

    Returns
    -------
    DecodingPlan
        For any number of streams. It keeps copies of the filters; the model's other parameters must stay as they
        are while it is used.

    Raises
    ------
    TypeError, ValueError, LookupError
        As `tmm_core.stream_plan`.

    Notes
    -----
    Cost and error are those of `tmm_core.stream_plan` in each layer.
    """
    capacity = check_count("capacity", capacity, 1)
    c = model.tmm_config
    options: dict[str, Any] = {"softplus": c.softplus, "mean": c.mean, "backend": backend}
    layers = {
        name: streaming.stream_plan(lags, capacity, bias=bias, **options)
        for name, (lags, bias) in model.filters().items()
    }
    return DecodingPlan(model, capacity, layers)


@torch.no_grad()
def stream_init(model: LanguageModel, plan: DecodingPlan, batch_size: int) -> DecodingState:
    """Begin a stream of `batch_size` texts; each layer holds a number for each token to come and channel."""
    plan.check(model)
    shape = (check_count("batch_size", batch_size, 0),)
    d, dtype = model.tmm_config.d_model, model.embed.weight.dtype
    layers = {name: streaming.stream_init(layer, shape, d, dtype=dtype) for name, layer in plan.layers.items()}
    return DecodingState(plan, *shape, layers)


@torch.no_grad()
def stream_prefill(
    model: LanguageModel,
    plan: DecodingPlan,
    state: DecodingState,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor, DecodingState]:
    """Take several tokens of each text at once, and return the logits of the token after them.

    Parameters
    ----------
    model : LanguageModel
        Whose method this is.
    plan : DecodingPlan
        Made by this model.
    state : DecodingState
        A stream of this plan; consumed.
    input_ids : tensor of integers, (b, n)
        One token or more: a prompt, or what follows in a conversation.
    attention_mask : tensor, (b, n), optional
        1 for a token and 0 for padding, before the tokens or after them; only for the first tokens of a stream.
        Rows are moved so that they end together.

    Returns
    -------
    logits : tensor, (b, vocab_size)
        Of the token after each row's last one, as `forward` returns them.
    state : DecodingState
        The stream after the tokens.

    Raises
    ------
    TypeError, ValueError
        As `forward`; and if the plan or the state is of another model or batch, parameters have changed, the tokens
        exceed the capacity, or there is padding after the first tokens.
    """
    input_ids = model.checked_ids(input_ids)
    if input_ids.ndim != 2 or input_ids.shape[0] != state.batch_size or input_ids.shape[1] == 0:
        raise InputError(
            f"input_ids must be ({state.batch_size}, n) with a token or more, for the stream's batch, and has the "
            f"shape {tuple(input_ids.shape)}: begin with the end-of-text token where there is no prompt"
        )
    padding = None
    if attention_mask is not None:
        input_ids, padding = aligned(input_ids, attention_mask)

    def take(layer: streaming.StreamPlan, stream: streaming.StreamState, x: Tensor) -> Any:
        return streaming.stream_prefill(layer, stream, x, padding=padding)

    return _advance(model, plan, state, input_ids, input_ids.shape[1], take)


@torch.no_grad()
def stream_step(
    model: LanguageModel, plan: DecodingPlan, state: DecodingState, tokens: Tensor
) -> tuple[Tensor, DecodingState]:
    """Take the next token of each text, and return the logits of the one after it.

    Parameters
    ----------
    model : LanguageModel
        Whose method this is.
    plan : DecodingPlan
        Made by this model.
    state : DecodingState
        A stream of this plan; consumed.
    tokens : tensor of integers, (b,)
        One a row.

    Returns
    -------
    logits : tensor, (b, vocab_size)
        As `forward` returns them at this position.
    state : DecodingState
        The stream after the tokens.

    Raises
    ------
    TypeError, ValueError
        As `stream_prefill`.
    """
    tokens = model.checked_ids(tokens)
    if tokens.shape != (state.batch_size,):
        raise InputError(
            f"tokens must be ({state.batch_size},), one for each row of the stream, and have the shape "
            f"{tuple(tokens.shape)}"
        )
    return _advance(model, plan, state, tokens, 1, streaming.stream_step)


def _advance(
    model: LanguageModel, plan: DecodingPlan, state: DecodingState, ids: Tensor, count: int, take: Callable[..., Any]
) -> tuple[Tensor, DecodingState]:
    """Return the logits after the last of `count` tokens, which `take` puts into the layers' streams."""
    plan.check(model)
    if state.plan is not plan:
        raise other_plan()
    if state.position + count > plan.capacity:
        raise no_room(state.position, count, plan.capacity)
    plans, streams, dtype = plan.layers, state.layers, model.embed.weight.dtype

    def mix(name: str, x: Tensor) -> Tensor:
        given = x.dtype  # autocast's, which need not be the parameters'
        y: Tensor
        y, streams[name] = take(plans[name], streams[name], x if given is dtype else x.to(dtype))
        return y if given is dtype else y.to(given)

    with evaluating(model):
        x = model.residual_stream(ids, mix=mix)  # (b, n, d) or (b, d)
        logits = model.logits_of(x if ids.ndim == 1 else x[:, -1])  # (b, V)
    state.position += count
    return logits, state


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Let a model compute as in evaluation, and leave it in the mode that it was in."""
    training = [module for module in model.modules() if module.training] if model.training else []
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:  # one by one: parts may have been in evaluation
            module.training = True


def aligned(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return prompts that end together, (b, longest), and the padding before each, (b,), or None where there is none.

    The mask is looked at, once; one that means nothing is refused as in `forward`.
    """
    ids, mask = input_ids.cpu(), attention_mask.cpu()
    documents_of(ids, mask, None)
    moved, padding = ended_together(ids, mask)
    return moved.to(input_ids.device), None if padding is None else padding.to(input_ids.device)
