"""What is streamed of a language model: its filters and residual stream, a plan of them, and the state of a stream."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from .._arrays.exchange import Array, is_traced, namespace_of
from .._definition import tiles
from .._definition.streaming import LayerStream, least_of
from .._dispatch.checks import check_count
from ..streaming import stream_plan

__all__ = ["DecodingPlan", "DecodingState", "Filter", "Mix", "StreamedModel"]

Mix = Callable[[str, Array], Array]
"""What mixes the tokens of a layer, given the name of its filter."""

WINDOW = 256
"""Places that caches have at a time, or more where lags reach further: those after them are made when they are needed.

A power of two, so that no tile is cut at their end.
"""

_numbers = itertools.count()


class Filter(NamedTuple):
    """A token-mixing layer of a model, as `tmm_core.stream_plan` takes it."""

    lags: Array
    bias: Array | None
    channels: int
    softplus: bool = False
    mean: bool = False


class StreamedModel(Protocol):
    """What decoding asks of a language model whose tokens are mixed by causal filters, and by nothing else."""

    def filters(self) -> Mapping[str, Filter]:
        """Return the token-mixing layers by name."""

    def residual_stream(self, input_ids: Array, *, mix: Mix) -> Array:
        """Return what comes out of the last block, (..., d), where `mix(name, x)` applies the filter of a name."""

    def logits_of(self, x: Array) -> Array:
        """Return the logits, (..., vocab_size), of what comes out of the last block."""

    def checked_tokens(self, input_ids: Array, attention_mask: Array | None, /) -> tuple[Array, Array | None]:
        """Return tokens and a mask as the model takes them, refused where they are none."""


class DecodingPlan:
    """A model ready to be streamed, for any number of streams.

    Attributes
    ----------
    model : StreamedModel
        The model; its filters are copied, its other parameters are used as they are.
    capacity : int
        Tokens that a text can have, its prompt included.
    positions : int
        Positions that the position biases have, at most `capacity`.
    layers : dict of LayerStream
        The pure functions that mix tokens, by the names of the filters.
    """

    def __init__(self, model: StreamedModel, capacity: int, *, backend: str | None = None) -> None:
        """Plan each of the model's filters."""
        self.model, self.capacity = model, check_count("capacity", capacity, 1)
        self.layers: dict[str, LayerStream] = {}
        self.channels: dict[str, int] = {}
        self.positions, self.number = self.capacity, next(_numbers)
        for name, (lags, bias, channels, softplus, mean) in model.filters().items():
            layer = stream_plan(lags, self.capacity, bias=bias, softplus=softplus, mean=mean, backend=backend)
            self.layers[name], self.channels[name] = layer.stream(), channels
            self.positions = min(self.positions, layer.positions)

    @functools.cached_property
    def window(self) -> int:
        """Places that the caches have at a time, so that tokens that never come take no memory."""
        lags = max((layer.layer.lags.shape[-1] for layer in self.layers.values()), default=1)
        return max(WINDOW, 1 << (lags - 1).bit_length())

    def length_of(self, layer: LayerStream, count: int) -> int:
        """Return how long a layer's cache is that has places for `count` tokens, or for the first of them."""
        return min(count, self.window)

    def with_places(self, state: DecodingState, count: int) -> None:
        """Let the caches of a state have places for `count` more tokens, and after several for those that follow."""
        length = next((cache.shape[1] for cache in state.caches.values()), 0)
        if not state.caches or is_traced(state.at):
            return
        left = self.capacity - state.position
        if state.at == length:
            length = min(left, self.window)
            state.caches = {name: self.layers[name].renewed(cache, length) for name, cache in state.caches.items()}
            state.at = 0
        # What is renewed later reaches back no further than to here.
        more = state.at + count + min(left - count, self.window) - length
        if count > 1 and more > 0:
            state.caches = {name: tiles.extended(cache, more) for name, cache in state.caches.items()}

    def mixer(self, mix: Mix) -> Mix:
        """Return what the model's blocks call to mix tokens."""
        return mix

    # Pure functions: the logits after the last of the tokens, and the caches after them ------------------------------

    def begin(self, tokens: Array, padding: Array | None, left: int) -> tuple[Array, dict[str, Array]]:
        """Take a first prompt (b, n), and leave places for `left` tokens."""
        return self.through(tokens, lambda _, layer, x: layer.begin(x, padding, self.length_of(layer, left)))

    def resume(
        self, caches: Mapping[str, Array], at: int, position: int, padding: Array | None, tokens: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Take tokens (b, n) that follow; the first entries of the caches are then those of the times after them."""
        return self.through(tokens, lambda name, layer, x: layer.resume(caches[name], at, position, padding, x))

    def step(
        self, caches: Mapping[str, Array], at: int, position: int, padding: Array | None, tokens: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Take a token of each row (b,)."""
        return self.through(tokens, lambda name, layer, x: layer.step(caches[name], at, position, padding, x))

    def through(
        self, tokens: Array, take: Callable[[str, Any, Array], tuple[Array, Array]]
    ) -> tuple[Array, dict[str, Array]]:
        """Run the model's blocks, where `take(name, layer, x)` mixes tokens and returns a cache."""
        caches = {}

        def mix(name: str, x: Array) -> Array:
            layer, given = self.layers[name], x.dtype  # may be a half, or autocast's
            dtype = layer.layer.lags.dtype
            y, caches[name] = take(name, layer, x if given == dtype else namespace_of(x).astype(x, dtype))
            return y if given == dtype else namespace_of(y).astype(y, given)

        x = self.model.residual_stream(tokens, mix=self.mixer(mix))
        return self.model.logits_of(x if tokens.ndim == 1 else x[:, -1, :]), caches


class DecodingState:
    """One stream of a batch of texts, begun by `stream_init`; consumed by each prefill and step.

    Attributes
    ----------
    batch_size : int
        Texts that are streamed together.
    caches : dict of arrays, (batch_size, length, channels)
        By the names of the filters; see `tmm_core.StreamState`.
    padding : array of integers, (batch_size,), or None
        Left padding of each row, from where positions are counted.
    position, at : int
        Tokens that have come, padding included, and the caches' entry of the next one.
    end : int
        The first position that there is no place for.
    number, capacity, positions : int
        Those of the plan.
    """

    def __init__(
        self,
        batch_size: int,
        caches: dict[str, Array],
        padding: Array | None = None,
        position: int = 0,
        at: int = 0,
        end: int | None = None,
        *,
        plan: tuple[int, int, int],
    ) -> None:
        """Keep the caches; `plan` is the number, the capacity and the positions of a plan."""
        self.batch_size, self.caches, self.padding = batch_size, caches, padding
        self.position, self.at = position, at
        self.number, self.capacity, self.positions = plan
        self.end = self.end_after(padding) if end is None else end

    def end_after(self, padding: Array | None) -> int:
        """Return the first position without a place after a padding: that of the row with the least of it."""
        return min(self.capacity, self.positions + least_of(padding))

    def __copy__(self) -> DecodingState:
        """Return a stream that goes on by itself from where this one is; the plan is shared."""
        caches = {name: namespace_of(cache).asarray(cache, copy=True) for name, cache in self.caches.items()}
        return self.with_rows(self.batch_size, caches, self.padding, self.end)

    def __deepcopy__(self, memo: dict[int, object]) -> DecodingState:
        """Return the same."""
        return self.__copy__()

    def with_rows(
        self, batch_size: int, caches: dict[str, Array], padding: Array | None, end: int | None
    ) -> DecodingState:
        """Return a stream of other rows that is as far as this one."""
        plan = self.number, self.capacity, self.positions
        return DecodingState(batch_size, caches, padding, self.position, self.at, end, plan=plan)
