"""The engine that computes in JAX itself, on every platform that XLA compiles for."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from tmm_core.backend import (
    Method,
    Request,
    StreamLayer,
    definition_correlate,
    definition_matmul,
    dtype_name,
    numbered,
    share,
)

from . import symbolic
from .streaming import JaxStream

__all__ = ["JaxEngine"]


def _platforms() -> tuple[str, ...]:
    """Return the kinds of device that JAX has here."""
    kinds = {"gpu": "cuda"}
    names = {kinds.get(device.platform, device.platform) for device in jax.devices()}
    return ("cpu", *sorted(names - {"cpu"}))


def _has_64_bits() -> bool:
    return bool(jax.dtypes.canonicalize_dtype(float) == jnp.float64)


class JaxEngine:
    """Products of JAX arrays, traced or concrete, of every floating and complex dtype."""

    name = "jax"

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that JAX has here."""
        return _platforms()

    def owns(self, array: Any) -> bool:
        """Return whether `array` is JAX's."""
        return isinstance(array, jax.Array)

    def receive(self, array: Any) -> jax.Array:
        """Return `array` as one of JAX's, on the same memory where that is possible.

        Integers number documents: those of 64 bits are numbered anew where JAX has no 64 bits.
        """
        if dtype_name(array.dtype) in ("int64", "uint64") and not _has_64_bits():
            array = numbered(array)
        shared: jax.Array = share(array, jnp)
        return shared

    def unsupported(self, request: Request) -> str | None:
        """Return why a device or a dtype is not served."""
        if request.dtype in ("float64", "complex128") and not _has_64_bits():
            return (
                f"JAX makes 32 bits of {request.dtype} unless told otherwise: call "
                "jax.config.update('jax_enable_x64', True), or convert the arrays to 32 bits yourself"
            )
        if request.device not in ("traced", *_platforms()):
            return f"JAX computes on {' and '.join(_platforms())} here, and the arrays are on {request.device!r}"
        return None

    def stream(self, layer: StreamLayer) -> JaxStream:
        """Return the streams of a layer, in compiled programs."""
        return JaxStream(layer)

    def matmul(
        self, w: jax.Array, x: jax.Array, /, *, adjoint: bool, method: Method, segment_ids: jax.Array | None
    ) -> jax.Array:
        """Return the product; see `tmm_core.causal_toeplitz_matmul`."""
        y: jax.Array = _matmul(w, x, segment_ids, adjoint=adjoint, method=method)
        return y

    def correlate(
        self,
        x: jax.Array,
        g: jax.Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: jax.Array | None,
    ) -> jax.Array:
        """Return the correlation; see `tmm_core.causal_toeplitz_correlate`."""
        c: jax.Array = _correlate(x, g, segment_ids, lags=lags, heads=heads, kernel_size=kernel_size, method=method)
        return c


@functools.partial(jax.jit, static_argnames=("adjoint", "method"))
def _matmul(w: jax.Array, x: jax.Array, ids: jax.Array | None, *, adjoint: bool, method: Method) -> jax.Array:
    definition = definition_matmul if isinstance(x.shape[-2], int) else symbolic.matmul
    y: jax.Array = definition(w, x, adjoint=adjoint, method=method, segment_ids=ids)
    return y


@functools.partial(jax.jit, static_argnames=("lags", "heads", "kernel_size", "method"))
def _correlate(
    x: jax.Array, g: jax.Array, ids: jax.Array | None, *, lags: int, heads: int, kernel_size: int, method: Method
) -> jax.Array:
    definition = definition_correlate if isinstance(x.shape[-2], int) else symbolic.correlate
    c: jax.Array = definition(x, g, lags=lags, heads=heads, kernel_size=kernel_size, method=method, segment_ids=ids)
    return c
