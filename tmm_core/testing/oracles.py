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
    "channel_pairs",
    "check_close",
    "check_equal",
    "dense_correlation",
    "dense_product",
    "error_bound",
    "error_factor",
    "lag_matrix",
    "nan_outputs",
    "normal",
]

Numbers = npt.NDArray[Any]

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
EPS |= {"complex64": EPS["float32"], "complex128": EPS["float64"]}


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float64") -> Numbers:
    """Return normal numbers that the dtype represents, so that oracle and library read the same ones."""
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    if dtype == "bfloat16":
        return np.round(values * 16) / 16
    return values.astype(dtype).astype(np.complex128 if dtype.startswith("complex") else np.float64)


def lag_matrix(w: Numbers, n: int, ids: Numbers | None) -> Numbers:
    """Return `T[..., t, s] = w[..., t - s]` within documents."""
    lag = np.arange(n)[:, None] - np.arange(n)
    matrix: Numbers = np.where((lag >= 0) & (lag < w.shape[-1]), w[..., np.clip(lag, 0, w.shape[-1] - 1)], 0)
    same: Numbers = np.ones((n, n), bool) if ids is None else ids[:, None] == ids
    return matrix * same


def channel_pairs(heads: int, kernel_size: int, d: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield head, kernel row, and the channels that the row joins: of the output and of the input."""
    width = d // heads
    for c in range(d):
        for i in range(kernel_size):
            source = c - (kernel_size - 1) + i
            if source >= c // width * width:
                yield c // width, i, c, source


def dense_product(w: Numbers, x: Numbers, *, adjoint: bool = False, ids: Numbers | None = None) -> Numbers:
    """Return the product by its definition."""
    heads, kernel_size, _ = w.shape
    matrix = lag_matrix(w, x.shape[-2], ids)
    y = np.zeros(x.shape, np.result_type(w, x))
    for head, i, c, source in channel_pairs(heads, kernel_size, x.shape[-1]):
        if adjoint:
            y[..., source] += x[..., c] @ matrix[head, i].conj()
        else:
            y[..., c] += x[..., source] @ matrix[head, i].T
    return y


def dense_correlation(
    x: Numbers, g: Numbers, lags: int, heads: int, kernel_size: int, ids: Numbers | None = None
) -> Numbers:
    """Return the correlation by its definition."""
    n = x.shape[-2]
    c = np.zeros((heads, kernel_size, lags), np.result_type(x, g))
    lag = np.arange(n)[:, None] - np.arange(n)
    same = np.ones((n, n), bool) if ids is None else ids[:, None] == ids
    for head, i, target, source in channel_pairs(heads, kernel_size, x.shape[-1]):
        products = np.einsum("rt,rs->ts", *(a.reshape(math.prod(a.shape[:-1]), n)
                                            for a in (g[..., target], x[..., source].conj())))  # fmt: skip
        products = np.where(same, products, 0)
        c[head, i, : min(lags, n)] += [products[lag == j].sum() for j in range(min(lags, n))]
    return c


def channel_norms(a: Numbers) -> Numbers:
    """Return the norm over time of each channel, `(..., 1, d)`."""
    norms: Numbers = np.sqrt((np.abs(a) ** 2).sum(-2, keepdims=True))
    return norms


def error_bound(w: Numbers, x: Numbers, dtype: str) -> Numbers:
    """Return the error law's bound for each row and channel, `(..., 1, d)`: over all channels that an output reads."""
    heads, kernel_size, _ = w.shape
    norms, total = channel_norms(x), np.zeros((*x.shape[:-2], 1, x.shape[-1]))
    filters = np.sqrt((np.abs(w) ** 2).sum(-1))
    for head, i, c, source in channel_pairs(heads, kernel_size, x.shape[-1]):
        total[..., c] += filters[head, i] * norms[..., source]
        if kernel_size > 1:
            total[..., source] += filters[head, i] * norms[..., c]
    return error_factor(x.shape[-2], dtype) * total


def error_factor(n: int, dtype: str) -> float:
    """Return the error law's bound over `||w||_2 * ||x||_2` for `n` times."""
    return ERROR_CONSTANT * EPS[dtype] * math.log2(max(n, 2))


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


def nan_outputs(bad_w: Numbers, bad_x: Numbers, adjoint: bool, ids: Numbers | None) -> npt.NDArray[np.bool_]:
    """Return, entry by entry, where the law wants NaN."""
    heads = bad_w.shape[0]
    n, d = bad_x.shape[-2:]
    ids = np.zeros(n) if ids is None else ids
    nans = np.zeros(bad_x.shape, bool)
    reach = dense_product(np.ones(bad_w.shape), bad_x, adjoint=adjoint, ids=ids) > 0.5
    nans |= reach
    for t in range(n):
        same = np.flatnonzero(ids == ids[t])
        position = same[-1] - t if adjoint else t - same[0]
        for head in range(heads):
            if bad_w[head, :, : position + 1].any():
                nans[..., t, head * d // heads : (head + 1) * d // heads] = True
    return nans
