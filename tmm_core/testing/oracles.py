"""What the laws compare with: the definitions written out densely in NumPy, and the error law."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backend import ERROR_CONSTANT

__all__ = [
    "EPS",
    "ERROR_CONSTANT",
    "Numbers",
    "channel_norms",
    "check_close",
    "check_equal",
    "computed_dtype",
    "correlation_bound",
    "dense_correlation",
    "dense_product",
    "document_positions",
    "error_bound",
    "error_factor",
    "lag_matrix",
    "nan_outputs",
    "normal",
]

Numbers = npt.NDArray[Any]

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
EPS |= {"complex64": EPS["float32"], "complex128": EPS["float64"]}


def computed_dtype(dtype: str) -> str:
    """Return the dtype in which results of a dtype are computed."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float64") -> Numbers:
    """Return normal numbers that the dtype represents, so that oracle and library read the same ones."""
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    if dtype == "bfloat16":
        return np.round(values * 16) / 16
    return values.astype(dtype).astype(np.complex128 if dtype.startswith("complex") else np.float64)


def lag_matrix(w: Numbers, n: int) -> Numbers:
    """Return `T[..., t, s] = w[..., t - s]`, `(..., n, n)`."""
    lags = np.zeros((*w.shape[:-1], n), w.dtype)
    lags[..., : w.shape[-1]] = w[..., :n]
    return np.tril(lags[..., np.subtract.outer(np.arange(n), np.arange(n))])


def dense_product(w: Numbers, x: Numbers, *, adjoint: bool = False, ids: Numbers | None = None) -> Numbers:
    """Return the product of `(h, m, k)` and `(..., n, d)` by its definition, or the adjoint's, in the inputs' dtype."""
    heads, kernel_size, _ = w.shape
    n, by_head = x.shape[-2], _by_head(x, heads)
    matrices = lag_matrix(w, n).reshape(heads, kernel_size, *[1] * (x.ndim - 2), n, n)
    if ids is not None:
        matrices = matrices * (ids[..., :, None] == ids[..., None, :])
    y = np.zeros(by_head.shape, np.result_type(w, x))
    for i, (target, source) in enumerate(_joined_channels(kernel_size, by_head.shape[-1])):
        if adjoint:
            y[..., source] += matrices[:, i].conj().mT @ by_head[..., target]
        else:
            y[..., target] += matrices[:, i] @ by_head[..., source]
    return np.moveaxis(y, 0, -2).reshape(x.shape)


def dense_correlation(
    x: Numbers, g: Numbers, lags: int, heads: int, kernel_size: int, ids: Numbers | None = None
) -> Numbers:
    """Return the correlation, `(heads, kernel_size, lags)`, by its definition, in the inputs' dtype."""
    rows, (n, d) = math.prod(x.shape[:-2]), x.shape[-2:]
    ids = None if ids is None else np.broadcast_to(ids, x.shape[:-1]).reshape(rows, n)
    x, g = (np.ascontiguousarray(_by_head(a.reshape(rows, n, d), heads)) for a in (x.conj(), g))
    c = np.zeros((heads, kernel_size, lags), np.result_type(x, g))
    for i, (target, source) in enumerate(_joined_channels(kernel_size, x.shape[-1])):
        for j in range(min(lags, n)):
            before, after = x[..., : n - j, source], g[..., j:, target]
            if ids is not None:
                after = after * (ids[:, j:] == ids[:, : n - j])[..., None]
            c[:, i, j] = np.einsum("hrtc,hrtc->h", after, before)
    return c


def _by_head(a: Numbers, heads: int) -> Numbers:
    """Return `(heads, ..., n, d / heads)` of `(..., n, d)`."""
    return np.moveaxis(a.reshape(*a.shape[:-1], heads, a.shape[-1] // max(heads, 1)), -2, 0)


def _joined_channels(kernel_size: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield the channels of a head that each row of a kernel joins: of the output and of the input."""
    for offset in reversed(range(kernel_size)):
        yield slice(offset, None), slice(max(width - offset, 0))


def channel_norms(a: Numbers) -> Numbers:
    """Return the norm over time of each channel, `(..., 1, d)`, of numbers of any size."""
    norms: Numbers = np.hypot.reduce(np.abs(a), axis=-2, keepdims=True)
    return norms


def error_factor(n: int, dtype: str) -> float:
    """Return the error law's bound over `||w||_2 * ||x||_2` for `n` times, that of float32 for halves."""
    return ERROR_CONSTANT * EPS[computed_dtype(dtype)] * math.log2(max(n, 2))


def error_bound(w: Numbers, x: Numbers, dtype: str, *, adjoint: bool = False) -> Numbers:
    """Return the error law's bound for each row and channel, `(..., 1, d)`: over all channels that an output reads."""
    norms = np.hypot.reduce(np.abs(w), axis=-1, keepdims=True)
    return error_factor(x.shape[-2], dtype) * dense_product(norms, channel_norms(x), adjoint=adjoint)


def correlation_bound(x: Numbers, g: Numbers, dtype: str, heads: int, kernel_size: int) -> Numbers:
    """Return the error law's bound for each row of lags, `(heads, kernel_size, 1)`: over all channels that it joins."""
    norms = channel_norms(x), channel_norms(g)
    return error_factor(x.shape[-2], dtype) * dense_correlation(*norms, 1, heads, kernel_size)


def document_positions(shape: tuple[int, ...], ids: Numbers | None = None, *, from_end: bool = False) -> Numbers:
    """Return the position of each time in its document, for ids that are broadcast to a shape `(..., n)`."""
    before = dense_product(np.ones((1, 1, shape[-1])), np.ones((*shape, 1)), adjoint=from_end, ids=ids)
    return before[..., 0].astype(int) - 1


def nan_outputs(
    bad_w: Numbers, bad_x: Numbers, *, adjoint: bool = False, ids: Numbers | None = None
) -> npt.NDArray[np.bool_]:
    """Return, entry by entry, where the law wants NaN of a product."""
    n, d = bad_x.shape[-2:]
    heads, _, lags = bad_w.shape
    reached = dense_product(np.ones(bad_w.shape), bad_x.astype(float), adjoint=adjoint, ids=ids) > 0.5
    bad_lags = np.arange(n + 1) == np.full((heads, 1), n)
    bad_lags[:, :lags] |= bad_w[..., : n + 1].any(1)
    first = np.repeat(np.argmax(bad_lags, axis=1), d // heads)
    return np.asarray(reached | (document_positions(bad_x.shape[:-1], ids, from_end=adjoint)[..., None] >= first))


def check_close(found: Any, expected: Any, bound: Any, what: str) -> None:
    """Fail, with figures, where an error is above its bound."""
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: expected shape {expected.shape}, got {found.shape}")
    error = np.abs(found - expected)
    if not np.all(error <= bound):
        worst = np.max(error / np.maximum(np.broadcast_to(bound, error.shape), 1e-300))
        raise AssertionError(f"{what}: error {np.max(error):.3g}, up to {worst:.3g} times the bound")


def check_equal(found: Numbers, expected: Numbers, what: str) -> None:
    """Fail where a bit differs; NaNs are equal."""
    if not np.array_equal(found, expected, equal_nan=True):
        raise AssertionError(f"{what}: expected bit-identical values, {np.sum(found != expected)} differ")
