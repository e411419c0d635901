"""The PyTorch language model one token at a time, by exact streaming: what `tmm_core.lm` does, through its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tmm_core import TMMConfig, streaming
from tmm_core._checks import check_count
from tmm_core._decoding import ended_together
from tmm_core._documents import documents_of

__all__ = ["Decoder", "DecodingPlan", "DecodingState", "aligned", "evaluating", "stream_copy", "stream_reorder"]


class DecodingPlan:
    """A model ready to be streamed, made by `LanguageModel.stream_plan`: a plan for each of its filters."""

    def __init__(self, model: Decoder, capacity: int, layers: list[list[streaming.StreamPlan]]) -> None:
        """Keep the plans block by block, and what the parameters were."""
        self.model = model
        self.capacity = capacity
        self.layers = layers
        # Tensors of inference mode have no version. A list that is compared whole takes a third of the time a step.
        self._places = [
            (module._parameters, name)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._parameters = [places[name] for places, name in self._places]
        self._ids = list(map(id, self._parameters))
        self._versioned: list[Any] = [parameter for parameter in self._parameters if not parameter.is_inference()]
        self._versions = self._current()

    def _current(self) -> list[int]:
        return [parameter._version for parameter in self._versioned]

    def check(self, model: Decoder) -> None:
        """Refuse another model, or parameters that are no longer those of the plan's filters."""
        if self.model is not model:
            raise ValueError("the plan belongs to another model: expected one that this model's stream_plan made")
        if [id(places[name]) for places, name in self._places] != self._ids or self._current() != self._versions:
            raise ValueError("the model's parameters have changed since the plan was made: make a new plan")


class DecodingState:
    """One stream of a batch of texts, made by `LanguageModel.stream_init`."""

    def __init__(
        self, plan: DecodingPlan, batch_size: int, layers: list[list[streaming.StreamState]], position: int = 0
    ) -> None:
        """Keep the filters' streams block by block."""
        self.plan = plan
        self.batch_size = batch_size
        self.layers = layers
        self.position = position
        """Tokens that have come, padding included."""


