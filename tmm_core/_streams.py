"""Plans and states of streams, and the ways to go on by one token: by the definition, or by an engine in place."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NoReturn

import array_api_compat as compat

from . import _registry, _tiles
from ._arrays import computed_in, device_of, is_real, nan_where, values_known
from ._checks import together
from ._exchange import Array, device_kind, dtype_name, library_of, namespace_of, share_like
from ._protocols import Request, StreamBridge
from .toeplitz import causal_toeplitz_matmul

__all__ = ["EngineSteps", "Parts", "Steps", "StreamPlan", "StreamState"]


@dataclass(frozen=True)
class Parts:
    """What a layer adds to what, in the dtype that its streams are computed in."""

    lags: Array
    """(h, m, k)"""
    sums: Array | None
    """(positions, h, 1): what a mean divides by."""
    bias: Array | None
    """(positions, h, 1)"""
    capacity: int
    leaf: int | None
    backend: str
    dtype: Any
    """Of the inputs and outputs, which may be halves."""


class StreamPlan:
    """The filters of one token-mixing layer, ready to be streamed; made by `stream_plan`, shared by all its streams.

    Attributes
    ----------
    capacity : int
        Tokens that a stream can hold, its prompt included.
    positions : int
        Positions that the bias has, at most `capacity`.
    heads : int
        Heads, which divide the channels of a stream.
    lags : array, (h, m, k)
        A copy of the filters, positive ones after softplus.
    """

    def __init__(
        self,
        lags: Array,
        sums: Array | None,
        bias: Array | None,
        *,
        dtype: Any,
        capacity: int,
        backend: str,
        leaf: int | None,
    ) -> None:
        """Keep the lags `(h, m, k)` and the tables `(positions, h, 1)`; `dtype` is that of the lags as they were."""
        self.capacity = capacity
        self.positions = capacity if bias is None else int(bias.shape[0])
        self.heads = int(lags.shape[0])
        self.backend = backend
        self.lags = lags
        self.dtype = dtype
        self.complex = not all(is_real(a) for a in (lags, bias) if a is not None)
        self._tables, self._leaf = (sums, bias), leaf
        self._steps: dict[str, Steps] = {}

    def steps(self, dtype: Any) -> Steps:
        """Return how streams of a dtype go on; made once, with the tiles."""
        name = dtype_name(dtype)
        if name not in self._steps:
            self._steps[name] = self._make_steps(dtype)
        return self._steps[name]

    def _make_steps(self, dtype: Any) -> Steps:
        xp = namespace_of(self.lags)
        sample = xp.zeros((0,), dtype=dtype, device=device_of(self.lags))
        computed = computed_in(sample)[1][0].dtype
        tables = [None if a is None else xp.astype(a, computed) for a in (self.lags, *self._tables)]
        tables[0] = nan_where(~xp.isfinite(tables[0]), tables[0])
        parts = Parts(*tables, self.capacity, self._leaf, self.backend, dtype)
        library = library_of(sample)
        request = Request("stream", dtype_name(computed), device_kind(sample), False, False)
        engine = None if library == "dask" else _registry.choose_streamer(self.backend, library, request)
        bridge = _registry.bridge_of(library)
        if isinstance(bridge, StreamBridge):
            return bridge.stream_steps(engine, parts)
        if engine is None:
            return Steps(parts)
        return EngineSteps(engine, parts) if engine.owns(sample) else ForeignSteps(engine, parts)


class StreamState:
    """One stream of a batch of rows: what has come, and what it will still contribute.

    Attributes
    ----------
    plan : StreamPlan
        Shared, never copied.
    shape : tuple of int
        Of a token's input, `(*batch, d)`.
    tape : array, (b, length, d)
        Inputs before entry `at`, pending outputs from it on; see `_tiles`. In float32 for halves.
    origin, at : int
        The time of the tape's first entry, and the entry of the next token.
    end : int
        Entries that may be used: all, or as many as the position bias has positions for.
    padding : array of int, (b,), or None
        The left padding of each row: positions are counted from there.
    """

    # No instance dictionary: a step reads a handful of these.
    __slots__ = ("at", "end", "origin", "padding", "plan", "rows", "shape", "steps", "tape", "view")

    def __init__(
        self,
        plan: StreamPlan,
        steps: Steps,
        shape: tuple[int, ...],
        tape: Array,
        *,
        origin: int = 0,
        at: int = 0,
        padding: Array | None = None,
    ) -> None:
        """Make a stream that goes on with a tape of its own, in C order."""
        self.plan = plan
        self.steps = steps
        self.shape = shape
        self.padding = padding
        self.turn_to(tape, origin, at)

    def turn_to(self, tape: Array, origin: int, at: int = 0) -> None:
        """Go on with another tape."""
        self.tape, self.origin, self.at = tape, origin, at
        self.rows = (tape.shape[0], tape.shape[2])
        self.end = min(int(tape.shape[1]), self.plan.positions + least_of(self.padding) - origin)
        self.view: Any = self.steps.view(tape)

    @property
    def position(self) -> int:
        """The number of tokens that have come, padding included."""
        return self.origin + self.at


class Steps:
    """How the streams of one plan and one dtype go on: by the definition, in the arrays' own namespace."""

    def __init__(self, parts: Parts) -> None:
        """Prepare for the streams of a layer."""
        self.parts = parts
        self.leaf = parts.leaf or _tiles.LEAF
        self.product = functools.partial(causal_toeplitz_matmul, backend=parts.backend)
        self.xp: ModuleType = namespace_of(parts.lags)
        self.spoiled = values_known(parts.lags) and bool(self.xp.any(self.xp.isnan(parts.lags)))
        self.plain = parts.sums is None and parts.bias is None
        self.half = parts.lags.dtype != parts.dtype

    def view(self, tape: Array) -> Any:
        """Return what steps read and write in place of a tape, on its memory."""
        return tape

    def new_tape(self, rows: tuple[int, int], length: int) -> Array:
        """Return a tape without inputs."""
        lags = self.parts.lags
        return self.xp.zeros((rows[0], length, rows[1]), dtype=lags.dtype, device=device_of(lags))

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token, and bring the state up to date."""
        x = self.checked(state, x)
        lags = self.parts.lags
        x = self.xp.astype(self.xp.reshape(x, state.rows), lags.dtype, copy=False)
        y, state.tape = _tiles.step(self.product, lags, state.tape, state.at, x, self.leaf)
        if not self.plain:
            y = self.finished(self.xp.reshape(y, (state.rows[0], lags.shape[0], state.rows[1] // lags.shape[0])), state)
        state.at += 1
        return self.xp.astype(self.xp.reshape(y, state.shape), self.parts.dtype, copy=False)

    def prefill(self, state: StreamState, x: Array, padding: Array | None) -> Array:
        """Return the outputs for the next tokens `(*batch, n, d)`, in one product that reaches over all later ones."""
        shape, (rows, d), n = tuple(x.shape), state.rows, int(x.shape[-2])
        xp, lags, begin = self.xp, self.parts.lags, state.position
        length = state.tape.shape[1] - state.at
        reach = min(length, n + lags.shape[-1] - 1)
        x = _tiles.extended(xp.astype(xp.reshape(x, (rows, n, d)), lags.dtype, copy=False), reach - n)
        real, ids = None, None
        if padding is not None:
            real = xp.arange(reach, dtype=padding.dtype, device=device_of(padding)) >= padding[:, None]  # (b, reach)
            x = xp.where(real[..., None], x, xp.zeros_like(x))
            # A lag that is not finite spoils what is so far from a document's first token, not from its padding's.
            ids = xp.astype(real, padding.dtype) if self.spoiled else None
        y = self.product(lags, x, segment_ids=ids)  # (b, reach, d)
        if begin == 0:
            later = _tiles.extended(y[:, n:, :], length - reach)
        else:
            pending = _tiles.flushed(self.product, lags, state.tape, state.at, self.leaf)
            y = y + pending[:, :reach, :]
            later = xp.concat([y[:, n:, :], pending[:, reach:, :]], axis=1)
        y = y[:, :n, :]
        if not self.plain:
            y = xp.reshape(y, (rows, n, lags.shape[0], d // lags.shape[0]))
            y = xp.reshape(self._finished_all(y, begin, padding if begin == 0 else state.padding), (rows, n, d))
        if real is not None:
            y = xp.where(real[:, :n, None], y, xp.zeros_like(y))
            state.padding = padding
        state.turn_to(later, begin + n)
        return xp.astype(xp.reshape(y, shape), self.parts.dtype, copy=False)

    def _finished_all(self, y: Array, begin: int, padding: Array | None) -> Array:
        """Return outputs `(b, n, h, d / h)` from position `begin` on, finished as those of single tokens."""
        n = y.shape[1]
        if padding is None:
            tables = [None if a is None else a[begin : begin + n, ...] for a in (self.parts.sums, self.parts.bias)]
        else:
            xp = self.xp
            times = xp.arange(begin, begin + n, dtype=padding.dtype, device=device_of(padding)) - padding[:, None]
            at = xp.reshape(xp.where(times < 0, xp.zeros_like(times), times), (-1,))
            shape = (*times.shape, self.parts.lags.shape[0], 1)
            tables = [
                None if a is None else xp.reshape(xp.take(a, at, axis=0), shape)
                for a in (self.parts.sums, self.parts.bias)
            ]
        sums, bias = tables
        y = y if sums is None else y / sums
        return y if bias is None else y + bias

    def chosen_rows(self, state: StreamState, indices: Array) -> tuple[Array, Array | None]:
        """Return a tape and a padding of these rows of the state's."""
        padding = None if state.padding is None else self.xp.take(state.padding, indices, axis=0)
        return self.xp.take(state.tape, indices, axis=0), padding

    def finished(self, y: Array, state: StreamState) -> Array:
        """Return outputs `(b, h, d / h)` at the state's position, divided by the sums and with the bias added."""
        position = state.origin + state.at
        sums, bias = self.parts.sums, self.parts.bias
        if state.padding is not None:
            position = position - state.padding  # (b,)
        if sums is not None:
            y /= sums[position, ...] if state.padding is None else self.xp.take(sums, position, axis=0)
        if bias is not None:
            y += bias[position, ...] if state.padding is None else self.xp.take(bias, position, axis=0)
        return y

    def checked(self, state: StreamState, x: Array) -> Array:
        """Return the input of a token, which must be the state's and have a place in it."""
        x = self.received(x, state.shape)
        if state.at >= state.end:
            refuse_length(state, 1)
        return x

    def received(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return an input checked for its library, dtype and shape."""
        _, (x, _) = together(x=x, **{"the plan's w": self.parts.lags})
        if x.dtype != self.parts.dtype:
            raise TypeError(
                f"expected x of the dtype {dtype_name(self.parts.dtype)} that the stream was made for, "
                f"got {dtype_name(x.dtype)}: convert it, or make the stream by stream_init(…, dtype=…)"
            )
        if tuple(x.shape) != shape:
            raise ValueError(
                f"x must have the shape {shape} of the stream's batch and channels, and has {tuple(x.shape)}: "
                "a stream serves the batch that it was made for"
            )
        return inference(x)


class EngineSteps(Steps):
    """By an engine, in place, on arrays that it owns."""

    def __init__(self, engine: Any, parts: Parts) -> None:
        """Let the engine prepare its tiles."""
        super().__init__(parts)
        self.engine = engine
        self.tiles = engine.stream_plan(parts.lags, parts.capacity, leaf=parts.leaf)
        self.leaf = self.tiles.leaf
        self.kind = type(parts.lags)
        self.heads = parts.lags.shape[0]
        self.dtype, self.computed = parts.dtype, parts.lags.dtype
        self.advance = engine.stream_step

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token; some 1 us more than the engine takes, so nothing is looked up here."""
        at = state.at
        if x.__class__ is not self.kind or x.dtype != self.dtype or x.shape != state.shape or at >= state.end:
            x = self.checked(state, x)
        rows = state.rows
        x = x.reshape(rows)
        if self.half:
            x = x.astype(self.computed)
        elif not x.flags.c_contiguous:
            x = x.copy()
        y = self.kind(rows, self.computed)
        self.advance(self.tiles, state.tape, at, x, y)
        if not self.plain:
            self.finished(y.reshape(rows[0], self.heads, rows[1] // self.heads), state)
        state.at = at + 1
        if self.half:
            y = y.astype(self.dtype)
        return y.reshape(state.shape)


class ForeignSteps(Steps):
    """By an engine, for arrays of another library: tapes are the engine's, tokens come and go."""

    def __init__(self, engine: Any, parts: Parts) -> None:
        """Hand the engine its own arrays once."""
        super().__init__(parts)
        self.engine = engine
        arrays = {name: getattr(parts, name) for name in ("lags", "sums", "bias")}
        sample = engine.receive(self.xp.zeros((1,), dtype=parts.dtype, device=device_of(parts.lags)))
        received = {name: None if a is None else engine.receive(a) for name, a in arrays.items()}
        self.inner = EngineSteps(engine, replace(parts, dtype=sample.dtype, **received))
        self.leaf = self.inner.leaf

    def new_tape(self, rows: tuple[int, int], length: int) -> Array:
        """Return a tape in the engine's library."""
        return self.inner.new_tape(rows, length)

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token in x's library."""
        x = self.checked(state, x)
        return share_like(self.inner.step(state, self.engine.receive(x)), x)

    def prefill(self, state: StreamState, x: Array, padding: Array | None) -> Array:
        """Return the outputs for the next tokens in x's library."""
        padding = None if padding is None else self.engine.receive(padding)
        return share_like(self.inner.prefill(state, self.engine.receive(x), padding), x)

    def chosen_rows(self, state: StreamState, indices: Array) -> tuple[Array, Array | None]:
        """Return rows of the engine's arrays."""
        return self.inner.chosen_rows(state, self.engine.receive(indices))


def refuse_length(state: StreamState, count: int) -> NoReturn:
    """Say why a stream cannot take `count` more tokens."""
    plan, came = state.plan, f"{state.position} tokens have come and {count} would follow"
    if state.at + count > state.tape.shape[1]:
        raise ValueError(f"the stream is full: {came}, with capacity={plan.capacity}: plan with a larger capacity")
    raise ValueError(
        f"the position bias ends at max_len={plan.positions}: {came}: end the stream there, "
        "or use a model without position bias (position_bias=False), which runs on"
    )


def least_of(padding: Array | None) -> int:
    """Return how much longer than the position bias a stream may be: 0 where that cannot be known."""
    return int(namespace_of(padding).min(padding)) if padding is not None and values_known(padding) else 0


def detached(a: Array) -> Array:
    """Return an array that no gradients are kept for."""
    return a.detach() if compat.is_torch_array(a) else a


def inference(x: Array) -> Array:
    """Return an array that no gradients are kept for, since tapes are written over; refuse it where they would be."""
    if not compat.is_torch_array(x) or not x.requires_grad:
        return x
    if sys.modules["torch"].is_grad_enabled():
        raise ValueError(
            "streaming has no gradients, and x requires one: call it inside torch.no_grad(), or pass x.detach()"
        )
    return detached(x)
