"""Toeplitz products written out in array-API calls: the definition of what `toeplitz.py` offers, and its oracle.

`w` is `(h, m, k)`, `x` and `g` are `(..., n, d)`. Long products of reals are right-angle convolutions: with
t[m] = exp(i pi m / 2N), the length-N cyclic convolution of t*x and t*w, times conj(t), holds the causal product in its
real part, and what wrapped around in its imaginary part, so nothing is padded to twice its length.
"""

from __future__ import annotations

import bisect
import functools
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ._exchange import Array, library_of, namespace_of
from ._masks import (
    by_segments,
    correlate_by_segments,
    device_of,
    positions,
    shift_channels,
    split_finite,
    spoiled_lags,
    spoiled_outputs,
    unsorted,
    values_known,
)

__all__ = [
    "by_segments",
    "causal_toeplitz_correlate",
    "causal_toeplitz_matmul",
    "computed_in",
    "correlate_by_segments",
    "device_of",
    "fast_length",
    "positions",
    "result_dtype",
    "result_dtype_name",
    "shift_channels",
    "split_finite",
    "spoiled_lags",
    "spoiled_outputs",
    "unsorted",
    "values_known",
]

DIRECT_BELOW = 64
"""Up to this length the direct product is the faster one."""

ROWS_AT_ONCE = 1 << 20
"""Entries of a Toeplitz matrix that a direct product holds at a time."""

# dtypes ------------------------------------------------------------------------------------------------------------

_HALVES = ("float16", "bfloat16")
_SINGLE = {"float16": 1, "bfloat16": 1, "float32": 1, "float64": 2, "complex64": 1, "complex128": 2}


def _dtype_name(dtype: Any) -> str:
    return getattr(dtype, "name", None) or str(dtype).rsplit(".", 1)[-1]


def result_dtype_name(*arrays: Array) -> str:
    """Return the dtype that arrays promote to, by a table of our own: not every library has both halves.

    >>> import numpy as np
    >>> result_dtype_name(np.zeros(1, "float16"), np.zeros(1, "complex64"))
    'complex64'
    """
    names = {_dtype_name(array.dtype) for array in arrays}
    for name in sorted(names):
        if name not in _SINGLE:
            raise TypeError(
                f"expected arrays of {', '.join(_SINGLE)}, got {name}: convert it first, for example to float32"
            )
    if len(names) == 1:
        return names.pop()
    double = max(_SINGLE[name] for name in names) == 2
    if any(name.startswith("complex") for name in names):
        return "complex128" if double else "complex64"
    return "float64" if double else "float32"


def result_dtype(*arrays: Array) -> Any:
    """Return the dtype that arrays promote to."""
    name = result_dtype_name(*arrays)
    return arrays[0].dtype if name in _HALVES else getattr(namespace_of(*arrays), name)


def computed_in(*arrays: Array) -> tuple[Any, list[Array]]:
    """Return the dtype of the result, and the arrays in the dtype that it is computed in: float32 for halves."""
    xp = namespace_of(*arrays)
    name = result_dtype_name(*arrays)
    wide = xp.float32 if name in _HALVES else getattr(xp, name)
    return result_dtype(*arrays), [xp.astype(array, wide, copy=False) for array in arrays]


# Operations ----------------------------------------------------------------------------------------------------------


def causal_toeplitz_matmul(w: Array, x: Array, /, *, adjoint: bool, exact: bool, segment_ids: Array | None) -> Array:
    """Return `T(w) x` or `T(w)^H x`; see `toeplitz.causal_toeplitz_matmul`."""
    xp = namespace_of(w, x, segment_ids)
    dtype, (w, x) = computed_in(w, x)
    if 0 in x.shape:
        return xp.zeros(x.shape, dtype=dtype, device=device_of(x))
    w, bad_w = split_finite(w[..., : min(w.shape[-1], x.shape[-2])])
    x, bad_x = split_finite(x)

    def product(w: Array, x: Array) -> Array:
        return _product(w, x, adjoint, exact)

    with _quiet():
        if segment_ids is None:
            y = product(w, x)
        else:
            y = by_segments(product, w, x, segment_ids, adjoint=adjoint)
            y = _nan_where(None if values_known(y) else unsorted(segment_ids)[..., None, None], y)
        y = _nan_where(spoiled_outputs(w, x, bad_w, bad_x, adjoint=adjoint, segment_ids=segment_ids), y)
        return xp.astype(y, dtype, copy=False)


