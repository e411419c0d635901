"""The operations that the engine needs of a device; each passes over memory once.

Signals are time first, `(n, rows, heads, channels)`, with any strides. Buffers of transforms are `(N, rows, heads,
channels)`, in C order. A column is the signal of one row and channel; statistics of columns are `(rows, heads,
channels)`. Filters are signals of one row, `(lags, 1, heads, m)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tmm_core.backend import Array

__all__ = ["BLOCK", "FAR", "NEVER", "ZERO", "Operations", "Survey"]

BLOCK = 64
"""Times that a survey reduces to one entry of its tables."""

FAR, NEVER = 1 << 30, -1
"""The time that stands for no entry, where the first and where the last entry is wanted."""

ZERO = -10000
"""The exponent of a column of zeros."""


@dataclass(frozen=True)
class Survey:
    """Statistics of each column, and where its non-finite entries are, in each block of times."""

    exponents: Array
    """Exponents of the power of two just above the largest finite magnitude of the column; `ZERO` for zeros."""
    norms: Array
    """Euclidean norms of the finite entries, divided by that power of two."""
    nearest: Array
    """The time of the last, or first, non-finite entry of the column; `NEVER`, or `FAR`, where there is none."""
    marks: Array
    """The same for each block of times, `(blocks, rows, heads, channels)`."""


class Operations(Protocol):
    """The operations; those without a result write to their arguments."""

    xp: Any
    """The array namespace, for arrays with few entries."""

    def survey(self, signals: Array, real: Any, *, last: bool) -> Survey:
        """Return statistics of each column of signals; norms have the real dtype `real`."""

    def load(self, signals: Array, exponents: Array, length: int, dtype: Any, *, modulate: bool) -> Array:
        """Return the buffer `x[m] * 2**-exponent * t[m]`; zeros after the end of the signals and for non-finite x.

        With `modulate`, t[m] = exp(i pi m / 2N), else 1.
        """

    def transform(self, buffer: Array, *, inverse: bool) -> None:
        """Transform along the first axis, in place; neither direction divides by the length."""

    def apply_filters(
        self, spectra: Array, filters: Array, relative_scales: Array, width: int, missing: int, *, adjoint: bool
    ) -> Array:
        """Return `sum_i X[..., c'] * W[..., i] * 2**relative_scales[..., c, i]` for `width` channels c.

        c' is c + i, or c + m - 1 - i for the adjoint, and counts from `missing` channels of zeros before the spectra;
        there are zeros after them, too.
        """

    def cross_spectrum(self, x: Array, g: Array, relative_scales: Array) -> Array:
        """Return `sum conj(X) * G * 2**relative_scales` over rows and channels, `(N, heads)`."""

    def store(self, buffer: Array, out: Array, exponents: Array, noise: Array, *, modulate: bool) -> None:
        """Write `y * 2**exponent` to signals, with y = `buffer[m] / N`, or `real(buffer[m] * conj(t[m])) / N`.

        A result that overflows, but would not for some y within `noise`, is replaced by a finite one.
        """

    def write_nan(
        self,
        out: Array,
        signals: Array,
        survey: Survey,
        first: Array,
        reach: Array | None,
        lags: int,
        kernel_size: int,
        *,
        adjoint: bool,
    ) -> None:
        """Write NaN to outputs that read a non-finite entry of the signals or a lag from `first`, `(heads,)`, on.

        `reach`, `(rows, n)`, is how many times back (or ahead) an output reads; by default to the start (or the end).
        """
