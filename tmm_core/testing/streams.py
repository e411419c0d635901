"""Streams of any library: the outputs for tokens that come in chunks, and how far from the definition they may be."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

import numpy as np

from .. import streaming
from .._arrays.exchange import Array
from ..streaming import StreamPlan, StreamState
from .libraries import Library
from .oracles import ERROR_CONSTANT, Numbers, error_bound

__all__ = ["STREAMING_ERROR_CONSTANT", "split", "step_of", "stream", "stream_error_bound", "stream_factor"]

STREAMING_ERROR_CONSTANT = 4.0
"""The c of the error law of streams, `|error| <= c * eps * log2(n)^1.5 * ||w||_2 * ||x||_2`."""


def stream_factor(n: int) -> float:
    """Return how much larger the error of a stream of n times may be than a product's."""
    return STREAMING_ERROR_CONSTANT / ERROR_CONSTANT * math.sqrt(math.log2(max(n, 2)))


def stream_error_bound(w: Numbers, x: Numbers, dtype: str) -> Numbers:
    """Return the bound of the error law of streams for each row and channel, `(..., 1, d)`."""
    return stream_factor(x.shape[-2]) * error_bound(w, x, dtype)


@functools.cache
def step_of(library: Library) -> Callable[[StreamPlan, StreamState, Array], tuple[Array, StreamState]]:
    """Return the step as the library runs it, compiled once for all laws."""

    def step(plan: StreamPlan, state: StreamState, x: Array) -> tuple[Array, StreamState]:
        return streaming.stream_step(plan, state, x)

    return library.transform(step)


def stream(
    library: Library,
    plan: StreamPlan,
    state: StreamState,
    x: Array,
    chunks: Iterable[int],
    padding: Array | None = None,
) -> tuple[Numbers, StreamState]:
    """Return the outputs for tokens that come in chunks of these lengths, 0 for a single step, and the state."""
    parts, t = [], 0
    for chunk in chunks:
        if chunk == 0:
            y, state = step_of(library)(plan, state, x[..., t, :])
            y = library.to_numpy(y)[..., None, :]
        else:
            y, state = streaming.stream_prefill(plan, state, x[..., t : t + chunk, :], padding=padding)
            y, padding = library.to_numpy(y), None
        parts.append(y)
        t += max(chunk, 1)
    return np.concatenate(parts, axis=-2), state


def split(n: int, prompt: int) -> list[int]:
    """Return the chunks of a prompt and then steps, `n` tokens in all."""
    return [prompt] * (prompt > 0) + [0] * (n - prompt)
