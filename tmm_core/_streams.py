"""What a stream is made of: the plan that all streams of a layer share, and the state of one."""

from __future__ import annotations

from typing import Any

from . import _registry
from ._arrays import computed_in, device_of, is_real, nan_where
from ._exchange import Array, device_kind, dtype_name, library_of, namespace_of
from ._protocols import Request, StreamBridge
from ._stream_steps import EngineSteps, ForeignSteps, Parts, Steps, least_of

__all__ = ["StreamPlan", "StreamState"]


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
        lags = xp.astype(self.lags, computed)
        lags = nan_where(~xp.isfinite(lags), lags)
        sums, bias = (None if a is None else xp.astype(a, computed) for a in self._tables)
        parts = Parts(lags, sums, bias, self.capacity, self._leaf, self.backend, dtype)
        library = library_of(sample)
        request = Request("stream", dtype_name(computed), device_kind(sample), False, False)
        engine = None if library == "dask" else _registry.choose_streamer(self.backend, library, request)
        bridge = _registry.bridge_of(library)
        if isinstance(bridge, StreamBridge):
            steps: Steps = bridge.stream_steps(engine, parts)
            return steps
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
