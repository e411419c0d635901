"""Streams of JAX arrays: compiled steps whose positions are arguments, so that no position is a program of its own.

XLA writes into a donated tape in place where all that is read of it is read first; in the bodies of loops and branches
it copies the whole tape. So large tapes are changed by programs of their own, a step by one and a tile by another, and
a loop over tokens works on a window of one leaf, aligned with the tape's leaves: a short tape like any other.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from tmm_core import causal_toeplitz_matmul
from tmm_core._arrays.properties import nan_where
from tmm_core.streaming import _tiles
from tmm_core.streaming._states import StreamState
from tmm_core.streaming._steps import Parts, Steps

__all__ = ["JaxSteps"]

Array = jax.Array


class JaxSteps(Steps):
    """How the streams of one plan go on; a tree of arrays, so that programs take it as an argument."""

    def step(self, state: StreamState, x: Array) -> Array:
        """Return the output for the next token, and bring the state up to date; positions may be traced."""
        at, known = state.at, not isinstance(state.at, jax.core.Tracer)
        x = self.checked(state, x) if known else self.received(x, state.shape)
        x = x.reshape(state.rows).astype(self.parts.lags.dtype)
        y, tape = _advance(self, state.tape, at, state.position, state.padding, x)
        if not known:
            y = jnp.where(at >= state.end, jnp.nan, y)
            tape = self.with_any_tile(tape, at + 1)
        else:
            tape = self.tiled(tape, at + 1)
        state.tape, state.at = tape, at + 1
        result: Array = y.reshape(state.shape).astype(self.parts.dtype)
        return result

    def prefill(self, state: StreamState, x: Array, padding: Array | None) -> Array:
        """Return the outputs for the next tokens; where positions are traced, the tape keeps its length."""
        (rows, d), n, length = state.rows, x.shape[-2], state.tape.shape[1]
        at, position, flat = state.at, state.position, x.reshape(rows, n, d)
        if isinstance(position, jax.core.Tracer):
            y, tape = self.resumed(state.tape, at, position, state.padding, flat)
            y = jnp.where(at + n > state.end, jnp.nan, y)
            state.end = cast(int, jnp.minimum(length, state.end - at - n))
            state.tape, state.origin, state.at = tape, position + n, cast(int, jnp.zeros_like(at))
        elif position == 0:
            y, tape = _begin(self, flat, padding, length - n)
            state.padding = padding
            state.turn_to(tape, n)
        else:
            state.origin, state.at = int(state.origin), int(at)
            y = super().prefill(state, x, padding)
        result: Array = y.reshape(x.shape).astype(self.parts.dtype)
        return result

    def tile_after(self, u: int, length: int) -> int:
        """Return the size of the tile that is due after u entries of a tape, 0 for none."""
        if u % self.leaf or u >= length:
            return 0
        return _tiles.tile_size(u, self.parts.lags.shape[-1])

    def advanced(self, tape: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the output `(b, d)` of the input x at an entry, and the tape, or window of one, with x in it."""
        lags, length = self.parts.lags, tape.shape[1]
        size = min(self.leaf, length)
        at = jnp.asarray(at, "int32")
        begin = jnp.minimum(at - at % self.leaf, length - size)
        here = at - begin
        x = nan_where(~jnp.isfinite(x), x)
        window = lax.dynamic_slice_in_dim(tape, begin, size, 1)  # (b, size, d)
        entries = jnp.arange(size)
        first = jnp.maximum(here - at % self.leaf, here - lags.shape[-1] + 1)
        read = ((entries >= first) & (entries < here))[:, None]
        recent = jnp.where((entries == here)[:, None], x[:, None], jnp.where(read, window, 0))
        # Entry i has the weight w[here - i]: a slice of the lags in reverse, with zeros on both sides.
        used = lags[..., :size]
        back = jnp.pad(jnp.flip(used, -1), ((0, 0), (0, 0), (size - used.shape[-1], size)))
        weights = lax.dynamic_slice_in_dim(back, size - 1 - here, size, -1)  # (h, m, size)
        weights = jnp.where((entries >= first) & (entries <= here), weights, 0)
        y = lax.dynamic_slice_in_dim(tape, at, 1, 1)[:, 0] + _tiles.weighted(jnp.flip(weights, -1), recent)
        tape = lax.dynamic_update_slice_in_dim(tape, x[:, None], _after(y, at), 1)
        if not self.plain:
            heads = lags.shape[0]
            y = self.finished(y.reshape(y.shape[0], heads, -1), position, padding).reshape(y.shape)
        return y, tape

    def with_tile(self, tape: Array, u: Any, size: int) -> Array:
        """Return the tape after the tile at u: the contributions of the last `size` inputs to as many outputs."""
        length = tape.shape[1]
        u = jnp.asarray(u, "int32")
        block = lax.dynamic_slice_in_dim(tape, u - size, size, 1)
        gained = self.product(self.parts.lags[..., : 2 * size], _tiles.extended(block, size))[:, size:]
        begin = jnp.minimum(u, length - size)  # a tape may end before the tile does
        gained = lax.dynamic_slice_in_dim(jnp.pad(gained, ((0, 0), (size, 0), (0, 0))), size - (u - begin), size, 1)
        total = lax.dynamic_slice_in_dim(tape, begin, size, 1) + gained
        return lax.dynamic_update_slice_in_dim(tape, total, _after(total, begin), 1)

    def tiled(self, tape: Array, u: Any) -> Array:
        """Return the tape, donated, after the tile at u, if there is one."""
        size = self.tile_after(int(u), tape.shape[1])
        return _add_tile(self, tape, u, size) if size else tape

    def closed(self, tape: Array, window: Array, u: int) -> tuple[Array, Array]:
        """Return the tape, donated, after a window's leaf, which ends at u, and the window of the leaf that follows."""
        pair: tuple[Array, Array] = _close(self, tape, window, u, self.tile_after(u, tape.shape[1]))
        return pair

    def with_any_tile(self, tape: Array, u: Any) -> Array:
        """Return the tape after the tile at u, if there is one; u is traced, and the tape may be copied."""
        length = tape.shape[1]
        sizes = [self.leaf << j for j in range(max(0, (length - 1) // self.leaf).bit_length())]
        for size in sizes:
            last = size == sizes[-1] or _tiles.tile_size(2 * size, self.parts.lags.shape[-1]) == size
            due = (u % size == 0) & (u < length) & (last | (u % (2 * size) != 0))
            tape = lax.cond(due, functools.partial(self.with_tile, u=u, size=size), lambda tape: tape, tape)
            if last:
                break
        return tape

    def begun(self, x: Array, padding: Array | None, length: int) -> tuple[Array, Array]:
        """Return the outputs for a prompt `(b, n, d)`, and a tape of `length` entries for the times after it."""
        state = StreamState(_Room(length), self, (x.shape[0], x.shape[2]), jnp.zeros((1, x.shape[1] + length, 1)))  # type: ignore[arg-type]
        state.rows = (x.shape[0], x.shape[2])
        return super().prefill(state, x, padding), state.tape

    def resumed(self, tape: Array, at: Any, position: Any, padding: Array | None, x: Array) -> tuple[Array, Array]:
        """Return the outputs for tokens `(b, n, d)` that follow, and a tape, as long, that begins after them."""
        n, length = x.shape[1], tape.shape[1]
        x = nan_where(~jnp.isfinite(x), x.astype(tape.dtype))
        pending = self._flushed(tape, jnp.asarray(at, "int32"))
        pending = _moved(pending, -jnp.asarray(at, "int32"))
        y = self.product(self.parts.lags, _tiles.extended(x, length))
        total = jnp.pad(pending, ((0, 0), (0, n), (0, 0))) + y  # (b, length + n, d)
        y = total[:, :n]
        if not self.plain:
            positions = position + jnp.arange(n)
            finish = functools.partial(self.finished, padding=padding)
            heads = y.reshape(*y.shape[:2], self.parts.lags.shape[0], -1)
            y = jax.vmap(finish, in_axes=(1, 0), out_axes=1)(heads, positions).reshape(y.shape)
        return y, total[:, n:]

    def _flushed(self, tape: Array, at: Array) -> Array:
        """Return the tape whose outputs from `at` on have all that the inputs before contribute; see `_tiles.flushed`.

        Each binary block that the position may have is multiplied, and counts if it has it.
        """
        length = tape.shape[1]
        entries = jnp.arange(length)
        inputs = jnp.where((entries < at)[:, None], tape, 0)
        total = tape
        for size in [self.leaf << j for j in range((length // self.leaf).bit_length())]:
            begin = at // (2 * size) * (2 * size)
            block = lax.dynamic_slice_in_dim(jnp.pad(inputs, ((0, 0), (0, size), (0, 0))), begin, size, 1)
            total = total + self._reaching(block, begin, begin + 2 * size, (at & size) != 0, length)
        begin = at - at % self.leaf
        block = lax.dynamic_slice_in_dim(jnp.pad(inputs, ((0, 0), (0, self.leaf), (0, 0))), begin, self.leaf, 1)
        return total + self._reaching(block, begin, at, at % self.leaf != 0, length)

    def _reaching(self, block: Array, begin: Array, first: Array, counts: Array, length: int) -> Array:
        """Return what a block of inputs from entry `begin` contributes to outputs from `first` on, if it counts."""
        whole = self.product(self.parts.lags, _tiles.extended(block, length))[:, :length]
        return jnp.where((counts & (jnp.arange(length) >= first))[:, None], _moved(whole, begin), 0)


class _Room:
    """What a state asks of its plan."""

    def __init__(self, positions: int) -> None:
        self.positions = positions


def _moved(a: Array, by: Any) -> Array:
    """Return `(b, n, d)` later by some entries, or earlier, with zeros where nothing comes from."""
    n = a.shape[1]
    wide = jnp.pad(a, ((0, 0), (n, n), (0, 0)))
    return lax.dynamic_slice_in_dim(wide, n - by, n, 1)


def _after(read: Array, at: Array) -> Array:
    """Return `at` as a number that exists only after `read` does.

    What must be read of a tape is then read before it is written to, and XLA copies nothing. Bits of a number without
    its sign are no negative integer, which the compiler does not know.
    """
    bits = lax.bitcast_convert_type(jnp.abs(jnp.real(read).astype("float32").ravel()[:1]), jnp.int32)
    return at + jnp.sum(jnp.minimum(bits, 0))


@functools.partial(jax.jit, donate_argnums=1)
def _advance(steps: JaxSteps, tape: Array, at: Any, position: Any, padding: Any, x: Array) -> tuple[Array, Array]:
    return steps.advanced(tape, at, position, padding, x)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=1)
def _add_tile(steps: JaxSteps, tape: Array, u: Any, size: int) -> Array:
    return steps.with_tile(tape, u, size)


@functools.partial(jax.jit, static_argnums=3)
def _begin(steps: JaxSteps, x: Array, padding: Any, length: int) -> tuple[Array, Array]:
    return steps.begun(x, padding, length)


@functools.partial(jax.jit, static_argnums=4, donate_argnums=1)
def _close(steps: JaxSteps, tape: Array, window: Array, u: Any, size: int) -> tuple[Array, Array]:
    u = jnp.asarray(u, "int32")
    leaf = window.shape[1]
    tape = lax.dynamic_update_slice_in_dim(tape, window, u - leaf, 1)
    if size:
        tape = steps.with_tile(tape, u, size)
    return tape, lax.dynamic_slice_in_dim(tape, u, leaf, 1)


# Trees of arrays -----------------------------------------------------------------------------------------------------


def _steps_parts(steps: JaxSteps) -> tuple[Any, Any]:
    parts = steps.parts
    rest = replace(parts, lags=None, sums=None, bias=None, dtype=jnp.dtype(parts.dtype))
    return (parts.lags, parts.sums, parts.bias), (rest, steps.leaf, steps.spoiled, steps.half)


def _steps_of(rest: Any, arrays: Any) -> JaxSteps:
    """Return the steps with other arrays; nothing of them is looked at, for they may stand for anything."""
    parts, leaf, spoiled, half = rest
    steps = object.__new__(JaxSteps)
    lags, sums, bias = arrays
    steps.parts = Parts(lags, sums, bias, parts.capacity, parts.leaf, parts.backend, parts.dtype)
    steps.leaf, steps.spoiled, steps.half = leaf, spoiled, half
    steps.product, steps.xp = functools.partial(causal_toeplitz_matmul, backend=parts.backend), jnp
    steps.plain = sums is None and bias is None
    return steps


def _state_parts(state: StreamState) -> tuple[Any, Any]:
    return (state.tape, state.origin, state.at, state.padding), (state.plan, state.steps, state.shape)


def _state_of(rest: Any, children: Any) -> StreamState:
    state = object.__new__(StreamState)
    state.tape, state.origin, state.at, state.padding = children
    state.plan, state.steps, state.shape = rest
    if isinstance(state.tape, Array):
        state.rows = (state.tape.shape[0], state.tape.shape[2])
        more = 0 if state.padding is None else jnp.min(state.padding)
        state.end = jnp.minimum(state.tape.shape[1], state.plan.positions + more - state.origin)  # type: ignore[assignment]
    return state


jax.tree_util.register_pytree_node(JaxSteps, _steps_parts, _steps_of)
jax.tree_util.register_pytree_node(StreamState, _state_parts, _state_of)
