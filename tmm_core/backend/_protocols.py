"""What engines and bridges are asked for, as protocols."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .._arrays.exchange import Array
from .._definition.streaming import LayerStream, StreamLayer
from .._definition.toeplitz import Method
from ._states import StreamState

__all__ = [
    "Bridge",
    "Engine",
    "FunctionalStream",
    "LazyBridge",
    "Queued",
    "Request",
    "StreamBridge",
    "StreamRecorder",
    "Streamer",
    "Writer",
]


# Engines -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What an engine is asked for, known before any work."""

    dtype: str
    """Name of the result's dtype, such as `bfloat16`."""
    device: str
    """Kind of device that holds the arrays: `cpu`, `cuda`, …; `traced` for arrays without values."""
    segments: bool = False
    """Whether documents are packed into the rows."""
    shape: tuple[int, ...] = ()
    """Of the signals, `(..., n, d)`; empty where it is not known yet."""


class Engine(Protocol):
    """Raw computation of whole products on arrays of one library.

    `w` comes as `(h, m, k)`, `x` and `g` as `(..., n, d)` with `h` dividing `d`, `segment_ids` broadcastable to
    `(..., n)`; arguments are checked already. All laws of `tmm_core.testing` hold, except that decreasing
    `segment_ids`, which are refused or become NaN outside of engines, may give anything.
    """

    name: str
    """The name of the backend."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that it can use on this machine now."""

    def owns(self, array: Array) -> bool:
        """Return whether the engine computes on `array` as it is."""

    def receive(self, array: Array) -> Array:
        """Return `array`, of any library, as one that the engine owns: `share` does it without a copy if possible."""

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


@runtime_checkable
class Queued(Protocol):
    """What an engine has that queues its work on a device."""

    def on_stream_of(self, array: Array, /) -> AbstractContextManager[Any]:
        """Return a block whose work is queued on the device of `array`, of any library, in its library's order."""


@runtime_checkable
class Streamer(Engine, Protocol):
    """What an engine can do besides: stream a layer, token by token."""

    def stream(self, layer: StreamLayer, /) -> LayerStream:
        """Return the streams of a layer, whose arrays are the engine's own.

        `LayerStream(layer)` is the definition, with the engine's products; subclasses compute what they can do better.
        A step at entry `at` of a cache `(b, length, d)`, which holds the inputs of times that have passed and pending
        outputs of those to come, with `f = at % leaf` and `u = at + 1`: `y = cache[at] + sum_{j <= f} w[j] x[at - j]`,
        where `x[at] = x`; then `cache[at] = x`; if `leaf` divides `u`, with k the largest power of two that divides u,
        though no more than the first one that is not below the number of lags: `cache[u:u+k]` gains what
        `cache[u-k:u]` contributes, as far as the cache goes. Entries that are not finite, of x or w, make NaN where
        they do in a product.
        """


# Bridges -------------------------------------------------------------------------------------------------------------


class Bridge(Protocol):
    """What the arrays of one library need around any engine; the operations are the engine's, with the engine first.

    The bridge calls `run_matmul` and `run_correlate` when it has concrete arrays.
    """

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
class LazyBridge(Protocol):
    """What the bridge of a library has whose arrays are computed later, block by block."""

    def row_by_row(self, function: Callable[[Array, Array], Array], w: Array, x: Array, /) -> Array:
        """Return `function(w, x)`, of the shape of x, `(..., n, d)`: called later on blocks of whole signals."""


@runtime_checkable
class StreamBridge(Protocol):
    """What a bridge can do besides: go on with streams in its library's own way, compiled for example."""

    def streams(self, engine: Engine, /) -> bool:
        """Return whether layers can be streamed by the engine, or with its products where these are enough."""

    def stream(self, engine: Any, layer: StreamLayer, /) -> LayerStream:
        """Return the streams of a layer of the library's arrays: by an engine that owns them, as it streams them."""


@runtime_checkable
class StreamRecorder(Protocol):
    """What a bridge has whose compiler records a step as one operation, without the numbers that change with it."""

    def recording(self) -> bool:
        """Return whether a compiler looks on."""

    def handle_of(self, state: StreamState, /) -> Array:
        """Return an array by which the recorded operation finds the state."""

    def record_step(self, handle: Array, x: Array, dtype: Any, shape: tuple[int, ...], /) -> Array:
        """Record the step of a token, which must have the state's dtype and shape; return its output."""


@runtime_checkable
class FunctionalStream(Protocol):
    """What a `LayerStream` has whose functions compiled programs call: numbers may be traced, caches are replaced.

    A program takes it as an argument. Small parts that are compiled apart spare copies of whole caches.
    """

    leaf: int

    def new_cache(self, rows: int, length: int, channels: int) -> Array:
        """Return a cache without inputs."""

    def begin(self, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
        """Return the outputs for a first prompt, and a cache of `length` entries; see `LayerStream.begin`."""

    def resume(self, cache: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens that follow, and a cache after them, as long where `at` is traced."""

    def advance(self, cache: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output of a step and the cache, or a window of one leaf of it, without the tile that is due."""

    def add_tile(self, cache: Array, u: Any, /) -> Array:
        """Return the cache after the tile that is due at entry u, if one is; the cache is donated."""

    def close_leaf(self, cache: Array, window: Array, u: int, /) -> tuple[Array, Array]:
        """Return the cache with a window's leaf, which ends at entry u, and its tile, and the window that follows.

        Where the cache ends at u, it is renewed; see `LayerStream.renewed`.
        """
