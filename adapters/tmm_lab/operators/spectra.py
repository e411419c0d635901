"""Spectra of causal Toeplitz matrices: singular values, rank and condition of the finite sections T_n, the inverse.

The finite section T_n is the leading n x n block of the operator, what a layer applies to n tokens. A filter of index
-m on the half-line shows in its sections: m singular values fall exponentially with n, the others tend to no less than
the symbol's smallest magnitude (A. Böttcher and B. Silbermann, *Introduction to Large Truncated Toeplitz Matrices*,
chapter 4). How soon is up to the zeros: those at |u| < 1 give singular values of the size |u|^n.
Filters are arrays of float64 or complex128, converted where they are not; all is computed on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigvalsh, svdvals
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from tmm_core import causal_toeplitz, causal_toeplitz_inverse, causal_toeplitz_matmul
from tmm_core.errors import InputError, InputTypeError

__all__ = ["DENSE", "FiniteSection", "dominant_lag", "finite_section", "inverse_growth"]

DENSE = 4096
"""Rows up to which a section is formed and all its singular values are computed: 128 MiB and about 6 s there."""

_EPS = float(np.finfo(np.float64).eps)
_RESIDUAL = 1e-3  # relative, of the squared singular values at the ends, where the others are not computed
_KRYLOV = 40  # vectors that ARPACK keeps
_FIRST_LAGS = 32  # of the inverse, from which its growth is first told


@dataclass(frozen=True)
class FiniteSection:
    """What the matrix T_n of a filter is like."""

    n: int
    """Rows and columns (tokens)."""
    largest: float
    """The largest singular value, the norm of T_n; NaN where it was not found."""
    smallest: float
    """The smallest one; below `n * eps * largest` its digits are rounding, and it is 0 where they were not computed.

    NaN where it was not found.
    """
    rank: int | None
    """Singular values above `n * eps * largest`; None where some are not and `n` is too large to count them."""
    condition: float
    """`largest / smallest`; infinite where the rank is below n: beyond `1 / (n * eps)` float64 cannot tell.

    NaN where one of the two was not found.
    """
    singular_values: NDArray[np.float64] | None
    """All n of them, descending; None where `n` is too large."""

    @property
    def vanishing(self) -> int | None:
        """Singular values that float64 does not tell from 0; None where they were not counted."""
        return None if self.rank is None else self.n - self.rank

    @property
    def missing(self) -> str:
        """A sentence: which of the two ends was not found, and why; empty where both were."""
        ends = [name for name in ("largest", "smallest") if math.isnan(getattr(self, name))]
        what = f"the {' and the '.join(ends)} singular value{'s'[: len(ends) != 1]}"
        return f"{what} not found: ARPACK did not converge" if ends else ""


def finite_section(w: ArrayLike, n: int, /, *, dense: bool | None = None) -> FiniteSection:
    """Return singular values, numerical rank and condition number of the n x n matrix T[t, s] = w[t - s].

    Parameters
    ----------
    w : array, (k,), real or complex
        Lags; fewer than `n` give a banded matrix, more are unused.
    n : int
        Rows and columns (tokens), at least 1.
    dense : bool, optional
        Whether to form the matrix and compute all its singular values; by default up to n = `DENSE`.

    Returns
    -------
    FiniteSection

    Raises
    ------
    TypeError
        If `w` holds no numbers.
    ValueError
        If `w` is not one row of finite lags, or `n` is less than 1.

    Notes
    -----
    Dense: O(n^3) time and 8 n^2 bytes. A real T_n with its rows reversed is symmetric, and the magnitudes of its
    eigenvalues are the singular values: a third of the time of an SVD. Absolute error about `eps * largest`.

    Otherwise the two ends by ARPACK, from products with `w` and with the lags of the inverse: O(n log^2 n) and some
    hundred products, memory linear in n; relative error at most 5e-4, the residual at which ARPACK stops, and less than
    1e-4 where it was compared. An end that ARPACK does not find is NaN, and `missing` says so. Leading zeros are no
    matter of rounding: z of them are z singular values that are exactly 0, and the others are those of the section of n
    - z rows without the first z lags.

    Examples
    --------
    >>> finite_section([0.0, 1.0], 5).rank  # the shift: nilpotent
    4
    """
    w, n = _filter(w), int(n)
    if n < 1:
        raise InputError(f"n must be at least 1 row, and is {n}")
    w = w[:n]
    scale = _power_of_two(w)
    if scale == 0:
        return FiniteSection(n, 0.0, 0.0, 0, math.inf, np.zeros(n) if n <= DENSE else None)
    zeros = int(np.flatnonzero(w)[0])
    w = w[zeros:] / scale
    dense = n <= DENSE if dense is None else dense
    if dense or n - zeros < 3:  # too few rows for ARPACK
        values = np.concatenate([_singular_values(w, n - zeros), np.zeros(zeros)])
        largest, smallest = values[0], values[-1]
        rank: int | None = int(np.count_nonzero(values > n * _EPS * largest))
        return FiniteSection(
            n, float(largest * scale), float(smallest * scale), rank, _ratio(largest, smallest, n), values * scale
        )
    largest, smallest = _ends(w, n - zeros)
    smallest = 0.0 if zeros else smallest
    condition = _ratio(largest, smallest, n)
    return FiniteSection(n, largest * scale, smallest * scale, n if condition < math.inf else None, condition, None)


def inverse_growth(w: ArrayLike, n: int, /) -> NDArray[np.float64]:
    """Return the factor by which the lags of the inverse of T(w) grow from one lag to the next, in the long run.

        |v[j]| ~ factor^j,  where  sum_j v[j] u^j = 1 / sum_j w[j] u^j

    It is 1 / |u| of the zero nearest to the origin: below 1 the inverse decays, and the operator on the half-line is
    invertible; above 1 a layer that undoes this one is unstable.

    Parameters
    ----------
    w : array, (k,) or (h, k), real or complex
        Lags.
    n : int
        Lags of the inverse to tell it from (tokens); at least 32 are taken.

    Returns
    -------
    array, () or (h,)
        The factor per lag; 0 for a filter of one lag at 0, infinite where `w[0]` is zero: no matrix T_n has an inverse.

    Raises
    ------
    TypeError
        If `w` holds no numbers.
    ValueError
        If a lag is not finite, or there are none.

    Notes
    -----
    O(h n log^2 n). The factor is the ratio of the largest lags in the last two quarters of the n, whose distance
    is n/4 lags: the error is about log(c) * 4/n, where c is how much the inverse differs from a power there, and zeros
    of almost the same size decide how slowly that falls. Nothing overflows: the lags are first scaled by powers of
    a bound on the nearest zero, and again by what each half of the lags shows.

    Examples
    --------
    >>> round(float(inverse_growth([1.0, -0.5], 64)), 6)  # the inverse's lags are 1, 1/2, 1/4, ...
    0.5
    """
    w = _filter(w, heads=True)
    rows = w.reshape(-1, w.shape[-1])
    growth = np.zeros(len(rows))
    growth[rows[:, 0] == 0] = math.inf
    open_ = np.flatnonzero((rows[:, 0] != 0) & (rows[:, 1:] != 0).any(axis=1))
    if len(open_):
        with np.errstate(over="ignore"):  # a first lag of 1e-300 before others of 1e300
            growth[open_] = np.exp(_log_growth(rows[open_], max(n, _FIRST_LAGS)))
    return growth.reshape(w.shape[:-1])


def dominant_lag(w: ArrayLike, /) -> tuple[int, float]:
    """Return the lag that holds most of a filter's energy, and its share: how much the filter is a shift.

    Parameters
    ----------
    w : array, (k,), real or complex
        Lags.

    Returns
    -------
    lag : int
        `argmax |w[j]|` (tokens back), the smallest of equals.
    share : float
        `|w[lag]|^2 / sum_j |w[j]|^2`, from 1/k to 1: 1 for a shift, whatever its factor. NaN where all lags are zero.

    Raises
    ------
    TypeError, ValueError
        As `finite_section`.

    Examples
    --------
    >>> dominant_lag([0.0, 0.0, -3.0, 0.0])
    (2, 1.0)
    """
    w = _filter(w)
    scale = _power_of_two(w)
    if scale == 0:
        return 0, math.nan
    energy = np.abs(w / scale) ** 2
    lag = int(np.argmax(np.abs(w)))
    return lag, float(energy[lag] / energy.sum())


def _filter(w: ArrayLike, *, heads: bool = False) -> NDArray[Any]:
    """Return lags as float64 or complex128, checked."""
    w = np.asarray(w)
    if w.dtype.kind not in "biufc" and w.dtype.name != "bfloat16":
        raise InputTypeError(f"w must hold numbers, and is an array of {w.dtype}")
    if w.ndim not in ((1, 2) if heads else (1,)) or w.shape[-1] == 0:
        expected = "(k,) or (h, k)" if heads else "(k,), the lags of one filter,"
        raise InputError(f"w must be {expected} with at least one lag, and has the shape {w.shape}")
    w = w.astype(np.complex128 if w.dtype.kind == "c" else np.float64)
    if not np.isfinite(w).all():
        raise InputError("w must be finite, and has NaN or infinite lags: a spectrum of them has no meaning")
    return w


def _power_of_two(w: NDArray[Any]) -> float:
    """Return a scale near the largest lag that changes no digit when it is divided by; 0 where all are zero."""
    largest = float(max(np.abs(w.real).max(), np.abs(w.imag).max()))
    # frexp gives 1/2 <= mantissa < 1; not beyond 2^1023, and subnormal scales would lose digits.
    return 0.0 if largest == 0 else math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -1022))


def _singular_values(w: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Return all singular values of T_n, descending."""
    matrix = causal_toeplitz(w, n)
    if np.iscomplexobj(w):
        return np.asarray(svdvals(matrix, overwrite_a=True, check_finite=False), np.float64)
    hankel = np.ascontiguousarray(matrix[::-1])  # h[t, s] = w[n-1-t-s], symmetric
    return np.sort(np.abs(eigvalsh(hankel, overwrite_a=True, check_finite=False)))[::-1]