def causal_toeplitz_correlate(
    x: Array, g: Array, /, *, lags: int, heads: int, kernel: int, exact: bool, segment_ids: Array | None
) -> Array:
    """Return the gradient of `<g, T(w) x>` for `w`; see `toeplitz.causal_toeplitz_correlate`."""
    xp = namespace_of(x, g, segment_ids)
    dtype, (x, g) = computed_in(x, g)
    if 0 in x.shape:
        return xp.zeros((heads, kernel, lags), dtype=dtype, device=device_of(x))
    used = min(lags, x.shape[-2])
    x, bad_x = split_finite(x)
    g, bad_g = split_finite(g)

    def correlate(x: Array, g: Array, lags: int) -> Array:
        return _correlation(x, g, lags, heads, kernel, exact)

    with _quiet():
        if segment_ids is None:
            c = correlate(x, g, used)
        else:
            c = correlate_by_segments(correlate, x, g, segment_ids, lags=used)
            c = _nan_where(None if values_known(c) else xp.any(unsorted(segment_ids)), c)
        spoiled = spoiled_lags(x, g, bad_x, bad_g, lags=used, heads=heads, kernel=kernel, segment_ids=segment_ids)
        c = xp.astype(_nan_where(spoiled, c), dtype, copy=False)
    if used < lags:
        c = xp.concat([c, xp.zeros((heads, kernel, lags - used), dtype=dtype, device=device_of(c))], axis=-1)
    return c


def _product(w: Array, x: Array, adjoint: bool, exact: bool) -> Array:
    """Return the product of finite arrays, without segments."""
    w = w[..., : min(w.shape[-1], x.shape[-2])]
    if exact or x.shape[-2] <= DIRECT_BELOW:
        return _rescued(functools.partial(_direct_product, adjoint=adjoint), w, x)
    return _fft_product(w, x, adjoint)


def _correlation(x: Array, g: Array, lags: int, heads: int, kernel: int, exact: bool) -> Array:
    """Return the correlation of finite arrays, without segments; `lags` are at most the length."""
    if exact or x.shape[-2] <= DIRECT_BELOW:
        return _rescued(functools.partial(_direct_correlation, lags=lags, heads=heads, kernel=kernel), x, g)
    return _fft_correlation(x, g, lags, heads, kernel)


def _nan_where(mask: Array | None, y: Array) -> Array:
    if mask is None:
        return y
    xp = namespace_of(y)
    return xp.where(mask, xp.full_like(y, math.nan), y)


def _quiet() -> Any:
    """Return a context without NumPy's floating-point warnings, which also concern results that are then repaired."""
    numpy = sys.modules.get("numpy")  # also under array_api_strict and in Dask's blocks
    return nullcontext() if numpy is None else numpy.errstate(all="ignore")


# Direct --------------------------------------------------------------------------------------------------------------


