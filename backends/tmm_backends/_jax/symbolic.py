"""Products of signals whose length is a symbol, in programs that are exported for any: in windows of a known length.

The times are cut into blocks that the filter does not reach over, and each block is computed in a window with the one
before it (for the adjoint, after it). So the number of windows is the only symbol, and windows are as rows of a batch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tmm_core.backend import (
    InputError,
    Method,
    definition_correlate,
    definition_matmul,
    nan_mask_of_lags,
    nan_mask_of_outputs,
    nan_where,
    split_finite,
)

__all__ = ["correlate", "matmul"]

Array = jax.Array

LEAST_BLOCK = 64
"""Windows of two such blocks are multiplied by direct sums."""


def matmul(w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
    """Return the product; what windows do not see of non-finite entries, masks do."""
    size = _block(w.shape[-1])
    plain_w, bad_w = split_finite(w)
    plain_x, bad_x = split_finite(x)
    ids = None if segment_ids is None else _windows(segment_ids[..., None], size, ahead=adjoint, fill="edge")[..., 0]
    windows = _windows(plain_x, size, ahead=adjoint, fill="constant")
    y = definition_matmul(plain_w, windows, adjoint=adjoint, method=method, segment_ids=ids)
    y = y[..., :size, :] if adjoint else y[..., size:, :]
    y = y.reshape(*x.shape[:-2], y.shape[-3] * size, x.shape[-1])[..., : x.shape[-2], :]
    nan_mask = nan_mask_of_outputs(w, x, bad_w, bad_x, adjoint=adjoint, segment_ids=segment_ids)
    masked: Array = nan_where(nan_mask, y)
    return masked


def correlate(
    x: Array, g: Array, /, *, lags: int, heads: int, kernel_size: int, method: Method, segment_ids: Array | None
) -> Array:
    """Return the correlation: outputs of each block with the inputs of its window, added up as rows are."""
    size = _block(lags)
    plain_x, bad_x = split_finite(x)
    plain_g, bad_g = split_finite(g)
    ids = None if segment_ids is None else _windows(segment_ids[..., None], size, ahead=False, fill="edge")[..., 0]
    inputs, outputs = (_windows(a, size, ahead=False, fill="constant") for a in (plain_x, plain_g))
    outputs = outputs.at[..., :size, :].set(0)
    shape: dict[str, Any] = {"lags": lags, "heads": heads, "kernel_size": kernel_size}
    c = definition_correlate(inputs, outputs, **shape, method=method, segment_ids=ids)
    masked: Array = nan_where(nan_mask_of_lags(x, g, bad_x, bad_g, **shape, segment_ids=segment_ids), c)
    return masked


def _block(lags: Any) -> int:
    """Return the times of a block, no fewer than a filter reaches back over."""
    if not isinstance(lags, int):
        raise InputError(
            f"the filter has {lags} lags, a symbol: a program for any length is compiled for a known number of lags; "
            "give the filter a shape of numbers"
        )
    return max(LEAST_BLOCK, lags - 1)


def _windows(a: Array, size: int, *, ahead: bool, fill: str) -> Array:
    """Return `(..., n, d)` as `(..., blocks, 2 * size, d)`: each block after the one before it, or before the next."""
    count = (a.shape[-2] + size - 1) // size
    rest = count * size - a.shape[-2]
    around = (0, rest + size) if ahead else (size, rest)
    padded = jnp.pad(a, (*((0, 0) for _ in a.shape[:-2]), around, (0, 0)), mode=fill)
    blocks = padded.reshape(*a.shape[:-2], count + 1, size, a.shape[-1])
    return jnp.concatenate([blocks[..., :-1, :, :], blocks[..., 1:, :, :]], axis=-2)
