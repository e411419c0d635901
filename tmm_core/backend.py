"""What a backend is made of: an engine that computes, and a bridge that an array library needs around any engine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ._arrays.exchange import Array
from ._definition.pieces import Piece, cut_into_pieces
from ._definition.toeplitz import Method
from .errors import InputError, InputTypeError, NotFoundError, UnsupportedError

__all__ = [
    "Backend",
    "Bridge",
    "Engine",
    "InputError",
    "InputTypeError",
    "Method",
    "NotFoundError",
    "Operation",
    "Piece",
    "Queued",
    "Request",
    "StreamBridge",
    "Streamer",
    "Tiles",
    "UnsupportedError",
    "Writer",
    "cut_into_pieces",
]

Operation = Literal["matmul", "correlate"]


@dataclass(frozen=True)
class Request:
    """What an engine is asked for, known before any work."""

    dtype: str
    """Name of the result's dtype, such as `bfloat16`."""
    device: str
    """Kind of device that holds the arrays: `cpu`, `cuda`, …"""
    segments: bool = False
    shape: tuple[int, ...] = ()
    """Of the signals, `(..., n, d)`; empty where it is not known yet."""


class Engine(Protocol):
    """Raw computation of whole operations on arrays of one library.

    `w` comes as `(h, m, k)`, `x` and `g` as `(..., n, d)` with `h` dividing `d`; all laws of `tmm_core.testing` hold.
    """

    name: str

    def owns(self, array: Array) -> bool:
        """Return whether the engine computes on `array` as it is."""

    def receive(self, array: Array) -> Array:
        """Return `array`, of any library, as one that the engine owns; without a copy where both can share memory."""

    def unsupported(self, request: Request) -> str | None:
        """Return why the engine cannot serve `request`, or None where it can."""

    def matmul(self, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
        """Return `T(w) x`, or `T(w)^H x`, of shape `(..., n, d)`."""

    def correlate(
        self,
        x: Array,
        g: Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Array | None,
    ) -> Array:
        """Return the gradient of `<g, T(w) x>` for `w`, of shape `(heads, kernel_size, lags)`."""


@runtime_checkable
class Writer(Protocol):
    """What an engine can do besides: write a product into memory that is given, so that it need not be copied there."""

    def matmul_into(self, out: Array, w: Array, x: Array, /, *, adjoint: bool, segment_ids: Array | None) -> None:
        """Write `T(w) x`, or `T(w)^H x`, into `out`, of its shape and dtype, in C order."""


class Tiles(Protocol):
    """What an engine prepares for the streams of one filter; spectra are made when they are first needed."""

    leaf: int
    """A power of two: inputs since the last multiple of it are summed directly, older ones are in tiles."""


@runtime_checkable
class Streamer(Protocol):
    """What an engine can do besides: stream, token by token, in place.

    A tape `(b, length, d)` holds at each entry the input of a time that has passed, or the pending output of one to
    come: what the inputs in tiles contribute to it. A tile adds the last `k` inputs' contributions to the next `k`
    outputs.
    """

    def stream_plan(self, w: Array, capacity: int, /, *, leaf: int | None = None) -> Tiles:
        """Return what streams of up to `capacity` tokens need of `w`, `(h, m, k)`, with the engine's `leaf` or this."""

    def stream_tape(self, shape: tuple[int, int, int], dtype: Any, /) -> Array:
        """Return a tape of zeros, in C order."""

    def stream_step(self, plan: Any, tape: Array, at: int, x: Array, y: Array, /) -> None:
        """Write the output of `x` at entry `at` into `y`, both `(b, d)`, and bring the tape up to date.

        With `u = at + 1` and `f = at % leaf`: `y = tape[at] + sum_{j <= f} w[j] x[at - j]`, where `x[at] = x`; then
        `tape[at] = x`; if `leaf` divides `u`, with k the largest power of two that divides u, though no more than the
        first one that is not below the number of lags: `tape[u:u+k]` gains what `tape[u-k:u]` contributes, as far as
        the tape goes. All arrays are the engine's own, of one dtype, float32 and above, in C order; `x` may be
        read-only. Entries that are not finite, of x or w, spoil what they do in a product.
        """


@runtime_checkable
class Queued(Protocol):
    """What an engine has that queues its work on a device."""

    def beside(self, array: Array, /) -> AbstractContextManager[Any]:
        """Return a block whose work is queued on the device of `array`, of any library, in its library's order."""


class Bridge(Protocol):
    """What the arrays of one library need around any engine; the operations are the engine's, with the engine first."""

    def matmul(
        self, engine: Engine, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None
    ) -> Array:
        """Return the product as a differentiable, traceable operation of the arrays' library."""

    def correlate(
        self,
        engine: Engine,
        x: Array,
        g: Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Array | None,
    ) -> Array:
        """Return the correlation as a differentiable, traceable operation of the arrays' library."""


@runtime_checkable
class StreamBridge(Protocol):
    """What a bridge can do besides: go on with streams in its library's own way, compiled for example."""

    def stream_steps(self, engine: Any | None, parts: Any, /) -> Any:
        """Return `_stream_steps.Steps` for its `Parts`: by the engine, a `Streamer`, or for None by the definition."""


@dataclass(frozen=True)
class Backend:
    """One registered way to compute, and what `tmm backends` tells of it."""

    name: str
    version: str
    devices: tuple[str, ...]
    """Kinds of device that the engine can use on this machine now."""
    serves: str
    """In a few words, the arrays and dtypes served."""
    engine: Engine
    bridge: Bridge | None = None
    """Set where the arrays of the library called `name` need one."""
