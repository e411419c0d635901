"""The plan that all streams of a layer share."""

from __future__ import annotations

from typing import Any, NoReturn

from .._arrays.exchange import Array, device_kind, dtype_name, library_of, namespace_of
from .._arrays.properties import computed_in, device_of, is_real, nan_where
from .._dispatch import registry
from ..backend import Request, StreamBridge
from ..errors import InputTypeError
from ._steps import EngineSteps, ForeignSteps, Parts, Steps

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
        self._steps: dict[str, Steps] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> StreamPlan:
        """Return itself: it never changes, and its streams know it by its identity."""
        return self

    def __reduce__(self) -> NoReturn:
        raise InputTypeError(
            "a plan holds what this machine computes best with and cannot be pickled: make it from w anew"
        )

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
        request = Request(dtype_name(computed), device_kind(sample))
        engine = registry.choose_streamer(self.backend, library, request)
        bridge = registry.bridge_of(library)
        if isinstance(bridge, StreamBridge):
            steps: Steps = bridge.stream_steps(engine, parts)
            return steps
        if engine is None:
            return Steps(parts)
        return EngineSteps(engine, parts) if engine.owns(sample) else ForeignSteps(engine, parts)
