"""Direct sums: exact causality at a cost of O(n^2), and the fastest way for few times."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator

from .._arrays.exchange import Array, dtype_name, namespace_of
from .._arrays.properties import conj, device_of, matmul, nan_where, shift_channels, surely_all

__all__ = ["correlation", "normalised", "product", "solve", "toeplitz_block"]

ROWS_AT_ONCE = 1 << 20
"""Entries of a Toeplitz matrix that a direct product holds at a time."""

COLUMNS = 64
"""Terms summed in one go: sums of sums err less for equal terms (all in one go broke the law at n = 1031)."""


def product(w: Array, x: Array, *, adjoint: bool) -> Array:
    """Return `T(w) x` or `T(w)^H x` for finite arrays."""
    return _rescued(functools.partial(_product, adjoint=adjoint), w, x)


def correlation(x: Array, g: Array, *, lags: int, heads: int, kernel_size: int) -> Array:
    """Return the correlation `(h, m, lags)` of finite arrays; `lags` are at most the length."""
    return _rescued(functools.partial(_correlation, lags=lags, heads=heads, kernel_size=kernel_size), x, g)


def _product(w: Array, x: Array, *, adjoint: bool) -> Array:
    """Return the product by matrices `T[t, s] = w[t - s]`, some rows of the output at a time."""
    xp = namespace_of(w, x)
    heads, kernel_size, lags = w.shape
    n, d = x.shape[-2:]
    w = conj(w) if adjoint else w
    x_by_head = xp.moveaxis(xp.reshape(x, (*x.shape[:-1], heads, d // heads)), -2, -3)  # (..., h, n, d / h)

    def terms(start: int, stop: int) -> Iterator[Array]:
        """Yield what the outputs of these times read, one row of the kernel and some inputs after the other."""
        low, high = (start, min(n, stop + lags - 1)) if adjoint else (max(0, start - lags + 1), stop)
        for i in range(kernel_size):
            offset = (i - kernel_size + 1) if adjoint else (kernel_size - 1 - i)
            for first in range(low, high, COLUMNS):
                last = min(high, first + COLUMNS)
                block = toeplitz_block(w[:, i, :], (start, stop), (first, last), transpose=adjoint)
                yield matmul(block, shift_channels(x_by_head[..., first:last, :], offset, 1))

    rows = max(1, ROWS_AT_ONCE // (heads * n))
    parts = [functools.reduce(operator.iadd, terms(t, min(n, t + rows))) for t in range(0, n, rows)]
    y = parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)
    return xp.reshape(xp.moveaxis(y, -3, -2), x.shape)


def toeplitz_block(w: Array, rows: tuple[int, int], columns: tuple[int, int], *, transpose: bool = False) -> Array:
    """Return `w[t - s]` for t in `rows`, s in `columns` (`w[s - t]` if `transpose`), zero outside the lags."""
    xp = namespace_of(w)
    device = device_of(w)
    t = xp.reshape(xp.arange(*rows, device=device), (-1, 1))
    s = xp.reshape(xp.arange(*columns, device=device), (1, -1))
    lag = s - t if transpose else t - s
    inside = (lag >= 0) & (lag < w.shape[-1])
    lag = xp.where(inside, lag, xp.zeros_like(lag))
    values = xp.reshape(xp.take(w, xp.reshape(lag, (-1,)), axis=-1), (*w.shape[:-1], *lag.shape))
    return xp.where(inside, values, xp.zeros_like(values))


def _correlation(x: Array, g: Array, *, lags: int, heads: int, kernel_size: int) -> Array:
    """Return the sums `sum_t g[t] conj(x[t - j])` over time, rows and channels, lag by lag in blocks."""
    xp = namespace_of(x, g)
    n, d = x.shape[-2:]
    width = d // heads

    def flat(a: Array) -> Array:
        """Return `(h, n, rows * d / h)`."""
        a = xp.reshape(a, (-1, n, heads, width))
        return xp.reshape(xp.permute_dims(a, (2, 1, 0, 3)), (heads, n, -1))

    g = flat(g)
    rows = []
    for i in range(kernel_size):
        shifted = xp.matrix_transpose(conj(flat(shift_channels(x, kernel_size - 1 - i, heads))))
        rows.append(_diagonal_sums(g, shifted, lags))
    return xp.stack(rows, axis=-2)


def _diagonal_sums(g: Array, x: Array, lags: int) -> Array:
    """Return the sums of `g @ x`, of shape `(h, n, n)`, along its first `lags` lower diagonals."""
    xp = namespace_of(g)
    heads, n, _ = g.shape
    step = max(1, ROWS_AT_ONCE // (heads * n))
    total = xp.zeros((heads, n), dtype=g.dtype, device=device_of(g))
    for start in range(0, n, step):
        stop = min(n, start + step)
        block = matmul(g[:, start:stop, :], x[..., :stop])
        t = xp.reshape(xp.arange(start, stop, device=device_of(g)), (-1, 1))
        lag = xp.reshape(xp.arange(n, device=device_of(g)), (1, -1))
        source = t - lag
        inside = source >= 0
        index = xp.where(inside, source, xp.zeros_like(source)) + (t - start) * stop
        values = xp.take(xp.reshape(block, (heads, -1)), xp.reshape(index, (-1,)), axis=-1)
        values = xp.reshape(values, (heads, stop - start, n))
        total = total + xp.sum(xp.where(inside, values, xp.zeros_like(values)), axis=-2)
    return total[:, :lags]


def solve(w: Array, y: Array) -> Array:
    """Return x with `T(w) x = y` for few times n, by forward substitution: `w` is `(h, k)`, k <= n, y `(..., n, d)`.

    No entry touches one after it, so that those before an overflow do not know of it.
    """
    xp = namespace_of(w, y)
    (heads, lags), (n, d) = w.shape, y.shape[-2:]
    w = nan_where(~xp.isfinite(w) | (w[:, :1] == 0), w)  # only traced values come here with a first lag of zero
    y = nan_where(~xp.isfinite(y), y)
    y = xp.reshape(y, (*y.shape[:-1], heads, d // heads))  # (..., n, h, d / h)
    columns = toeplitz_block(w, (0, n), (0, n))  # (h, n, n)
    times = xp.reshape(xp.arange(n, device=device_of(w)), (-1, 1, 1))
    x = []
    for t in range(n):  # in arrays of one shape, which eager JAX compiles once
        x.append(y[..., t, :, :] / w[:, :1])
        column = xp.permute_dims(columns[..., t], (1, 0))[..., None]  # (n, h, 1)
        read = (times > t) & (times < t + lags)
        y = y - xp.where(read, column * x[-1][..., None, :, :], xp.zeros_like(y))
    return xp.reshape(xp.stack(x, axis=-3), (*y.shape[:-2], d))


def normalised(w: Array, y: Array) -> tuple[Array, Array]:
    """Return an equation of the same solution whose first lag is less than 4: no product is larger than what it gives.

    Filters and their right-hand sides are divided by a power of two, which rounds nothing, unless a lag would get lost.
    """
    xp = namespace_of(w, y)
    size = xp.abs(w)
    limits = xp.finfo(size.dtype)
    power = xp.ones_like(size[:, :1])
    step = 64 if dtype_name(size.dtype) == "float32" else 512
    while step > 1:  # not by logarithms and powers, which some libraries round
        larger = power * 2.0**step
        power = xp.where(size[:, :1] >= larger, larger, power)
        step //= 2
    least = xp.min(xp.where(size > 0, size, power), axis=-1, keepdims=True)
    factor = 1 / xp.where(least / power < limits.smallest_normal, xp.ones_like(power), power)
    by_head = xp.reshape(y, (*y.shape[:-1], w.shape[0], y.shape[-1] // w.shape[0]))
    return w * factor, xp.reshape(by_head * factor, y.shape)


def _rescued(operation: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Return the bilinear `operation(a, b)`, computed once more from smaller inputs where it overflowed on the way.

    The factor is a fixed power of two: one that depended on the values would let an output look at the future.
    """
    xp = namespace_of(a, b)
    y = operation(a, b)
    finite = xp.isfinite(y)
    if surely_all(finite):
        return y
    factor = math.ldexp(1.0, -80 if dtype_name(y.dtype) in ("float32", "complex64") else -600)
    # Back by a factor that XLA cannot know: it would divide once by factor * factor, which underflows to zero.
    back = xp.where(finite, xp.ones_like(y), xp.full_like(y, 1 / factor))
    return xp.where(finite, y, operation(a * factor, b * factor) * back * back)
