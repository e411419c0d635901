"""The definition as an engine: in the arrays' own namespace, or always in NumPy."""

from __future__ import annotations

from .._arrays.exchange import Array, library_of, share
from .._definition.streaming import LayerStream, StreamLayer
from .._definition.toeplitz import causal_toeplitz_correlate, causal_toeplitz_matmul
from ._protocols import Request

__all__ = ["ArrayApiEngine", "NumpyEngine"]


class ArrayApiEngine:
    """The definition in array-API calls of the arrays' own namespace, on whatever device they are."""

    name: str = "array_api"
    devices: tuple[str, ...] = ("any",)
    matmul = staticmethod(causal_toeplitz_matmul)
    correlate = staticmethod(causal_toeplitz_correlate)

    def owns(self, array: Array) -> bool:
        """Return True: arrays of every library are served as they are."""
        return True

    def receive(self, array: Array) -> Array:
        """Return `array`."""
        return array

    def unsupported(self, request: Request) -> str | None:
        """Return None: every device is served."""
        return None

    def stream(self, layer: StreamLayer) -> LayerStream:
        """Return the streams of a layer by the definition."""
        return LayerStream(layer)


class NumpyEngine(ArrayApiEngine):
    """The definition in NumPy."""

    name = "numpy"
    devices = ("cpu",)

    def owns(self, array: Array) -> bool:
        """Return whether `array` is a NumPy array."""
        return library_of(array) == "numpy"

    def receive(self, array: Array) -> Array:
        """Return `array` as a NumPy array."""
        import numpy

        return share(array, numpy)

    def unsupported(self, request: Request) -> str | None:
        """Return why a device is not served."""
        return (
            None if request.device == "cpu" else f"NumPy computes on the CPU, and the arrays are on {request.device!r}"
        )
