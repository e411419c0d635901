"""Products by transforms: right-angle convolution for reals, zero padding for complex signals.

With t[m] = exp(i pi m / 2N), the length-N cyclic convolution of t*x and t*w, times conj(t), holds the causal product in
its real part, and what wrapped around in its imaginary part, so nothing is padded to twice its length.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any

from ._arrays import conj, device_of, dtype_name, is_real, shift_channels, swap, values_known
from ._exchange import Array, namespace_of

__all__ = ["correlation", "fast_length", "product"]

PIECES = 4
PIECE = 1 << 18
"""A product with a kernel goes in 4 pieces of channels where these have at least so many entries."""

NOISE = 2.0
"""The constant c of the error law."""


@functools.cache
def _fast_lengths() -> tuple[int, ...]:
    odd = [3**a * 5**b * 7**c for a in range(8) for b in range(4) for c in range(3)]
    return tuple(sorted({f << a for a in range(41) for f in odd if f <= 2187}))


def fast_length(n: int) -> int:
    """Return the smallest length >= n that has only the factors 2, 3, 5 and 7, few of them odd.

    >>> fast_length(1025)
    1029
    """
    lengths = _fast_lengths()
    return lengths[bisect.bisect_left(lengths, n)]


def product(w: Array, x: Array, *, adjoint: bool) -> Array:
    """Return `T(w) x` or `T(w)^H x` for finite arrays: filters, and rows and channels of `x`, scaled to at most 1."""
    xp = namespace_of(w, x)
    heads, kernel = w.shape[:2]
    width = x.shape[-1] // heads
    if kernel == 1 or width < 2 * PIECES or x.size < PIECES * PIECE:
        return _product(w, x, adjoint)
    # The kernel's sum holds three spectra at once: in pieces of channels, with the neighbours that they read.
    x = xp.reshape(x, (*x.shape[:-1], heads, width))
    pieces = []
    for piece in range(PIECES):
        first, last = piece * width // PIECES, (piece + 1) * width // PIECES
        low, high = (first, min(width, last + kernel - 1)) if adjoint else (max(0, first - kernel + 1), last)
        part = xp.reshape(x[..., low:high], (*x.shape[:-2], heads * (high - low)))
        part = xp.reshape(_product(w, part, adjoint), (*x.shape[:-1], high - low))
        pieces.append(part[..., first - low : last - low])
    return xp.reshape(xp.concat(pieces, axis=-1), (*x.shape[:-2], heads * width))


def _product(w: Array, x: Array, adjoint: bool) -> Array:
    xp = namespace_of(w, x)
    heads, kernel, lags = w.shape
    n, d = x.shape[-2:]
    length = fast_length(n if is_real(x) else n + lags - 1)
    size_w, size_x = _sizes(w, (-2, -1)), _sizes(x, -2)
    W = _spectrum(w, size_w, length, -1)
    W = swap(conj(W) if adjoint else W, 0, -1)[..., None]  # (N, m, h, 1)
    X = _spectrum(x, size_x, length, -2)
    Y, size_y = _through_kernel(X, size_x, W, -1 if adjoint else 1)
    del X
    y = xp.fft.ifft(Y, axis=-2, norm="ortho")
    del Y
    y = _turned_back(y, n, is_real(x))

    def noise() -> Array:
        norms = _norms(x, size_x, -2) * _divided(size_x, size_y)
        heard = [shift_channels(norms, -i if adjoint else i, heads) for i in range(kernel)]
        norm_w = xp.sum(_norms(w, size_w, -1), axis=(-2, -1))
        return _noise(x, n) * functools.reduce(lambda a, b: a + b, heard) * xp.repeat(norm_w, d // heads)

    return _regained(y, _root(size_y) * _root(xp.repeat(xp.reshape(size_w, (-1,)), d // heads)), noise)


def _through_kernel(X: Array, size: Array, W: Array, direction: int) -> tuple[Array, Array]:
    """Return the spectra after the filters `W`, (N, m, h, 1), and the scale of each output channel; uses up X."""
    xp = namespace_of(X)
    _, kernel, heads, _ = W.shape
    shape, by_head = X.shape, (*X.shape[:-1], heads, X.shape[-1] // heads)
    if kernel == 1:
        X = xp.reshape(X, by_head)
        X *= W[:, 0, :, :]
        return xp.reshape(X, shape), size
    offsets = [direction * (kernel - 1 - i) for i in range(kernel)]
    sizes = [shift_channels(size, offset, heads) for offset in offsets]
    largest = functools.reduce(xp.maximum, sizes)
    total = xp.zeros_like(X)
    for i, offset in enumerate(offsets):
        term = shift_channels(X, offset, heads)  # X itself for the last offset, 0
        term *= _divided(sizes[i], largest)  # neighbours of other scales meet at the largest one
        term = xp.reshape(term, by_head)
        term *= W[:, i, :, :]
        total += xp.reshape(term, shape)
    return total, largest


def correlation(x: Array, g: Array, *, lags: int, heads: int, kernel: int) -> Array:
    """Return the correlation `(h, m, lags)` of finite arrays: the spectra of all rows and channels are added first."""
    xp = namespace_of(x, g)
    n, d = x.shape[-2:]
    length = fast_length(n if is_real(x) else n + lags - 1)
    size_x, size_g = _sizes(x, -2), _sizes(g, -2)
    X, G = _spectrum(x, size_x, length, -2), _spectrum(g, size_g, length, -2)
    sums, sizes, shares = [], [], []
    for i in range(kernel):
        offset = kernel - 1 - i
        # Rows and channels of other scales meet at the largest one: by roots, since products may be out of range.
        root = _root(shift_channels(size_x, offset, heads)) * _root(size_g)
        largest = _by_head(root, heads, xp.max)
        share = root / xp.repeat(_or_one(largest), d // heads)
        P = xp.conj(shift_channels(X, offset, heads))
        P *= G
        P *= share * share
        sums.append(xp.sum(xp.reshape(P, (-1, length, heads, d // heads)), axis=(0, 3)))
        del P
        sizes.append(largest)
        shares.append(share * share)
    del X, G
    spectra = xp.reshape(xp.stack(sums, axis=-1), (length, heads * kernel))
    c = _turned_back(xp.fft.ifft(spectra, axis=-2, norm="ortho"), lags, is_real(x))
    c = xp.reshape(xp.permute_dims(c, (1, 0)), (heads, kernel, lags))

    def noise() -> Array:
        norms_x, norms_g = _norms(x, size_x, -2), _norms(g, size_g, -2)
        pairs = [shift_channels(norms_x, kernel - 1 - i, heads) * norms_g * shares[i] for i in range(kernel)]
        return _noise(x, n) * xp.stack([_by_head(pair, heads, xp.sum) for pair in pairs], axis=-1)[..., None]

    return _regained(c, xp.stack(sizes, axis=-1)[..., None], noise)


def _by_head(a: Array, heads: int, reduce: Callable[..., Array]) -> Array:
    """Return `a`, of shape `(..., 1, d)`, reduced over rows and each head's channels, as `(h,)`."""
    return reduce(namespace_of(a).reshape(a, (-1, heads, a.shape[-1] // heads)), axis=(0, 2))


def _regained(y: Array, gain: Array, noise: Callable[[], Array]) -> Array:
    """Return `y * gain * gain`, where noise below `noise()` in `y` must not make a representable result overflow."""
    xp = namespace_of(y)
    result = y * gain
    result *= gain  # one after the other: gain * gain may be out of range where the result is not
    finite = xp.isfinite(result)
    if values_known(result) and bool(xp.all(finite)):
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


def _turn(xp: Any, count: int, length: int, like: Array) -> tuple[Array, Array]:
    """Return cos and sin of `pi m / (2 * length)` for m < count."""
    real = xp.float32 if dtype_name(like.dtype) in ("float32", "complex64") else xp.float64
    angle = xp.astype(xp.arange(count, device=device_of(like)), real) * (math.pi / (2 * length))
    return xp.cos(angle), xp.sin(angle)


def _spectrum(a: Array, size: Array, length: int, axis: int) -> Array:
    """Return the orthonormal transform of `a / size` along `axis`, turned by the right-angle twist where it is real."""
    xp = namespace_of(a)
    a = _divided(a, size)
    if is_real(a):
        cos, sin = _turn(xp, a.shape[axis], length, a)
        twist = cos + 1j * sin
        a = a * (twist if axis == -1 else twist[:, None])
    # norm="ortho" both ways: NumPy's complex64 transforms need 8 times scratch with the default
    return xp.fft.fft(a, n=length, axis=axis, norm="ortho")


def _turned_back(y: Array, count: int, real: bool) -> Array:
    """Return the first `count` times of a cyclic convolution of two turned signals, with `_spectrum`'s norm undone."""
    xp = namespace_of(y)
    length = y.shape[-2]
    y = y[..., :count, :]
    if not real:
        return y * math.sqrt(length)
    cos, sin = _turn(xp, count, length, y)
    result = xp.real(y) * (cos * math.sqrt(length))[:, None]
    result += xp.imag(y) * (sin * math.sqrt(length))[:, None]
    return result


def _noise(x: Array, n: int) -> float:
    """Return the error law's `c * eps * log2(n)`."""
    return NOISE * float(namespace_of(x).finfo(x.dtype).eps) * math.log2(max(n, 2))
