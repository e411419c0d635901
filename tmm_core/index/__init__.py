"""A filter as an operator on the half-line: its symbol and its Fredholm index, with a proof.

A causal filter acts on sequences without end by `y[t] = sum_j w[j] x[t-j]`. This Toeplitz operator T(a) belongs to the
symbol `a = sum_j w[j] z^-j` on the unit circle, `z = exp(i theta)`. What the curve a(z) says about T(a) on l2 was found
by Gohberg, Krein and Coburn (A. Böttcher and B. Silbermann, *Analysis of Toeplitz Operators*, chapter 2):

- T(a) is Fredholm, that is, solvable up to finitely many dimensions and conditions, if and only if the curve
  misses zero;
- its index, the dimension of its kernel less that of its cokernel, is then the curve's winding number around zero: the
  shift, a = 1/z, makes all sequences that begin with zero, has no kernel, a cokernel of one dimension, and winds
  around zero once, clockwise;
- kernel or cokernel is trivial, so that T(a) is invertible if and only if it is Fredholm of index 0.

In u = 1/z the symbol is a polynomial, and its turns count the zeros inside the circle (the argument principle).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import array_api_compat as compat

from .._arrays.exchange import Array, dtype_name, namespace_of, plain_memory
from .._arrays.plain import plain
from .._arrays.properties import result_dtype_name, values_within_reach, with_one
from .._dispatch.checks import check_count, check_filter
from ..errors import InputError, InputTypeError

if TYPE_CHECKING:
    from ._symbols import Complex, Numbers

__all__ = ["OperatorIndex", "fredholm_index", "toeplitz_symbol"]


@dataclass(frozen=True)
class OperatorIndex:
    """The index of a filter's operator, as `fredholm_index` finds it.

    Attributes
    ----------
    index : int or None
        Minus the number of zeros of `sum_j w[j] u^j` inside the unit circle; None where that is not proven.
    margin : float
        A proven lower bound of the symbol's least magnitude on the circle; 0 where there is no index.
    certified : bool
        Whether the index is proven, which is whether there is one.
    reason : str
        A sentence: how far the symbol stays from zero, or why there is no index: "not Fredholm" or "not decidable".
    """

    index: int | None
    margin: float
    certified: bool
    reason: str


def fredholm_index(w: Array, /, *, channels: int = 1) -> OperatorIndex | list[OperatorIndex]:
    """Return the Fredholm index of a filter's operator on the half-line, with a proof.

        index = winding number of sum_j w[j] z^-j  =  -#{u : sum_j w[j] u^j = 0, |u| < 1}

    The identity has index 0, the shift by j positions -j. The operator is invertible if and only if the index is 0.
    The index stays the same while the filter changes by less than `margin` in all, `sum_j |dw[j]| < margin`.

    Parameters
    ----------
    w : array, (k,), (h, k) or (h, m, k), floating, complex or integer
        Lags, of any library and on any device; taken as exact. Of a layer with softplus, the effective lags. A layer
        that divides by the sum of its lags so far is not Toeplitz, and has no such index.
    channels : int
        Channels that a filter serves, as many as there are in a head: the index is that of all of them together.

    Returns
    -------
    OperatorIndex, or a list of one for each of h filters

    Raises
    ------
    TypeError
        If `w` is no array of numbers, or is traced and has no values yet.
    ValueError
        If `w` has no lags, is not finite, or holds integers that float64 does not.

    Notes
    -----
    A kernel filter reads m neighbouring channels of its head and none above its own: its symbol is a triangular matrix
    with the symbol of `w[i, -1]` all along the diagonal. The determinant is that symbol to the power of `channels`; the
    other rows of the kernel change neither index nor invertibility. `margin` is that of the diagonal.

    The proof cuts the circle into arcs until the symbol stays, on each, in a disc that is well away from zero, so that
    no turn is missed. The discs come from Taylor polynomials and contain all rounding; an FFT of n points is taken to
    err by `4 eps log2(n) + 8 eps` of the sum of the lags' magnitudes at most. Where float64 cannot tell the symbol from
    zero, the polynomials are made anew in integers of 256 bits, unless that is so in very many places.
    `margin` is at least a seventh of the true minimum, and three quarters of it where rounding does not matter: on each
    arc the disc's radius is at most 3/4 of its centre's magnitude, and the part of it that is not rounding 1/4.

    Where the symbol has a zero on the circle the operator is not Fredholm. That is proven for zeros at theta = 0 and
    pi, where sums are exact, and for symmetric and antisymmetric filters, where the symbol changes its sign. Other
    zeros on the circle are not decidable, nor are those within about 1e-17 / k of it.

    Cost: O(k log k) time and O(k) memory for a filter; about 6 ms for 1024 random lags, 0.5 s for 65536.

    Examples
    --------
    >>> import numpy as np
    >>> fredholm_index(np.asarray([0.0, 0.0, 1.0]))
    OperatorIndex(index=-2, margin=1.0, certified=True, reason='the symbol stays at least 1 away from zero')
    >>> fredholm_index(np.asarray([1.0, -1.0])).reason
    'not Fredholm: the symbol is zero at theta = 0'
    """
    channels = check_count("channels", channels, 1)
    filters = _filters(w)
    if filters.ndim == 1:
        return _index_of(filters, channels)
    return [_index_of(row, channels) for row in (filters if filters.ndim == 2 else filters[:, -1, :])]


def toeplitz_symbol(w: Array, theta: Any = None, /, *, points: int | None = None) -> Complex:
    """Return the symbols of filters at given angles, or at points all around the circle.

        a(theta) = sum_j w[j] exp(-i j theta)

    Parameters
    ----------
    w : array, (k,), (h, k) or (h, m, k), floating, complex or integer
        Lags, of any library.
    theta : array_like of reals, (...), optional
        Angles, in radians.
    points : int, optional
        Instead of angles: a grid of so many, `2 pi i / points`, by FFT.

    Returns
    -------
    NumPy array, w.shape[:-1] + theta.shape or (points,), complex128

    Raises
    ------
    TypeError
        If not one of `theta` and `points` is given, or as `fredholm_index`.
    ValueError
        If an angle is not finite, or as `fredholm_index`.

    Notes
    -----
    The matrix symbol of a kernel filter holds the symbol of `w[i, j]` where row and column, as channels of the
    head, differ by `m - 1 - j`, and zero above the diagonal.

    Cost: O(k) for an angle, O(k + n log n) for n points. Error, of the sum of the lags' magnitudes: at most `4 eps k`
    for given angles; on a grid of a power of two points, that of `fredholm_index`.

    Examples
    --------
    >>> import numpy as np
    >>> toeplitz_symbol(np.asarray([1.0, 2.0]), points=2)
    array([ 3.+0.j, -1.+0.j])
    >>> toeplitz_symbol(np.asarray([1.0, 2.0]), [0.0, np.pi / 3]).round(3)
    array([3.+0.j   , 2.-1.732j])
    """
    import numpy as np

    from ._symbols import at_angles, normalised, on_grid, scaled

    if (theta is None) == (points is None):
        raise InputTypeError("expected either theta, the angles, or points, the number of equally spaced ones")
    filters, exponent = normalised(_filters(w))
    if points is not None:
        return scaled(on_grid(filters, check_count("points", points, 1)), exponent)
    if isinstance(theta, int | float | list | tuple):
        try:
            theta = np.asarray(theta)
        except ValueError as error:
            raise InputTypeError("theta must be angles, and is a list of lists of different lengths") from error
    angles = _on_host("theta", theta)  # an array in degrees, say, is refused
    if angles.dtype.kind not in "biuf":
        raise InputTypeError(f"theta must be real numbers, angles in radians, not {angles.dtype}")
    angles = angles.astype(np.float64)
    if not np.all(np.isfinite(angles)):
        raise InputError("theta must be finite, and has nan or inf: give angles in radians")
    flat = at_angles(filters, angles.reshape(-1))
    return np.reshape(scaled(flat, exponent), (*filters.shape[:-1], *angles.shape))


def _on_host(name: str, a: Array) -> Any:
    """Return the numbers of an array of any library in NumPy."""
    import numpy as np

    a = plain(name, a)
    xp = namespace_of(a)
    if not values_within_reach(a) and not compat.is_dask_array(a):
        raise InputTypeError(f"{name} is traced and has no values yet: call this outside jit, grad, vmap and compile")
    if compat.is_torch_array(a):
        a = plain_memory(a, name).cpu()
    if compat.is_cupy_array(a):
        a = a.get()
    if dtype_name(a.dtype) == "bfloat16":
        a = xp.astype(a, xp.float32)
    return np.asarray(a)


def _filters(w: Array) -> Numbers:
    """Return finite filters of any library as float64 or complex128 in NumPy."""
    import numpy as np

    host = _on_host("w", w)
    if host.dtype.kind in "iu":
        if np.any(host > 2**53) or np.any(host < -(2**53)):
            raise InputError("w must hold numbers that float64 does, and has integers beyond 2^53: convert it first")
        host = host.astype(np.float64)
    result_dtype_name(host)
    check_filter("w", host, (1, 2, 3))
    host = with_one(host, *range(host.ndim > 1, host.ndim))  # no lags, and no rows of a kernel, are zeros
    if not np.all(np.isfinite(host)):
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(host))[0])
        raise InputError(f"w must be finite, and w{list(place)} is {host[place]}")
    return np.ascontiguousarray(host, dtype=np.complex128 if host.dtype.kind == "c" else np.float64)


def _index_of(w: Numbers, channels: int) -> OperatorIndex:
    """Return the index of one filter."""
    import numpy as np

    from ._symbols import normalised, zero_on_circle
    from ._winding import winding_number

    used = np.flatnonzero(w)
    if len(used) == 0:
        return _none("not Fredholm: every lag is zero")
    # Zeros before the first lag are shifts, and those after the last one nothing.
    shifts, w = int(used[0]), w[used[0] : used[-1] + 1]
    place = zero_on_circle(w)
    if place is not None:
        return _none(f"not Fredholm: the symbol is zero {place}")
    lags, exponent = normalised(w)
    found = winding_number(lags)
    bound = _below(found.bound, exponent)
    if found.turns is None:
        return _none(
            f"not decidable: near theta = {found.angle:.6g} the symbol's magnitude, at most {bound:.2g}, "
            "was not told from zero"
        )
    if bound == 0:
        return _none("not decidable: the symbol's least magnitude is below the smallest float64; scale the filter up")
    reason = f"the symbol stays at least {bound:.3g} away from zero"
    return OperatorIndex(channels * (found.turns - shifts), bound, True, reason)


def _none(reason: str) -> OperatorIndex:
    return OperatorIndex(None, 0.0, False, reason)


def _below(bound: float, exponent: int) -> float:
    """Return the largest float64 that is not above `bound * 2^exponent`."""
    import numpy as np

    with np.errstate(over="ignore"):
        product = float(np.ldexp(bound, exponent))
        return math.nextafter(product, 0) if np.ldexp(product, -exponent) > bound else product
