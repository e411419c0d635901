"""The plan that all streams of a layer share, and what is around its pure functions: checks, shapes, dtypes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NoReturn

import array_api_compat as compat

from .._arrays.exchange import Array, device_kind, dtype_name, is_traced, library_of, namespace_of, share
from .._arrays.properties import computed_in, device_of, indices_like, is_real, nan_where, with_one
from .._arrays.strictness import with_jax_defaults
from .._definition.streaming import ExchangedStream, LayerStream, StreamLayer, least_of
from .._dispatch import choice
from .._dispatch.checks import check_arrays, no_room
from ..backend import Request, StreamBridge, StreamRecorder, StreamState
from ..errors import InputError, InputTypeError
from ..toeplitz import causal_toeplitz_matmul

__all__ = ["StreamPlan"]


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
        self._streams: dict[str, LayerStream] = {}
        self._steppers: dict[str, Stepper] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> StreamPlan:
        """Return itself: it never changes, and its streams know it by its identity."""
        return self

    def __reduce__(self) -> NoReturn:
        raise InputTypeError(
            "a plan holds what this machine computes best with and cannot be pickled: make it from w anew"
        )

    def stream(self, dtype: Any = None) -> LayerStream:
        """Return the streams of tokens of a dtype, that of the lags unless given, as pure functions; made once.

        Their arrays are in the dtype that is computed in, float32 for halves.
        """
        xp = namespace_of(self.lags)
        sample = xp.zeros((0,), dtype=self.dtype if dtype is None else dtype, device=device_of(self.lags))
        computed = computed_in(sample)[1][0]
        name = dtype_name(computed.dtype)
        stream = self._streams.get(name)
        if stream is None:
            stream = self._make_stream(computed)
            if self._may_keep(stream):
                self._streams[name] = stream
        return stream

    def _make_stream(self, sample: Array) -> LayerStream:
        xp, library = namespace_of(sample), library_of(sample)
        lags = xp.astype(self.lags, sample.dtype)
        lags = with_one(nan_where(~xp.isfinite(lags), lags), 0)  # no channel is divided among no heads
        sums, bias = (None if a is None else with_one(xp.astype(a, sample.dtype), 1) for a in self._tables)
        layer = StreamLayer(lags, sums, bias, _Product(self.backend), self.capacity, self._leaf)
        request = Request(dtype_name(sample.dtype), device_kind(sample))
        engine = choice.choose_streamer(self.backend, library, request)
        bridge = choice.bridge_of(library)
        if isinstance(bridge, StreamBridge):
            return bridge.stream(engine, layer)
        if engine.owns(sample):
            stream: LayerStream = engine.stream(layer)
            return stream
        inner = engine.stream(layer.handed_to(engine.receive))
        return ExchangedStream(layer, inner, engine.receive, functools.partial(share, target=xp))

    def stepper(self, dtype: Any) -> Stepper:
        """Return how streams of tokens of a dtype go on; made once."""
        name = dtype_name(dtype)
        stepper = self._steppers.get(name)
        if stepper is None:
            bridge = choice.bridge_of(library_of(self.lags))
            recorder = bridge if isinstance(bridge, StreamRecorder) else None
            stepper = Stepper(self, dtype) if recorder is None else RecordedStepper(self, dtype, recorder)
            if self._may_keep(stepper.stream):
                self._steppers[name] = stepper
        return stepper

    def _may_keep(self, stream: LayerStream) -> bool:
        """Return whether streams are of use as long as the plan: not those that a later program made."""
        return is_traced(stream.layer.lags) == is_traced(self.lags)


@dataclass(frozen=True)
class _Product:
    """The product by a choice of backend."""

    backend: str

    def __call__(self, w: Array, x: Array, segment_ids: Array | None = None) -> Array:
        return causal_toeplitz_matmul(w, x, segment_ids=segment_ids, backend=self.backend)


class Stepper:
    """How the streams of one plan and one dtype go on: what is around the pure functions of its layer."""

    def __init__(self, plan: StreamPlan, dtype: Any) -> None:
        """Look up what a step needs, which then looks up nothing."""
        self.plan, self.dtype, self.lags = plan, dtype, plan.lags
        self.stream = plan.stream(dtype)
        self.xp = namespace_of(self.lags)
        self.computed = computed_in(self.xp.zeros((0,), dtype=dtype, device=device_of(self.lags)))[1][0].dtype
        self.half = self.computed != dtype
        # The class of tokens that need no check; JAX's may be traced.
        self.kind = None if compat.is_jax_array(self.lags) else type(self.lags)
        if self.kind is None:
            self.step = with_jax_defaults(self.step)  # type: ignore[method-assign]
        self.advance = self.stream.step

    def handle_of(self, state: StreamState) -> Array | None:
        """Return by what a recorded operation finds the state, where there are such operations."""
        return None

    def recording(self) -> bool:
        """Return whether a compiler looks on."""
        return False

    def begin(self, shape: tuple[int, ...], rows: int) -> StreamState:
        """Return a stream without tokens."""
        plan = self.plan
        cache = self.stream.new_cache(rows, plan.capacity, shape[-1])
        return StreamState(plan, self, shape, cache, end=min(plan.capacity, plan.positions))

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token; some 1 us more than the engine takes, so nothing is looked up here."""
        at, full = state.at, None
        if x.__class__ is not self.kind or x.dtype is not self.dtype or x.shape != state.shape or at >= state.end:
            x, full = self.received(x, state.shape), self.room(state, 1)
        elif state.direct:
            y, state.cache = self.advance(state.cache, at, state.origin + at, state.padding, x)
            state.at = at + 1
            return y
        x = self.xp.astype(self.xp.reshape(x, state.rows), self.computed, copy=False)
        y, state.cache = self.advance(state.cache, at, state.position, state.padding, x)
        state.at = at + 1
        y = self.xp.astype(self.xp.reshape(y, state.shape), self.dtype, copy=False)
        return y if full is None else nan_where(full, y)

    def prefill(self, state: StreamState, x: Array, padding: Array | None) -> Array:
        """Return the outputs for the next tokens `(*batch, n, d)`, in one product that reaches over all later ones."""
        xp, (rows, d), n, position = self.xp, state.rows, int(x.shape[-2]), state.position
        begins = position == 0
        full = self.room(state, n, least_of(padding))
        tokens = xp.astype(xp.reshape(x, (rows, n, d)), self.computed, copy=False)
        if not is_traced(begins) and begins:
            padding = None if padding is None else indices_like(padding, state.cache)
            left = int(state.cache.shape[1]) - n
            y, cache = self.stream.begin(tokens, padding, left)
            state.padding, state.end = padding, min(left, self.plan.positions + least_of(padding) - n)
        else:
            y, cache = self.stream.resume(state.cache, state.at, position, state.padding, tokens)
            state.end = state.end - state.at - n
        state.cache, state.origin, state.at = cache, position + n, 0 * state.at
        if full is not None:
            y = nan_where(full, y)
        return xp.astype(xp.reshape(y, x.shape), self.dtype, copy=False)

    def select(self, state: StreamState, indices: Array, shape: tuple[int, ...]) -> StreamState:
        """Return a stream of other rows, of tokens of a shape."""
        indices = indices_like(indices, state.cache)
        xp = namespace_of(state.cache)
        cache = xp.take(state.cache, indices, axis=0)
        padding = None if state.padding is None else xp.take(state.padding, indices, axis=0)
        end = state.end
        if not is_traced(state.origin):  # fewer rows may go on for longer: known outside programs only
            end = min(int(cache.shape[1]), self.plan.positions + least_of(padding) - int(state.origin))
        return StreamState(self.plan, self, shape, cache, origin=state.origin, at=state.at, end=end, padding=padding)

    def room(self, state: StreamState, count: int, free: int = 0) -> Array | None:
        """Refuse `count` more tokens where there is no place, `free` positions beyond the bias; a mask if traced."""
        full = state.at + count > state.end + free
        if is_traced(full):
            return full
        if full or state.at + count > state.cache.shape[1]:
            raise no_room(int(state.position), count, self.plan.capacity, self.plan.positions)
        return None

    def received(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return an input checked for its library, dtype and shape."""
        xp, (x, _) = check_arrays(x=x, **{"the plan's w": self.lags})
        if xp is not self.xp:
            raise InputTypeError(f"x is of {xp.__name__}, and the plan's w was not: make the plan from such a w")
        if x.dtype != self.dtype:
            raise InputTypeError(
                f"expected x of the dtype {dtype_name(self.dtype)} that the stream was made for, "
                f"got {dtype_name(x.dtype)}: convert it, or make the stream by stream_init(…, dtype=…)"
            )
        if tuple(x.shape) != shape:
            raise InputError(
                f"x must have the shape {shape} of the stream's batch and channels, and has {tuple(x.shape)}: "
                "a stream serves the batch that it was made for"
            )
        checked: Array = x
        return checked


class RecordedStepper(Stepper):
    """The same where a compiler may look on, to which each step is then one operation."""

    def __init__(self, plan: StreamPlan, dtype: Any, recorder: StreamRecorder) -> None:
        """Let a bridge record steps."""
        super().__init__(plan, dtype)
        self.handle_of = recorder.handle_of  # type: ignore[method-assign, assignment]
        self.recording = recorder.recording  # type: ignore[method-assign]
        self._record_step = recorder.record_step

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token."""
        if self.recording():
            return self._record_step(state.handle, x, self.dtype, state.shape)
        return super().step(state, x)
