"""What the engine asks of a device, in operations that pass over memory once each.

Signals are time first, `(n, rows, heads, channels)`, with any strides, and so are buffers of transforms, `(N, rows,
heads, channels)`, in C order. Numbers of a column, of one row and channel, are `(rows, heads, channels)`. Filters are
signals of one row, `(lags, 1, heads, kernel_size)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tmm_core._arrays.exchange import Array

__all__ = ["BLOCK", "FAR", "NEVER", "ZERO", "Operations", "Survey"]

BLOCK = 64
"""Times that a survey sums up in one entry of its tables."""

FAR, NEVER = 1 << 30, -1
"""The time of no entry, where the first and where the last one is asked for."""

ZERO = -10000
"""The exponent of a column of zeros."""


@dataclass(frozen=True)
class Survey:
    """What one look at all entries tells: of each column, and where non-finite entries are in each block of times."""

    exponents: Array
    """Of the power of two just above the column's largest finite entry."""
    norms: Array
    """Of the finite entries, divided by that power of two."""
    nearest: Array
    """The time of the column's last, or first, non-finite entry; `NEVER`, or `FAR`, where there is none."""
    marks: Array
    """The same for each block of times, `(blocks, rows, heads, channels)`."""


class Operations(Protocol):
    """The operations; those without a result write into what they are given."""

    xp: Any
    """The namespace for arrays of few entries."""

    def survey(self, signals: Array, real: Any, *, last: bool) -> Survey:
        """Return what the engine must know of signals, in the real dtype `real`."""

    def load(self, signals: Array, exponents: Array, length: int, dtype: Any, *, modulate: bool) -> Array:
        """Return the buffer `x[m] * 2**-exponent * t[m]`, zeros from the end of the signals on and for non-finite x.

        t[m] = exp(i pi m / 2N) where `modulate`, else 1.
        """

    def transform(self, buffer: Array, *, inverse: bool) -> None:
        """Transform along the first axis, in place; neither direction divides by the length."""

    def apply_filters(
        self, spectra: Array, filters: Array, relative_scales: Array, width: int, missing: int, *, adjoint: bool
    ) -> Array:
        """Return `sum_i X[..., c'] * W[..., i] * 2**relative_scales[..., c, i]` for `width` channels c.

        Row i of the kernel reads the channel c + i, or c + m - 1 - i for the adjoint, of the spectra with `missing`
        channels of zeros before them, and of zeros behind them.
        """

    def cross_spectrum(self, x: Array, g: Array, relative_scales: Array) -> Array:
        """Return `sum conj(X) * G * 2**relative_scales` over rows and channels, `(N, heads)`."""

    def store(self, buffer: Array, out: Array, exponents: Array, noise: Array, *, modulate: bool) -> None:
        """Write `y * 2**exponent` into signals, y the real part of `buffer[m] * conj(t[m]) / N` where `modulate`.

        What leaves the range for no more than `noise` in y comes back to it.
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
        """Write NaN wherever an output reads a non-finite entry of the signals or a lag from `first`, `(heads,)`, on.

        `reach`, `(rows, n)`, is how far back (or ahead) each time may read, by default to the start (or the end).
        """