def _ends(w: NDArray[Any], n: int) -> tuple[float, float]:
    """Return the largest and the smallest singular value; the latter as 0 where float64 cannot tell it from that."""
    largest = _norm(w, n)
    known = float(np.linalg.norm(w)) if math.isnan(largest) else largest  # that of a column is not larger
    with np.errstate(all="ignore"):  # an inverse may grow beyond all numbers
        inverse = causal_toeplitz_inverse(w, n)
        column = float(np.linalg.norm(inverse))  # at most the norm of the inverse matrix
    if not column * known * n * _EPS < 1:
        return largest, 0.0
    return largest, 1 / _norm(inverse, n)


def _norm(w: NDArray[Any], n: int) -> float:
    """Return the largest singular value of T_n from products alone; NaN where ARPACK does not find it."""

    def square(x: NDArray[Any]) -> NDArray[Any]:  # T^H T
        y: NDArray[Any] = causal_toeplitz_matmul(w, causal_toeplitz_matmul(w, x.reshape(n)), adjoint=True)
        return y

    operator = LinearOperator((n, n), dtype=w.dtype, matvec=square)
    start = np.random.default_rng(0).standard_normal(n).astype(w.dtype)  # the same result on every call
    # The largest values of a smooth symbol lie as near as 1/n^2 to each other: the vectors converge late, the values
    # do not, and the tolerance is all that keeps ARPACK from going on.
    try:
        largest = eigsh(operator, k=1, tol=_RESIDUAL, ncv=min(n, _KRYLOV), v0=start, return_eigenvectors=False)[0]
    except ArpackError:
        return math.nan
    return math.sqrt(largest)


