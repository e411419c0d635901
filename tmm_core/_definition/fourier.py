"""Products by transforms: right-angle convolution for reals, zero padding for complex signals.

Right-angle convolution: let r[t] = exp(i pi t / 2N), and let y be the cyclic convolution, of length N, of r*x and r*w.
Then the real part of conj(r)*y is the causal product, and its imaginary part is what wrapped around: a sum that wraps
past N is multiplied by r[N] = i. So nothing is padded to twice its length.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable

from .._arrays.exchange import Array, dtype_name, namespace_of
from .._arrays.properties import conj, device_of, is_real, shift_channels, surely_all

__all__ = ["ERROR_CONSTANT", "correlation", "error_factor", "fast_length", "product"]

PIECES = 4
PIECE = 1 << 18
"""Signals of 4 pieces with so many entries or more are transformed by pieces: groups of heads, and of channels."""

ERROR_CONSTANT = 2.0
"""The constant c of the error law `|error| <= c * eps * log2(n) * ||w||_2 * ||x||_2`, for every engine."""


@functools.cache
def _fast_lengths() -> tuple[int, ...]:
    odd = [3**a * 5**b * 7**c for a in range(8) for b in range(4) for c in range(3)]
    return tuple(sorted({f << a for a in range(41) for f in odd if f <= 2187}))


def fast_length(n: int) -> int:
    """Return the smallest length >= n that has only the factors 2, 3, 5 and 7, few of them odd.

    >>> fast_length(1025)
    1050
    """
    lengths = _fast_lengths()
    return lengths[bisect.bisect_left(lengths, n)]


def product(w: Array, x: Array, *, adjoint: bool) -> Array:
    """Return `T(w) x` or `T(w)^H x` for finite arrays."""
    heads = w.shape[0]
    x_by_head = _by_head(x, heads)  # (..., n, h, d / h)
    groups, cuts = _pieces(x_by_head)
    parts = [_product(w[a:b, ...], x_by_head[..., a:b, :], cuts, adjoint) for a, b in groups]
    return namespace_of(x).reshape(_joined(parts, -2), x.shape)


def _product(w: Array, x: Array, cuts: Cuts, adjoint: bool) -> Array:
    """Return the product for x of shape `(..., n, h, c)`, each of its rows and channels, and filters, scaled to 1."""
    xp = namespace_of(w, x)
    kernel_size, lags = w.shape[1:]
    n, _, width = x.shape[-3:]
    length = fast_length(n if is_real(x) else n + lags - 1)
    size_w = _sizes(w, -1)  # each row's own: it may be read alone, where its neighbours are silent
    W = _spectrum(w, size_w, length, -1)
    W = xp.permute_dims(conj(W) if adjoint else W, (1, 2, 0))[..., None]  # (m, N, h, 1)
    root_w = [_root(size_w[:, i, :]) for i in range(kernel_size)]
    offsets = _offsets(kernel_size, adjoint)

    def product(x: Array) -> Array:
        size_x = _sizes(x, -3)
        # Channels and rows of other scales meet at the largest one: by roots, since products may be out of range.
        roots = [shift_channels(_root(size_x), offset, 1) * root for offset, root in zip(offsets, root_w, strict=True)]
        largest = functools.reduce(xp.maximum, roots)
        relative_scales = [(root / _or_one(largest)) ** 2 for root in roots]
        y = xp.fft.ifft(
            _through_kernel(_spectrum(x, size_x, length, -3), W, offsets, relative_scales), axis=-3, norm="ortho"
        )
        y = _turned_back(y, n, is_real(x))

        def noise() -> Array:
            input_norms = _norms(x, size_x, -3)
            rows = xp.permute_dims(_norms(w, size_w, -1), (1, 0, 2))  # (m, h, 1)
            terms = [
                shift_channels(input_norms, o, 1) * s * rows[i, ...]
                for i, (o, s) in enumerate(zip(offsets, relative_scales, strict=True))
            ]
            return error_factor(n, dtype_name(x.dtype)) * sum(terms)

        return _rescaled(y, largest, noise)

    parts = []
    for first, last in cuts:  # with the neighbours that the kernel reads
        low, high = (first, min(width, last + kernel_size - 1)) if adjoint else (max(0, first - kernel_size + 1), last)
        parts.append(product(x[..., low:high])[..., first - low : last - low])
    return _joined(parts, -1)


def _through_kernel(X: Array, W: Array, offsets: list[int], relative_scales: list[Array]) -> Array:
    """Return the spectra after the filters `W`, (m, N, h, 1), each row at its relative scale; uses up X."""
    xp = namespace_of(X)
    if len(offsets) == 1:
        X *= W[0, ...]
        return X
    total = xp.zeros_like(X)
    for i, (offset, scale) in enumerate(zip(offsets, relative_scales, strict=True)):
        term = shift_channels(X, offset, 1)  # X itself for the last offset, 0
        term *= scale
        term *= W[i, ...]
        total += term
    return total


def _offsets(kernel_size: int, adjoint: bool) -> list[int]:
    """Return, for each row of a kernel, how many channels before an output (behind it for the adjoint) it reads."""
    return [(i - kernel_size + 1) if adjoint else (kernel_size - 1 - i) for i in range(kernel_size)]


def correlation(x: Array, g: Array, *, lags: int, heads: int, kernel_size: int) -> Array:
    """Return the correlation `(h, m, lags)` of finite arrays."""
    x, g = _by_head(x, heads), _by_head(g, heads)
    groups, cuts = _pieces(x)
    return _joined([_correlation(x[..., a:b, :], g[..., a:b, :], cuts, lags, kernel_size) for a, b in groups], 0)


def _correlation(x: Array, g: Array, cuts: Cuts, lags: int, kernel_size: int) -> Array:
    """Return the correlation for `(..., n, h, c)`: the spectra of all rows and channels are added first."""
    xp = namespace_of(x, g)
    n = x.shape[-3]
    length = fast_length(n if is_real(x) else n + lags - 1)
    size_x, size_g = _sizes(x, -3), _sizes(g, -3)
    added = (*range(x.ndim - 3), x.ndim - 1)
    # Rows and channels of other scales meet at the largest one: by roots, since products may be out of range.
    offsets = _offsets(kernel_size, adjoint=False)
    roots = [_root(shift_channels(size_x, offset, 1)) * _root(size_g) for offset in offsets]
    largest = [xp.max(root, axis=added, keepdims=True) for root in roots]
    relative_scales = [(root / _or_one(most)) ** 2 for root, most in zip(roots, largest, strict=True)]
    spectra = xp.zeros((), dtype=x.dtype, device=device_of(x))
    for first, last in cuts:
        low = max(0, first - kernel_size + 1)
        X = xp.conj(_spectrum(x[..., low:last], size_x[..., low:last], length, -3))
        G = _spectrum(g[..., first:last], size_g[..., first:last], length, -3)
        sums = []
        for offset, scale in zip(offsets, relative_scales, strict=True):
            P = shift_channels(X, offset, 1)[..., first - low :] * G
            P *= scale[..., first:last]
            sums.append(xp.sum(P, axis=added))
            del P
        spectra = spectra + xp.stack(sums, axis=-1)  # (N, h, m)
        del X, G, sums
    c = _turned_back(xp.fft.ifft(spectra, axis=-3, norm="ortho"), lags, is_real(x))
    del spectra

    def noise() -> Array:
        norms_x, norms_g = _norms(x, size_x, -3), _norms(g, size_g, -3)
        pairs = [
            shift_channels(norms_x, o, 1) * norms_g * scale for o, scale in zip(offsets, relative_scales, strict=True)
        ]
        return (
            error_factor(n, dtype_name(x.dtype))
            * xp.stack([xp.sum(pair, axis=added)[0, :] for pair in pairs], axis=-1)[..., None]
        )

    gain = xp.stack([xp.reshape(most, (-1,)) for most in largest], axis=-1)[..., None]
    return _rescaled(xp.permute_dims(c, (1, 2, 0)), gain, noise)


Cuts = list[tuple[int, int]]


def _pieces(x: Array) -> tuple[Cuts, Cuts]:
    """Return where to cut the heads and the channels of x, of shape `(..., n, h, c)`, into pieces of less memory."""
    heads, width = x.shape[-2:]
    size = math.prod(x.shape)
    small = isinstance(size, int) and size < PIECES * PIECE  # a program for any batch is one for large batches
    pieces = 1 if small else PIECES
    groups = min(heads, pieces)
    return _cut(heads, groups), _cut(width, min(width, pieces // groups))


def _cut(count: int, parts: int) -> Cuts:
    return [(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


def _by_head(a: Array, heads: int) -> Array:
    return namespace_of(a).reshape(a, (*a.shape[:-1], heads, a.shape[-1] // heads))


def _joined(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else namespace_of(*parts).concat(parts, axis=axis)


def _rescaled(y: Array, gain: Array, noise: Callable[[], Array]) -> Array:
    """Return `y * gain * gain`, where noise below `noise()` in `y` must not make a representable result overflow."""
    xp = namespace_of(y)
    result = y * gain
    result *= gain  # one after the other: gain * gain may be out of range where the result is not
    finite = xp.isfinite(result)
    if surely_all(finite):
        return result
    size = xp.abs(y)
    below = noise()
    nearer = xp.where(size > below, 1 - below / _or_one(size), xp.zeros_like(size))
    return xp.where(finite, result, y * nearer * gain * gain)


def _norms(a: Array, size: Array, axis: int) -> Array:
    """Return the Euclidean norms of `a / size` along `axis`."""
    xp = namespace_of(a)
    return _root(xp.sum(xp.abs(_divided(a, size)) ** 2, axis=axis, keepdims=True))


def _root(a: Array) -> Array:
    """Return the square root of what is not negative, with a finite derivative at 0 where a library differentiates."""
    xp = namespace_of(a)
    return xp.where(a > 0, xp.sqrt(_or_one(a)), xp.zeros_like(a))


def _divided(a: Array, size: Array) -> Array:
    """Return `a / size`, or `a` where the size is zero.

    By the root, twice: XLA multiplies by reciprocals, and those of the largest and smallest sizes are out of range.
    """
    root = _root(_or_one(size))
    a = a / root
    a /= root
    return a


def _or_one(size: Array) -> Array:
    xp = namespace_of(size)
    return xp.where(size > 0, size, xp.ones_like(size))


def _sizes(a: Array, axis: int | tuple[int, ...]) -> Array:
    """Return the largest entry along `axis`, of real and imaginary parts."""
    xp = namespace_of(a)
    parts = (a,) if is_real(a) else (xp.real(a), xp.imag(a))
    largest = [xp.maximum(xp.max(p, axis=axis, keepdims=True), -xp.min(p, axis=axis, keepdims=True)) for p in parts]
    return functools.reduce(xp.maximum, largest)


def _spectrum(a: Array, size: Array, length: int, axis: int) -> Array:
    """Return the orthonormal transform of `a / size` along `axis`, turned by the right-angle twist where it is real."""
    xp = namespace_of(a)
    a = _divided(a, size)
    if is_real(a):
        cos, sin = _turn(a, a.shape[axis], length, axis)
        a = a * (cos + 1j * sin)
    # norm="ortho" both ways: NumPy's complex64 transforms need 8 times scratch with the default
    return xp.fft.fft(a, n=length, axis=axis, norm="ortho")


def _turned_back(y: Array, count: int, real: bool) -> Array:
    """Return the first `count` times, axis -3, of a cyclic convolution of two turned signals, its norm undone."""
    xp = namespace_of(y)
    length = y.shape[-3]
    y = y[..., :count, :, :]
    if not real:
        return y * math.sqrt(length)
    cos, sin = _turn(y, count, length, -3)
    result = xp.real(y) * (cos * math.sqrt(length))
    result += xp.imag(y) * (sin * math.sqrt(length))
    return result


def _turn(like: Array, count: int, length: int, axis: int) -> tuple[Array, Array]:
    """Return cos and sin of `pi m / (2 * length)` for m < count, along `axis`."""
    xp = namespace_of(like)
    real = xp.float32 if dtype_name(like.dtype) in ("float32", "complex64") else xp.float64
    angle = xp.astype(xp.arange(count, device=device_of(like)), real) * (math.pi / (2 * length))
    angle = xp.reshape(angle, (count, *(1 for _ in range(-axis - 1))))
    return xp.cos(angle), xp.sin(angle)


def error_factor(n: int, dtype: str) -> float:
    """Return the `c * eps * log2(n)` of the error law, for what is computed in a dtype of this name."""
    return ERROR_CONSTANT * (2.0**-23 if dtype in ("float32", "complex64") else 2.0**-52) * math.log2(max(n, 2))