def _direct_product(w: Array, x: Array, *, adjoint: bool) -> Array:
    """Return the product by matrices `T[t, s] = w[t - s]`, some rows of the output at a time."""
    xp = namespace_of(w, x)
    heads, kernel, lags = w.shape
    n, d = x.shape[-2:]
    if adjoint:
        w = _conj(w)
    shifted = []
    for i in range(kernel):
        offset = kernel - 1 - i
        by_head = xp.reshape(
            shift_channels(x, -offset if adjoint else offset, heads), (*x.shape[:-1], heads, d // heads)
        )
        shifted.append(_swap(by_head, -3, -2))  # (..., h, n, d / h)
    rows = max(1, ROWS_AT_ONCE // (heads * n))
    parts = []
    for start in range(0, n, rows):
        stop = min(n, start + rows)
        low, high = (start, min(n, stop + lags - 1)) if adjoint else (max(0, start - lags + 1), stop)
        terms = [
            _matmul(
                toeplitz_block(w[:, i, :], (start, stop), (low, high), transpose=adjoint), shifted[i][..., low:high, :]
            )
            for i in range(kernel)
        ]
        parts.append(functools.reduce(lambda a, b: a + b, terms))
    y = parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)
    return xp.reshape(_swap(y, -3, -2), x.shape)


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


def _direct_correlation(x: Array, g: Array, *, lags: int, heads: int, kernel: int) -> Array:
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
    for i in range(kernel):
        shifted = _swap(_conj(flat(shift_channels(x, kernel - 1 - i, heads))), -2, -1)
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
        block = _matmul(g[:, start:stop, :], x[..., :stop])
        # Shift row t right by n - 1 - t: with one more than 2n - 1 columns a row, a reshape does it.
        t = xp.reshape(xp.arange(start, stop, device=device_of(g)), (-1, 1))
        lag = xp.reshape(xp.arange(n, device=device_of(g)), (1, -1))
        source = t - lag
        inside = source >= 0
        index = xp.where(inside, source, xp.zeros_like(source)) + (t - start) * stop
        values = xp.take(xp.reshape(block, (heads, -1)), xp.reshape(index, (-1,)), axis=-1)
        values = xp.reshape(values, (heads, stop - start, n))
        total = total + xp.sum(xp.where(inside, values, xp.zeros_like(values)), axis=-2)
    return total[:, :lags]


def solve_directly(w: Array, y: Array) -> Array:
    """Return x with `T(w) x = y` for few times, by the inverse and one refinement; `w` is `(h, k)`, y `(..., n, d)`."""
    xp = namespace_of(w, y)
    n = y.shape[-2]
    first = xp.arange(n, device=device_of(w)) == 0
    w = toeplitz_block(w, (0, n), (0, 1))[..., 0]  # zeros for lags that are missing
    bad_w = (~xp.isfinite(w) | ((w == 0) & first))[:, None, :]
    bad_y = ~xp.isfinite(y)
    spoiled = spoiled_outputs(w[:, None, :], y, bad_w, bad_y, adjoint=False, segment_ids=None)
    w = xp.where(bad_w[:, 0, :], xp.astype(first, w.dtype), w)
    y = xp.where(bad_y, xp.zeros_like(y), y)
    v = _inverse_directly(w)[:, None, :]
    w = w[:, None, :]
    x = _direct_product(v, y, adjoint=False)
    x = x + _direct_product(v, y - _direct_product(w, x, adjoint=False), adjoint=False)
    return _nan_where(spoiled, x)


def _inverse_directly(w: Array) -> Array:
    """Return the lags `(h, n)` of the inverse, by forward substitution."""
    xp = namespace_of(w)
    v = 1 / w[:, :1]
    for j in range(1, w.shape[-1]):
        known = xp.sum(w[:, 1 : j + 1] * xp.flip(v, axis=-1), axis=-1, keepdims=True)
        v = xp.concat([v, -known / w[:, :1]], axis=-1)
    return v


def _rescued(operation: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Return the bilinear `operation(a, b)`, computed once more from smaller inputs where it overflowed on the way.

    The factor is a fixed power of two: one that depended on the values would let an output look at the future.
    """
    xp = namespace_of(a, b)
    y = operation(a, b)
    finite = xp.isfinite(y)
    if values_known(y) and bool(xp.all(finite)):
        return y
    factor = math.ldexp(1.0, -80 if _dtype_name(y.dtype) in ("float32", "complex64") else -600)
    # Back by a factor that XLA cannot know: it would divide once by factor * factor, which underflows to zero.
    back = xp.where(finite, xp.ones_like(y), xp.full_like(y, 1 / factor))
    return xp.where(finite, y, operation(a * factor, b * factor) * back * back)


def _matmul(a: Array, b: Array) -> Array:
    """Return `a @ b` with every bit of the inputs: JAX would use fewer on accelerators."""
    xp = namespace_of(a, b)
    if library_of(a) == "jax":
        return xp.matmul(a, b, precision="highest")
    return xp.matmul(a, b)


# By transforms -------------------------------------------------------------------------------------------------------


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


def _fft_product(w: Array, x: Array, adjoint: bool) -> Array:
    """Return the product by transforms, each filter and each row and channel of `x` scaled to at most 1."""
    xp = namespace_of(w, x)
    heads, kernel, lags = w.shape
    n, d = x.shape[-2:]
    length = fast_length(n if _is_real(x) else n + lags - 1)
    unit_w, size_w = _normalised(w, (-2, -1))
    W = _spectrum(unit_w, length, -1)
    W = _swap(_conj(W) if adjoint else W, 0, -1)[..., None]  # (N, m, h, 1)
    unit_x, size_x = _normalised(x, -2)
    X = _spectrum(unit_x, length, -2)
    del unit_x
    Y, size_y = _through_kernel(X, size_x, W, -1 if adjoint else 1)
    del X
    y = _signal(Y, n, length, _is_real(x))
    del Y
    gain = xp.sqrt(size_y) * xp.sqrt(xp.repeat(xp.reshape(size_w, (-1,)), d // heads))

    def noise() -> Array:
        norm_x = _norms(_normalised(x, -2)[0], -2) * size_x / xp.where(size_y > 0, size_y, xp.ones_like(size_y))
        norms_x = [shift_channels(norm_x, -i if adjoint else i, heads) for i in range(kernel)]
        norm_w = xp.repeat(xp.sum(_norms(unit_w, -1), axis=(-2, -1)), d // heads)
        return _noise(x, n) * functools.reduce(lambda a, b: a + b, norms_x) * norm_w

    return _regained(y, gain, noise)


def _through_kernel(X: Array, size: Array, W: Array, direction: int) -> tuple[Array, Array]:
    """Return the spectra after the filters `W`, of shape (N, m, h, 1), and the scale of each output channel."""
    xp = namespace_of(X)
    _, kernel, heads, _ = W.shape
    shape = X.shape
    if kernel == 1:
        X = xp.reshape(X, (*shape[:-1], heads, -1))
        X *= W[:, 0, :, :]
        return xp.reshape(X, shape), size
    offsets = [direction * (kernel - 1 - i) for i in range(kernel)]
    sizes = [shift_channels(size, offset, heads) for offset in offsets]
    largest = functools.reduce(xp.maximum, sizes)
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    total = xp.zeros_like(X)
    for i, offset in enumerate(offsets):
        # Neighbours of other scales meet at the largest one.
        term = shift_channels(X, offset, heads)
        term *= sizes[i] / largest
        term = xp.reshape(term, (*shape[:-1], heads, -1))
        term *= W[:, i, :, :]
        total += xp.reshape(term, shape)
    return total, largest


def _fft_correlation(x: Array, g: Array, lags: int, heads: int, kernel: int) -> Array:
    """Return the correlation by transforms: the spectra of all rows and channels are added before one inverse."""
    xp = namespace_of(x, g)
    n, d = x.shape[-2:]
    length = fast_length(n if _is_real(x) else n + lags - 1)
    unit, size_x = _normalised(x, -2)
    norm_x, X = _norms(unit, -2) * xp.ones_like(size_x), _spectrum(unit, length, -2)
    unit, size_g = _normalised(g, -2)
    norm_g, G = _norms(unit, -2), _spectrum(unit, length, -2)
    del unit
    sums, noises, sizes = [], [], []
    for i in range(kernel):
        offset = kernel - 1 - i
        # Rows and channels of other scales meet at the largest one: roots, since the product may be out of range.
        size = xp.sqrt(shift_channels(size_x, offset, heads)) * xp.sqrt(size_g)
        largest = _by_head(size, heads, xp.max)
        share = size / xp.repeat(xp.where(largest > 0, largest, xp.ones_like(largest)), d // heads)
        P = xp.conj(shift_channels(X, offset, heads))
        P *= G
        P *= share
        P *= share
        sums.append(xp.sum(xp.reshape(P, (-1, length, heads, d // heads)), axis=(0, 3)))
        del P
        noises.append(_by_head(shift_channels(norm_x, offset, heads) * norm_g * share * share, heads, xp.sum))
        sizes.append(largest)
    del X, G
    c = _signal(xp.reshape(xp.stack(sums, axis=-1), (length, heads * kernel)), lags, length, _is_real(x))
    c = xp.reshape(xp.permute_dims(c, (1, 0)), (heads, kernel, lags))
    noise = _noise(x, n) * xp.stack(noises, axis=-1)[..., None]
    return _regained(c, xp.stack(sizes, axis=-1)[..., None], lambda: noise)


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
    one = xp.ones_like(size)
    nearer = xp.where(size > noise(), 1 - noise() / xp.where(size > 0, size, one), xp.zeros_like(size))
    return xp.where(finite, result, y * nearer * gain * gain)


def _norms(a: Array, axis: int) -> Array:
    """Return the Euclidean norms along `axis`, of entries at most 1."""
    xp = namespace_of(a)
    return xp.sqrt(xp.sum(xp.abs(a) ** 2, axis=axis, keepdims=True))


def _is_real(x: Array) -> bool:
    xp = namespace_of(x)
    return bool(xp.isdtype(x.dtype, "real floating"))


def _conj(a: Array) -> Array:
    return a if _is_real(a) else namespace_of(a).conj(a)  # the standard has no conj of reals


def _swap(a: Array, i: int, j: int) -> Array:
    xp = namespace_of(a)
    axes = list(range(a.ndim))
    axes[i], axes[j] = axes[j], axes[i]
    return xp.permute_dims(a, tuple(axes))


def _normalised(a: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """Return `a` divided by its largest entry along `axis` (of real and imaginary parts), and that; 0 if all are."""
    xp = namespace_of(a)
    parts = (a,) if _is_real(a) else (xp.real(a), xp.imag(a))
    largest = [xp.maximum(xp.max(p, axis=axis, keepdims=True), -xp.min(p, axis=axis, keepdims=True)) for p in parts]
    size = functools.reduce(xp.maximum, largest)
    return a / xp.where(size > 0, size, xp.ones_like(size)), size


def _turn(xp: Any, count: int, length: int, like: Array) -> tuple[Array, Array]:
    """Return cos and sin of `pi m / (2 * length)` for m < count."""
    real = xp.float32 if _dtype_name(like.dtype) in ("float32", "complex64") else xp.float64
    angle = xp.astype(xp.arange(count, device=device_of(like)), real) * (math.pi / (2 * length))
    return xp.cos(angle), xp.sin(angle)


def _spectrum(a: Array, length: int, axis: int) -> Array:
    """Return the orthonormal transform along `axis`, of the signal turned by the right-angle twist where it is real."""
    xp = namespace_of(a)
    if _is_real(a):
        cos, sin = _turn(xp, a.shape[axis], length, a)
        twist = cos + 1j * sin
        a = a * (twist if axis == -1 else twist[:, None])
    # norm="ortho" both ways: NumPy's complex64 transforms need 8 times scratch with the default
    return xp.fft.fft(a, n=length, axis=axis, norm="ortho")


def _signal(Y: Array, n: int, length: int, real: bool) -> Array:
    """Return the first n entries along axis -2 of the signal whose spectrum is `Y`, a product of two `_spectrum`."""
    xp = namespace_of(Y)
    y = xp.fft.ifft(Y, axis=-2, norm="ortho")[..., :n, :]
    root = math.sqrt(length)
    if not real:
        return y * root
    cos, sin = _turn(xp, n, length, Y)
    result = xp.real(y) * (cos * root)[:, None]
    result += xp.imag(y) * (sin * root)[:, None]
    return result


def _noise(x: Array, n: int) -> float:
    """Return the error law's `c * eps * log2(n)`."""
    return 8.0 * float(namespace_of(x).finfo(x.dtype).eps) * math.log2(max(n, 2))
