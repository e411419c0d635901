"""Streams of Torch tensors: by an engine that shares their memory, or by the definition; compiled, as one operation.

The place of a stream is in a tensor, its *clock*, which each step moves on. So a compiled program sees no number that
changes from token to token or from text to text, and is compiled once. Other code reads the clock's memory.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tmm_core._dispatch.checks import together
from tmm_core.backend import InputError
from tmm_core.streaming._states import StreamState
from tmm_core.streaming._steps import EngineSteps, ForeignSteps, Parts, Steps

__all__ = ["TorchForeignSteps", "TorchSteps", "TorchStreamState"]

AT, ORIGIN, END, STEPS = range(4)
"""The entries of a clock: those of a state, and the number of the steps that go on with it."""

_numbers = itertools.count()
_steps: weakref.WeakValueDictionary[int, TorchSteps] = weakref.WeakValueDictionary()


class TorchStreamState(StreamState):
    """A stream whose place is in a tensor."""

    __slots__ = ("clock", "shared", "ticks")
    steps: TorchSteps

    def turn_to(self, tape: Tensor, origin: int, at: int = 0, end: int | None = None) -> None:
        """Go on with another tape, and with a clock of its own."""
        with torch.inference_mode(False):  # both are written to later, which tensors made in that mode forbid
            self.clock = torch.zeros(4, dtype=torch.int64, device="cpu")
            tape = tape.clone() if tape.is_inference() else tape
        ticks: Any = self.clock.numpy()
        self.ticks = memoryview(ticks)
        super().turn_to(tape, origin, at, end)
        self.ticks[ORIGIN], self.ticks[END], self.ticks[STEPS] = origin, self.end, self.steps.number
        self.shared = self.steps.shared(tape, self.padding)

    @property
    def at(self) -> int:
        """The entry of the next token."""
        if torch.compiler.is_compiling():
            raise RuntimeError("a compiled program does not see the place of a stream: take prompts uncompiled")
        at: int = self.ticks[AT]
        return at

    @at.setter
    def at(self, at: int) -> None:
        self.ticks[AT] = at


class TorchSteps(Steps):
    """How the streams of tensors go on."""

    def __init__(self, engine: Any | None, parts: Parts) -> None:
        """Hand an engine of NumPy arrays what it needs of the layer; tokens and tapes share their memory with it."""
        super().__init__(parts)
        self.inner: EngineSteps | None = None
        if engine is not None:
            lags = parts.lags.numpy()
            sums, bias = (None if a is None else a.numpy() for a in (parts.sums, parts.bias))
            self.inner = EngineSteps(engine, replace(parts, lags=lags, sums=sums, bias=bias, dtype=lags.dtype))
            self.leaf = self.inner.leaf
        self.dtype = parts.dtype
        self.number = next(_numbers)
        _steps[self.number] = self

    def begin(self, plan: Any, shape: tuple[int, ...], tape: Tensor, **place: Any) -> StreamState:
        """Return a stream on a tape of its own."""
        return TorchStreamState(plan, self, shape, tape, **place)

    def new_tape(self, rows: tuple[int, int], length: int) -> Tensor:
        """Return a tape in memory that suits who steps in it."""
        if self.inner is None or torch.compiler.is_compiling():
            tape: Tensor = super().new_tape(rows, length)
            return tape
        return torch.from_numpy(self.inner.new_tape(rows, length))

    def shared(self, tape: Tensor, padding: Tensor | None) -> tuple[EngineSteps, Any, Any] | None:
        """Return who steps in their memory, a tape and a padding as that one sees them; None for the definition."""
        if self.inner is None:
            return None
        return self.inner, tape.numpy(), None if padding is None else padding.numpy()

    def step(self, state: Any, x: Tensor) -> Tensor:
        """Return the output for the next token; some 3 us more than the engine takes, so nothing is looked up here."""
        if torch.compiler.is_compiling() or x.__class__ is not Tensor:
            x = self.received(x, state.shape)
            y: Tensor = step_op(state.tape, state.clock, x.reshape(state.rows), state.padding)
            return y.reshape(state.shape)
        ticks = state.ticks
        at = ticks[AT]
        if x.dtype is not self.dtype or x.shape != state.shape or x.requires_grad or at >= ticks[END]:
            x = self.checked(state, x)
        if forward_ad._current_level >= 0:
            inference(x)
        if state.shared is None:
            x = self._plain(x).reshape(state.rows)
            y = self._by_definition(state.tape, ticks[ORIGIN], at, x, state.padding)
            y = y.reshape(state.shape)
        else:
            inner, tape, padding = state.shared
            y = self._by_engine(inner, tape, padding, ticks[ORIGIN], at, x, state.rows, state.shape)
        ticks[AT] = at + 1
        return y

    def step_by_clock(self, tape: Tensor, clock: Tensor, x: Tensor, padding: Tensor | None) -> Tensor:
        """Return the output `(b, d)` for the next token, and move the clock on."""
        at, origin, end, _ = clock.tolist()
        if at >= end:
            raise self.no_room(origin + at, 1)
        shared = self.shared(tape, padding)
        if shared is None:
            y = self._by_definition(tape, origin, at, x, padding)
        else:
            y = self._by_engine(*shared, origin, at, x, x.shape, x.shape)
        clock.numpy()[AT] = at + 1
        return y

    def _by_engine(
        self,
        inner: EngineSteps,
        tape: Any,
        padding: Any,
        origin: int,
        at: int,
        x: Tensor,
        rows: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> Tensor:
        """Return the output of the engine, which works on the tensors' memory."""
        if self.half:
            x = x.float()
        try:
            array = x.numpy().reshape(rows)
        except (RuntimeError, TypeError):  # of what is not plain memory here; to ask before would take each step's time
            array = self._plain(x).numpy().reshape(rows)
        if not array.flags.c_contiguous:
            array = array.copy()
        y = inner.kind(rows, inner.computed)
        inner.advance(inner.tiles, tape, at, array, y)
        if not self.plain:
            inner.finished(y.reshape(rows[0], inner.heads, rows[1] // inner.heads), origin + at, padding)
        result = torch.from_numpy(y.reshape(shape))
        return result.to(self.dtype) if self.half else result

    def _plain(self, x: Tensor) -> Tensor:
        """Return a tensor whose entries are as they are in its memory, refused where it has none on this device."""
        if x.device != self.parts.lags.device or x.layout is not torch.strided:
            together(x=x, **{"the plan's w": self.parts.lags})
        return inference(x).resolve_conj().resolve_neg()

    def _by_definition(self, tape: Tensor, origin: int, at: int, x: Tensor, padding: Tensor | None) -> Tensor:
        """Return the output of the definition, which writes to the tape as well."""
        y, _ = self.defined(tape, at, origin + at, padding, x.to(tape.dtype))
        result: Tensor = y.to(self.dtype)
        return result

    def received(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return an input checked for its dtype and shape; while a compiler looks on, by what it understands."""
        if not torch.compiler.is_compiling():
            return inference(super().received(x, shape))
        if x.dtype != self.dtype or x.shape != shape:
            raise InputError(f"x must be {self.dtype} of the shape {shape}, and is {x.dtype} of {tuple(x.shape)}")
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError("streaming has no gradients, and x requires one: compile it inside torch.no_grad()")
        return x.detach()


class TorchForeignSteps(ForeignSteps):
    """By an engine whose memory is not NumPy's: tapes are the engine's, tokens come and go, uncompiled."""

    def received(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return an input checked for its dtype and shape."""
        return inference(super().received(x, shape))


def inference(x: Tensor) -> Tensor:
    """Return a tensor that no gradients are kept for, since tapes are written over; refuse it where they would be."""
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "streaming has no gradients, and x requires one: call it inside torch.no_grad(), or pass x.detach()"
        )
    tangent = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]
    if tangent is not None or torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise InputError(
            "streaming has no derivatives and no vmap, for tapes are written over, and x belongs to one: pass plain "
            "tensors, and rows as the stream's batch"
        )
    return x.detach() if x.requires_grad else x


@torch.library.custom_op("tmm_core::stream_step", mutates_args=("tape", "clock"))
def step_op(tape: Tensor, clock: Tensor, x: Tensor, padding: Tensor | None) -> Tensor:
    """Step a stream that a compiled program holds."""
    return _steps[int(clock[STEPS])].step_by_clock(tape, clock, x, padding)


@step_op.register_fake
def _(tape: Tensor, clock: Tensor, x: Tensor, padding: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)
