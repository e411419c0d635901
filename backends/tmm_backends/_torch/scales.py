"""Scaling of signals and filters into the range of transforms, by exact powers of two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tmm_core.backend import Piece, dtype_name, error_factor, surely_all

from .pieces import take
from .transforms import kernel_row

__all__ = ["Scales", "rescaled"]

# Peaks between these powers of two need no scaling: spectra of up to 2^22 times do not overflow, and rounding errors of
# their products stay above the smallest normal number.
SAFE = {torch.float32: (-50, 30), torch.float64: (-400, 300)}

ZERO = -1000
"""The exponent of a peak of zero."""


@dataclass(frozen=True)
class Scales:
    """Scales of two factors: binary exponents of lags `(heads, m)`, or of channels `(rows, 1, heads, channels)`.

    `first` and `second` are these exponents, or the peaks themselves where all are `safe`: nothing is scaled then,
    which gives the same bits. While values are unknown (traced), factors count as neither `finite` nor `safe`.
    """

    finite: bool
    safe: bool
    dtype: torch.dtype
    first: Tensor
    second: Tensor

    @staticmethod
    def of_product(w: Tensor, x: Tensor) -> Scales:
        """Return the scales of lags and signals."""
        rows = _peaks(w.flatten(0, 1), w.dtype).reshape(w.shape[:2])
        return Scales._of(rows, _peaks(_by_head(x, w.shape[0]), w.dtype), w.dtype)

    @staticmethod
    def of_correlation(x: Tensor, g: Tensor, dtype: torch.dtype, heads: int) -> Scales:
        """Return the scales of inputs and outputs."""
        return Scales._of(_peaks(_by_head(x, heads), dtype), _peaks(_by_head(g, heads), dtype), dtype)

    @staticmethod
    def _of(first: Tensor, second: Tensor, dtype: torch.dtype) -> Scales:
        low, high = SAFE[first.dtype]
        peaks = torch.cat([first.flatten(), second.flatten()])
        safe = surely_all((peaks == 0) | (peaks > 2.0**low) & (peaks < 2.0**high))
        finite = safe or surely_all(peaks < math.inf)
        if not safe:
            first, second = (torch.where(peak > 0, torch.frexp(peak).exponent, ZERO) for peak in (first, second))
        return Scales(finite, safe, dtype, first, second)

    def scaled_filters(self, w: Tensor, heads: slice) -> Tensor:
        """Return the lags of some heads, scaled to about 1 where that is needed."""
        return w[heads] if self.safe else ldexp(w[heads], -self.first[heads, :, None])

    def scaled_signals(
        self, x: Tensor, piece: Piece, before: int, after: int, kernel_size: int, adjoint: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return a block of signals, the scales of kernel rows for each output, and the exponents of the outputs."""
        block = take(x, piece, before, after)
        if self.safe:
            return block, None, None
        exponents = take(self.second, piece, before, after, ZERO)
        rows = self.first[piece.heads, None].unbind(-1)  # of the kernel, each (heads, 1)
        sizes = torch.stack([kernel_row(exponents, i, kernel_size, adjoint) + row for i, row in enumerate(rows)], -1)
        largest = sizes.amax(-1)
        return ldexp(block.to(self.dtype), -exponents), _exp2(sizes - largest[..., None], self.dtype), largest

    def noise(self, w: Tensor, block: Tensor, row_scales: Tensor, adjoint: bool) -> Tensor:
        """Return the bound of rounding errors of scaled outputs, `(1, rows, heads, channels)`."""
        kernel_size, norms = w.shape[1], torch.linalg.vector_norm(block, dim=0, keepdim=True)
        read = torch.stack([kernel_row(norms, i, kernel_size, adjoint) for i in range(kernel_size)], -1)
        norm_products: Tensor = (read * row_scales * torch.linalg.vector_norm(w, dim=-1)[:, None]).sum(-1)
        return norm_products.mul_(error_factor(block.shape[0], dtype_name(block.dtype)))

    def noise_of_pairs(self, sources: Tensor, targets: Tensor, row_scales: Tensor) -> Tensor:
        """Return the bound of rounding errors of scaled correlations, `(heads, m)`."""
        kernel_size = row_scales.shape[-1]
        first, second = (torch.linalg.vector_norm(a, dim=0, keepdim=True) for a in (sources, targets))
        read = torch.stack([kernel_row(first, i, kernel_size, False) for i in range(kernel_size)], -1)
        norm_products: Tensor = (read * row_scales * second[..., None]).sum((0, 1, 3))
        return norm_products.mul_(error_factor(sources.shape[0], dtype_name(sources.dtype)))

    def largest_pairs(self, kernel_size: int) -> Tensor | None:
        """Return the exponents `(heads, m)` of the largest products in each correlation, None if safe."""
        if self.safe:
            return None
        padded = functional.pad(self.first, (kernel_size - 1, 0), value=ZERO)
        pairs = [kernel_row(padded, i, kernel_size, False) + self.second for i in range(kernel_size)]
        return torch.stack([pair.amax((0, 1, 3)) for pair in pairs], -1)

    def scaled_pairs(
        self, x: Tensor, g: Tensor, piece: Piece, kernel_size: int, largest: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return blocks of inputs and outputs, and the scales of their products relative to the largest."""
        sources, targets = take(x, piece, kernel_size - 1), take(g, piece)
        if largest is None:
            return sources, targets, None
        first, second = take(self.first, piece, kernel_size - 1, 0, ZERO), take(self.second, piece)
        pairs = torch.stack([kernel_row(first, i, kernel_size, False) + second for i in range(kernel_size)], -1)
        row_scales = _exp2(pairs - largest[piece.heads, None], self.dtype)
        return ldexp(sources.to(self.dtype), -first), ldexp(targets.to(self.dtype), -second), row_scales


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)


def _peaks(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest magnitude over axis 1 (of real and imaginary parts), NaN where there is one."""
    if a.is_complex():
        return _peaks(torch.view_as_real(a.resolve_conj()), dtype).amax(-1)
    # On a CPU, aminmax along an axis takes six times as long as amax and amin.
    return torch.maximum(a.amax(1, keepdim=True), -a.amin(1, keepdim=True)).to(dtype.to_real())


def ldexp(a: Tensor, exponents: Tensor) -> Tensor:
    """Return `a * 2**exponents`, in three factors: the power may be out of range where the result is not."""
    third = exponents // 3
    half = (exponents - third) // 2
    for step in (third, half, exponents - third - half):
        a = a * _exp2(step, a.dtype)
    return a


def rescaled(unit: Tensor, exponents: Tensor, noise: Tensor) -> Tensor:
    """Return `unit * 2**exponents`; what overflows only by a rounding error of `unit` up to `noise` is made finite.

    Such an error of a far larger neighbour in time may overflow where the exact result does not.
    """
    result = ldexp(unit, exponents)
    finite = result.isfinite()
    if surely_all(finite):
        return result
    size = unit.abs()
    clipped = torch.where(size > noise, 1 - noise / size, 0)
    return torch.where(finite, result, ldexp(unit * clipped, exponents))


def _exp2(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `2**exponents` exactly, from the bits; exponents out of the normal numbers' range are clamped to it."""
    if dtype.to_real() == torch.float64:
        return (exponents.clamp(-1022, 1023).to(torch.int64) + 1023 << 52).view(torch.float64)
    return (exponents.clamp(-126, 127).to(torch.int32) + 127 << 23).view(torch.float32)
