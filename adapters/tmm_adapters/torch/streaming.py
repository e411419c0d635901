"""PyTorch models one token at a time, by exact streaming: what `tmm_core.lm` does, through their modules."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tmm_core import lm
from tmm_core.errors import InputError
from tmm_core.lm import DecodingState, stream_copy, stream_reorder

__all__ = ["DecodingPlan", "DecodingState", "FilterStreaming", "eval_mode", "stream_copy", "stream_reorder"]


class StreamedModule(lm.StreamedModel, Protocol):
    """A module that is streamed by its filters."""

    training: bool

    def modules(self) -> Iterator[nn.Module]:
        """Return the module and all within it."""


class DecodingPlan(lm.DecodingPlan):
    """A module ready to be streamed, made by `stream_plan`."""

    def __init__(self, model: StreamedModule, capacity: int, *, backend: str | None = None) -> None:
        """Plan the filters, and keep what the parameters were."""
        super().__init__(model, capacity, backend=backend)
        parameters = [
            (module._parameters, name, parameter)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        # A DTensor's place is taken by the whole parameter whenever FSDP has gathered it.
        fixed = [(places, name) for places, name, parameter in parameters if not hasattr(parameter, "full_tensor")]
        # Tensors of inference mode have no version. A list that is compared whole takes a third of the time a step.
        self._places, self._ids = fixed, [id(places[name]) for places, name in fixed]
        self._parameters: list[Any] = [parameter for *_, parameter in parameters]  # keeps the ids theirs
        self._versioned = [parameter for parameter in self._parameters if not parameter.is_inference()]
        self._versions = self._current()

    def _current(self) -> list[int]:
        return [parameter._version for parameter in self._versioned]

    def mixer(self, mix: lm.Mix) -> lm.Mix:
        """Return what blocks call to mix tokens, uncompiled where they are compiled: its numbers change at each."""
        return functools.partial(_uncompiled(), mix) if "torch._dynamo" in sys.modules else mix

    def check(self, model: StreamedModule) -> None:
        """Refuse another model, or parameters that are no longer those of the plan's filters."""
        if self.model is not model:
            raise InputError("the plan belongs to another model: expected one that this model's stream_plan made")
        if [id(places[name]) for places, name in self._places] != self._ids or self._current() != self._versions:
            raise InputError("the model's parameters have changed since the plan was made: make a new plan")


class FilterStreaming:
    """Gives a module streams: one that is a `tmm_core.lm.StreamedModel`, so that filters alone mix its tokens.

    They compute in eval mode and without gradients. A model with a cache of another kind has these five methods of its
    own, with plans and states of its own.
    """

    @torch.no_grad()
    def stream_plan(self: StreamedModule, capacity: int, *, backend: str | None = None) -> DecodingPlan:
        """Prepare to stream texts of up to `capacity` tokens; see `tmm_core.lm.stream_plan`.

        The plan keeps copies of the filters; the model's other parameters must stay as they are while it is used.
        """
        return DecodingPlan(self, capacity, backend=backend)

    @torch.no_grad()
    def stream_init(self: StreamedModule, plan: DecodingPlan, batch_size: int) -> DecodingState:
        """Begin a stream of `batch_size` texts; see `tmm_core.lm.stream_init`."""
        plan.check(self)
        return lm.stream_init(plan, batch_size)

    @torch.no_grad()
    def stream_prefill(
        self: StreamedModule,
        plan: DecodingPlan,
        state: DecodingState,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """Take tokens (b, n) of each text; return the next token's logits (b, V); see `tmm_core.lm.stream_prefill`."""
        plan.check(self)
        with eval_mode(self):
            return lm.stream_prefill(plan, state, input_ids, attention_mask)

    @torch.no_grad()
    def stream_step(
        self: StreamedModule, plan: DecodingPlan, state: DecodingState, input_ids: Tensor
    ) -> tuple[Tensor, DecodingState]:
        """Take a token (b,) of each text; return the next token's logits (b, V); see `tmm_core.lm.stream_step`."""
        plan.check(self)
        with eval_mode(self):
            return lm.stream_step(plan, state, input_ids)

    stream_reorder = staticmethod(stream_reorder)


@functools.cache
def _uncompiled() -> Callable[[lm.Mix, str, Tensor], Tensor]:
    """Return a call of a mixer that the compiler does not look into."""
    return torch.compiler.disable(lambda mix, name, x: mix(name, x))  # type: ignore[no-any-return, no-untyped-call]


@contextmanager
def eval_mode(model: StreamedModule | nn.Module) -> Iterator[None]:
    """Let a model compute as in evaluation, and leave it in the mode that it was in."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:  # one by one: parts may have been in evaluation
            module.training = True
