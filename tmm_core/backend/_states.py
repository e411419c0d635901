"""The state of a stream, and what makes it go on."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from .._arrays.exchange import Array, namespace_of
from ..errors import InputTypeError

__all__ = ["Stepper", "StreamState"]


class Stepper(Protocol):
    """How the streams of one plan and one dtype go on."""

    half: bool
    """Whether tokens are halves, which are computed in float32."""

    def handle_of(self, state: StreamState, /) -> Array | None:
        """Return by what a recorded operation finds the state, where there are such operations."""

    def recording(self) -> bool:
        """Return whether a compiler looks on."""

    def received(self, x: Array, shape: tuple[int, ...], /) -> Array:
        """Return an input checked for its library, dtype and shape."""

    def step(self, state: StreamState, x: Array, /) -> Array:
        """Return the output for the next token, of which the state then knows."""

    def prefill(self, state: StreamState, x: Array, padding: Array | None, /) -> Array:
        """Return the outputs for the next tokens `(*batch, n, d)`, of which the state then knows."""

    def select(self, state: StreamState, indices: Array, shape: tuple[int, ...], /) -> StreamState:
        """Return a stream of other rows, of tokens of a shape."""


class StreamState:
    """One stream of a batch of rows: what has come, and what it will still contribute.

    Attributes
    ----------
    plan : tmm_core.StreamPlan
        Shared, never copied.
    shape : tuple of int
        Of a token's input, `(*batch, d)`.
    cache : array, (b, length, d)
        Inputs before entry `at`, pending outputs from it on. In float32 for halves, of the engine's library.
    origin, at : int
        The time of the cache's first entry, and the entry of the next token.
    end : int
        Entries that may be used: all, or as many as the position bias has positions for.
    padding : array of int, (b,), or None
        The left padding of each row: positions are counted from there.
    """

    # No instance dictionary: a step reads a handful of these.
    __slots__ = (
        "__weakref__", "at", "cache", "direct", "end", "handle", "origin", "padding", "plan", "rows", "shape", "steps"
    )  # fmt: skip

    def __init__(
        self,
        plan: Any,
        steps: Stepper,
        shape: tuple[int, ...],
        cache: Array,
        *,
        origin: int = 0,
        at: int = 0,
        end: int,
        padding: Array | None = None,
    ) -> None:
        """Make a stream that goes on with a cache of its own, in C order."""
        self.plan, self.steps, self.shape, self.cache = plan, steps, shape, cache
        self.origin, self.at, self.end, self.padding = origin, at, end, padding
        self.rows = rows = (int(cache.shape[0]), int(cache.shape[2]))
        self.direct = shape == rows and not steps.half  # tokens go to the engine as they are
        self.handle = steps.handle_of(self)

    def __copy__(self) -> StreamState:
        """Return a stream that goes on by itself from here: two on one cache would write over each other."""
        cache = namespace_of(self.cache).asarray(self.cache, copy=True)
        plan, steps, shape = self.plan, self.steps, self.shape
        return StreamState(
            plan, steps, shape, cache, origin=self.origin, at=self.at, end=self.end, padding=self.padding
        )

    def __deepcopy__(self, memo: dict[int, object]) -> StreamState:
        """Return the same: plans are shared, never copied."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise InputTypeError("a stream belongs to its plan and cannot be pickled: keep its tokens, and prefill another")

    @property
    def position(self) -> int:
        """The number of tokens that have come, padding included."""
        return self.origin + self.at
