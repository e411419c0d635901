"""How streams go on by one token or by several: by the definition, or by an engine in place."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import array_api_compat as compat

from .._arrays.exchange import Array, dtype_name, namespace_of, share_like
from .._arrays.properties import device_of, nan_where, values_within_reach
from .._definition.toeplitz import quiet
from .._dispatch.checks import together
from ..errors import InputError, InputTypeError
from ..toeplitz import causal_toeplitz_matmul
from . import _tiles
from ._refusals import no_room
from ._states import StreamState

__all__ = ["EngineSteps", "ForeignSteps", "Parts", "Steps", "detached"]


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


class Steps:
    """How the streams of one plan and one dtype go on: by the definition, in the arrays' own namespace."""

    def __init__(self, parts: Parts) -> None:
        """Prepare for the streams of a layer."""
        self.parts = parts
        self.leaf = parts.leaf or _tiles.LEAF
        self.product = functools.partial(causal_toeplitz_matmul, backend=parts.backend)
        self.xp: ModuleType = namespace_of(parts.lags)
        spoiled = self.xp.any(self.xp.isnan(parts.lags))
        self.spoiled = not values_within_reach(spoiled) or bool(spoiled)  # or may be
        self.plain = parts.sums is None and parts.bias is None
        self.half = parts.lags.dtype != parts.dtype

    def begin(self, plan: Any, shape: tuple[int, ...], tape: Array, **place: Any) -> StreamState:
        """Return a stream on a tape of its own, in C order, at a place in it."""
        return StreamState(plan, self, shape, tape, **place)

    def new_tape(self, rows: tuple[int, int], length: int) -> Array:
        """Return a tape without inputs."""
        lags = self.parts.lags
        return self.xp.zeros((rows[0], length, rows[1]), dtype=lags.dtype, device=device_of(lags))

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token, and bring the state up to date."""
        xp = self.xp
        x = xp.astype(xp.reshape(self.checked(state, x), state.rows), self.parts.lags.dtype, copy=False)
        y, state.tape = self.defined(state.tape, state.at, state.position, state.padding, x)
        state.at += 1
        return xp.astype(xp.reshape(y, state.shape), self.parts.dtype, copy=False)

    def defined(self, tape: Array, at: int, position: int, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output for a token `(b, d)` in the tape's dtype, and the tape after it, by the definition."""
        with quiet():
            y, tape = _tiles.step(self.product, self.parts.lags, tape, at, x, self.leaf)
        if not self.plain:
            heads = self.parts.lags.shape[0]
            y = self.finished(self.xp.reshape(y, (x.shape[0], heads, x.shape[1] // heads)), position, padding)
        return self.xp.reshape(y, x.shape), tape

    def prefill(self, state: StreamState, x: Array, padding: Array | None) -> Array:
        """Return the outputs for the next tokens `(*batch, n, d)`, in one product that reaches over all later ones."""
        shape, (rows, d), n = tuple(x.shape), state.rows, int(x.shape[-2])
        xp, heads, begin = self.xp, self.parts.lags.shape[0], state.position
        x = xp.astype(xp.reshape(x, (rows, n, d)), self.parts.lags.dtype, copy=False)
        if padding is not None:
            x = xp.where(_after(padding, n)[..., None], x, xp.zeros_like(x))
        y, later = self._absorbed(state, x, padding)
        if not self.plain:
            y = xp.reshape(y, (rows, n, heads, d // heads))
            y = xp.reshape(self._finished_all(y, begin, padding if begin == 0 else state.padding), (rows, n, d))
        if padding is not None:
            y = xp.where(_after(padding, n)[..., None], y, xp.zeros_like(y))
            state.padding = padding
            wrong = ((padding < 0) | (padding >= n))[:, None, None]
            if not values_within_reach(wrong):
                y, later = nan_where(wrong, y), nan_where(wrong, later)
        state.turn_to(later, begin + n)
        return xp.astype(xp.reshape(y, shape), self.parts.dtype, copy=False)

    def _absorbed(self, state: StreamState, x: Array, padding: Array | None) -> tuple[Array, Array]:
        """Return the sums of products `(b, n, d)` for the next tokens, and a tape of what is pending after them."""
        n, lags, tape = x.shape[1], self.parts.lags, state.tape
        length = tape.shape[1] - state.at
        reach = min(length, n + lags.shape[-1] - 1)
        ids = None
        if padding is not None and self.spoiled:
            # A lag that is not finite spoils what is so far from a document's first token, not from its padding's.
            ids = self.xp.astype(_after(padding, reach), padding.dtype)
        y = self.product(lags, _tiles.extended(x, reach - n), segment_ids=ids)  # (b, reach, d)
        if state.position == 0:
            return y[:, :n, :], _tiles.extended(y[:, n:, :], length - reach)
        pending = _tiles.flushed(self.product, lags, tape, state.at, self.leaf)
        y = y + pending[:, :reach, :]
        return y[:, :n, :], self.xp.concat([y[:, n:, :], pending[:, reach:, :]], axis=1)

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

    def finished(self, y: Array, position: int, padding: Array | None) -> Array:
        """Return outputs `(b, h, d / h)` at a position, divided by the sums and with the bias added."""
        sums, bias = self.parts.sums, self.parts.bias
        if padding is None:
            if sums is not None:
                y /= sums[position, ...]
            if bias is not None:
                y += bias[position, ...]
            return y
        positions = position - padding  # (b,)
        if sums is not None:
            y /= self.xp.take(sums, positions, axis=0)
        if bias is not None:
            y += self.xp.take(bias, positions, axis=0)
        return y

    def checked(self, state: StreamState, x: Array) -> Array:
        """Return the input of a token, which must be the state's and have a place in it."""
        x = self.received(x, state.shape)
        if state.at >= state.end:
            raise self.no_room(state.position, 1)
        return x

    def no_room(self, position: int, count: int) -> ValueError:
        """Return why a stream cannot take `count` more tokens."""
        bias = self.parts.bias
        return no_room(position, count, self.parts.capacity, None if bias is None else int(bias.shape[0]))

    def received(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return an input checked for its library, dtype and shape."""
        _, (x, _) = together(x=x, **{"the plan's w": self.parts.lags})
        if x.dtype != self.parts.dtype:
            raise InputTypeError(
                f"expected x of the dtype {dtype_name(self.parts.dtype)} that the stream was made for, "
                f"got {dtype_name(x.dtype)}: convert it, or make the stream by stream_init(…, dtype=…)"
            )
        if tuple(x.shape) != shape:
            raise InputError(
                f"x must have the shape {shape} of the stream's batch and channels, and has {tuple(x.shape)}: "
                "a stream serves the batch that it was made for"
            )
        checked: Array = x
        return checked


class EngineSteps(Steps):
    """By an engine, in place, on arrays that it owns."""

    def __init__(self, engine: Any, parts: Parts) -> None:
        """Let the engine prepare its tiles."""
        super().__init__(parts)
        self.engine = engine
        self.tiles = engine.stream_plan(parts.lags, parts.capacity, leaf=parts.leaf)
        self.leaf = self.tiles.leaf
        self.kind = type(parts.lags)
        self.empty = parts.lags.__array_namespace__().empty  # itself: that of array_api_compat takes longer
        self.heads = parts.lags.shape[0]
        self.dtype, self.computed = parts.dtype, parts.lags.dtype
        self.advance = engine.stream_step

    def new_tape(self, rows: tuple[int, int], length: int) -> Array:
        """Return a tape in memory that suits the engine."""
        return self.engine.stream_tape((rows[0], length, rows[1]), self.computed)

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token; some 1 us more than the engine takes, so nothing is looked up here."""
        at, rows, shape = state.at, state.rows, state.shape
        if x.__class__ is not self.kind or x.dtype is not self.dtype or x.shape != shape or at >= state.end:
            x = self.checked(state, x)
        if rows is not shape:
            x = x.reshape(rows)
        if self.half:
            x = x.astype(self.computed)
        elif not x.flags.c_contiguous:
            x = x.copy()
        y = self.empty(rows, self.computed)
        self.advance(self.tiles, state.tape, at, x, y)
        if not self.plain:
            self.finished(y.reshape(rows[0], self.heads, rows[1] // self.heads), state.origin + at, state.padding)
        state.at = at + 1
        if self.half:
            y = y.astype(self.dtype)
        return y if rows is shape else y.reshape(shape)


class ForeignSteps(Steps):
    """By an engine, for arrays of another library: tapes are the engine's, tokens come and go."""

    def __init__(self, engine: Any, parts: Parts) -> None:
        """Hand the engine its own arrays once."""
        super().__init__(parts)
        self.engine = engine
        dtype = engine.receive(self.xp.zeros((1,), dtype=parts.dtype, device=device_of(parts.lags))).dtype
        lags = engine.receive(parts.lags)
        sums, bias = (None if a is None else engine.receive(a) for a in (parts.sums, parts.bias))
        self.inner = EngineSteps(engine, replace(parts, lags=lags, sums=sums, bias=bias, dtype=dtype))
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


def _after(padding: Array, n: int) -> Array:
    """Return, (b, n), which times come after each row's padding."""
    xp = namespace_of(padding)
    return xp.arange(n, dtype=padding.dtype, device=device_of(padding)) >= padding[:, None]


def detached(a: Array) -> Array:
    """Return an array that no gradients are kept for."""
    return a.detach() if compat.is_torch_array(a) else a