def _ratio(largest: float, smallest: float, n: int) -> float:
    """Return the condition; NaN where an end is, unless the smallest singular value is known to be 0."""
    return math.inf if smallest == 0 or smallest <= n * _EPS * largest else float(largest / smallest)


def _log_growth(w: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Return the logarithm of the inverses' growth for filters (h, k) whose first lag is not their only one."""
    lags = np.arange(w.shape[-1])
    with np.errstate(divide="ignore"):
        logs = np.log(np.abs(w)) - np.log(np.abs(w[:, :1]))
    phases = np.exp(1j * np.angle(w)) if np.iscomplexobj(w) else np.sign(w)
    phases = phases / phases[:, :1]
    # Scaled by r^j with this r no lag is larger than the first, and no zero nearer than 1/2.
    growth: NDArray[np.float64] = (logs[:, 1:] / lags[1:]).max(axis=-1)
    sizes = [n]
    while sizes[0] >= 2 * _FIRST_LAGS:
        sizes.insert(0, sizes[0] // 2)
    for size in sizes:
        with np.errstate(all="ignore"):
            v = np.abs(causal_toeplitz_inverse(phases * np.exp(logs - lags * growth[:, None]), size))
            third, fourth = (v[:, a * size // 4 : (a + 1) * size // 4].max(axis=-1) for a in (2, 3))
            step = np.log(fourth / third) / (size / 4)
        growth = growth + np.where(np.isfinite(step), step, 0)
    return growth
