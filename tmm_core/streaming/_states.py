"""The state of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from .._arrays.exchange import Array, namespace_of
from .._arrays.properties import values_within_reach
from ..errors import InputTypeError

if TYPE_CHECKING:
    from ._plans import StreamPlan
    from ._steps import Steps

__all__ = ["StreamState", "least_of"]


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
    __slots__ = ("at", "end", "origin", "padding", "plan", "rows", "shape", "steps", "tape")

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
        end: int | None = None,
    ) -> None:
        """Make a stream that goes on with a tape of its own, in C order."""
        self.plan = plan
        self.steps = steps
        self.shape = shape
        self.padding = padding
        self.turn_to(tape, origin, at, end)

    def turn_to(self, tape: Array, origin: int, at: int = 0, end: int | None = None) -> None:
        """Go on with another tape, to its end or that of the position bias, unless told to which entry."""
        self.tape, self.origin, self.at = tape, origin, at
        rows = (tape.shape[0], tape.shape[2])
        self.rows = self.shape if self.shape == rows else rows  # itself, to be told at once that nothing is reshaped
        if end is None:
            end = min(int(tape.shape[1]), self.plan.positions + least_of(self.padding) - origin)
        self.end = end

    def __copy__(self) -> StreamState:
        """Return a stream that goes on by itself from here: two on one tape would write over each other."""
        tape = namespace_of(self.tape).asarray(self.tape, copy=True)
        place = {"origin": self.origin, "at": self.at, "padding": self.padding, "end": self.end}
        return self.steps.begin(self.plan, self.shape, tape, **place)

    def __deepcopy__(self, memo: dict[int, object]) -> StreamState:
        """Return the same: plans are shared, never copied."""
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise InputTypeError("a stream belongs to its plan and cannot be pickled: keep its tokens, and prefill another")

    @property
    def position(self) -> int:
        """The number of tokens that have come, padding included."""
        return self.origin + self.at


def least_of(padding: Array | None) -> int:
    """Return how much longer than the position bias a stream may be: 0 where that cannot be known."""
    if padding is None or padding.shape[0] == 0:
        return 0
    least = namespace_of(padding).min(padding)
    return int(least) if values_within_reach(least) else 0