class Decoder(nn.Module):
    """What a language model does besides computing whole sequences."""

    tmm_config: TMMConfig
    embed: nn.Embedding
    blocks: nn.ModuleList

    def residual_stream(self, input_ids: Tensor, documents: Tensor | None = None, streams: Any = None) -> Tensor:
        """Return what comes out of the last block, (..., d)."""
        raise NotImplementedError

    def logits_of(self, x: Tensor) -> Tensor:
        """Return the logits, (..., vocab_size), of what comes out of the last block."""
        raise NotImplementedError

    @torch.no_grad()
    def stream_plan(self, capacity: int, *, backend: str | None = None) -> DecodingPlan:
        """Prepare to stream the model: the logits of `forward`, one token at a time.

        Parameters
        ----------
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
        c = self.tmm_config
        options: dict[str, Any] = {"softplus": c.softplus, "mean": c.mean, "backend": backend}
        mixers: list[Any] = [block.mix for block in self.blocks]
        layers = [
            [streaming.stream_plan(lags, capacity, bias=bias, **options) for lags, bias in mixer.filters()]
            for mixer in mixers
        ]
        return DecodingPlan(self, capacity, layers)

    @torch.no_grad()
    def stream_init(self, plan: DecodingPlan, batch_size: int) -> DecodingState:
        """Begin a stream of `batch_size` texts; each layer holds a number for each token to come and channel."""
        plan.check(self)
        shape = (check_count("batch_size", batch_size, 0),)
        d, dtype = self.tmm_config.d_model, self.embed.weight.dtype
        layers = [[streaming.stream_init(layer, shape, d, dtype=dtype) for layer in block] for block in plan.layers]
        return DecodingState(plan, *shape, layers)

    @torch.no_grad()
    def stream_prefill(
        self, plan: DecodingPlan, state: DecodingState, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        """Take several tokens of each text at once, and return the logits of the token after them.

        Parameters
        ----------
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
        input_ids = self.checked_ids(input_ids)
        if input_ids.ndim != 2 or input_ids.shape[0] != state.batch_size or input_ids.shape[1] == 0:
            raise ValueError(
                f"input_ids must be ({state.batch_size}, n) with a token or more, for the stream's batch, and has the "
                f"shape {tuple(input_ids.shape)}: begin with the end-of-text token where there is no prompt"
            )
        padding = None
        if attention_mask is not None:
            input_ids, padding = aligned(input_ids, attention_mask)

        def take(layer: streaming.StreamPlan, stream: streaming.StreamState, x: Tensor) -> Any:
            return streaming.stream_prefill(layer, stream, x, padding=padding)

        return self._advance(plan, state, input_ids, input_ids.shape[1], take)

    @torch.no_grad()
    def stream_step(self, plan: DecodingPlan, state: DecodingState, tokens: Tensor) -> tuple[Tensor, DecodingState]:
        """Take the next token of each text, and return the logits of the one after it.

        Parameters
        ----------
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
        tokens = self.checked_ids(tokens)
        if tokens.shape != (state.batch_size,):
            raise ValueError(
                f"tokens must be ({state.batch_size},), one for each row of the stream, and have the shape "
                f"{tuple(tokens.shape)}"
            )
        return self._advance(plan, state, tokens, 1, streaming.stream_step)

    def checked_ids(self, ids: Tensor) -> Tensor:
        """Return tokens as embeddings take them, refused where they are none."""
        raise NotImplementedError

    def _advance(
        self, plan: DecodingPlan, state: DecodingState, ids: Tensor, count: int, take: Callable[..., Any]
    ) -> tuple[Tensor, DecodingState]:
        """Return the logits after the last of `count` tokens, which `take` puts into the layers' streams."""
        plan.check(self)
        if state.plan is not plan:
            raise ValueError("the state belongs to another plan: expected a state that stream_init made with this one")
        if state.position + count > plan.capacity:
            raise ValueError(
                f"the stream is full: {state.position} tokens have come and {count} would follow, with "
                f"capacity={plan.capacity}: plan with a larger capacity"
            )
        dtype = self.embed.weight.dtype

        def taker(block: int, layer: int) -> Callable[[Tensor], Tensor]:
            def put(x: Tensor) -> Tensor:
                streams, given = state.layers[block], x.dtype  # autocast's, which need not be the parameters'
                y, streams[layer] = take(
                    plan.layers[block][layer], streams[layer], x if given is dtype else x.to(dtype)
                )
                taken: Tensor = y if given is dtype else y.to(given)
                return taken

            return put

        takers = [[taker(i, j) for j in range(len(layers))] for i, layers in enumerate(plan.layers)]
        with evaluating(self):
            x = self.residual_stream(ids, streams=takers)  # (b, n, d) or (b, d)
            logits = self.logits_of(x if ids.ndim == 1 else x[:, -1])  # (b, V)
        state.position += count
        return logits, state


def stream_copy(state: DecodingState) -> DecodingState:
    """Return a stream that goes on by itself from where this one is; the plan is shared."""
    layers = [[streaming.stream_copy(layer) for layer in block] for block in state.layers]
    return DecodingState(state.plan, state.batch_size, layers, state.position)


def stream_reorder(state: DecodingState, indices: Tensor) -> DecodingState:
    """Return a stream of the rows `indices`, (other_b,), of this one; see `tmm_core.stream_reorder`."""
    if indices.ndim != 1:
        raise ValueError(f"indices must be (b,), rows of the batch, and have the shape {tuple(indices.shape)}")
    layers = [[streaming.stream_reorder(layer, indices) for layer in block] for block in state.layers]
    return DecodingState(state.plan, len(indices), layers, state.position)


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
