"""How work is cut into pieces that fit the cache, and scaled into the range of transforms by exact powers of two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tmm_core._arrays import properties as arrays

from .transforms import Algorithm, Direct, Fourier, reads

__all__ = ["Part", "Scales", "by_power", "choose_algorithm", "pieces", "read", "regained"]

# Entries of a piece at least and at most. On a CPU, measured on two cores with 1 MB of L2 each at n = 1024, 8192 and
# 65536: from 2^15 to 2^18 the differences are below the noise, 2^20 is 1.4 times slower. Elsewhere only memory counts.
PIECE = {"cpu": (1 << 16, 1 << 18)}
PIECE_ELSEWHERE = (1 << 20, 1 << 24)

# Direct sums are faster up to this length, or for as few lags, where many columns share a matrix. Milliseconds on one
# core, direct and by transforms, for float32 as (batch, n, heads, channels of a head):
#     (8, 256, 4, 64)   k = 256:  3.5 and 4.8     (2, 2048, 4, 64)  k = 32:   7.6 and 11.9
#     (8, 320, 4, 64)   k = 320:  6.0 and 5.9     (2, 2048, 4, 64)  k = 64:   9.0 and 12.8
#     (4, 512, 8, 16)   k = 512:  4.0 and 2.9     (1, 8192, 4, 64)  k = 64:  21.2 and 22.2
#     (1, 256, 8, 16)   k = 256:  0.4 and 0.5     (1, 8192, 4, 64)  k = 128: 24.7 and 21.9
#     (1, 512, 64, 4)   k = 32:   5.2 and 2.0     (1, 65536, 1, 32) k = 32:   117 and 36
# Correlations cross a little later.
DIRECT_LENGTH = 320
DIRECT_LAGS = 64
DIRECT_COLUMNS = 64

# Peaks between these powers of two need no scaling: spectra of up to 2^22 times do not overflow, and what rounding
# leaves of their products is not lost below the smallest normal number.
SAFE = {torch.float32: (-50, 30), torch.float64: (-400, 300)}

ZERO = -1000
"""Exponent that stands for a peak of zero."""


class Part(NamedTuple):
    """Rows, heads, and channels of each head that are computed at once."""

    rows: slice
    heads: slice
    channels: slice


def choose_algorithm(shape: torch.Size, lags: int, dtype: torch.dtype, device: torch.device) -> Algorithm:
    """Return how to compute on signals of `shape`, `(rows, n, heads, channels)`."""
    rows, n, _, width = shape
    short = n <= DIRECT_LENGTH or lags <= DIRECT_LAGS
    if device.type == "cpu" and short and rows * width >= DIRECT_COLUMNS and _multiplies_exactly(dtype):
        return Direct(n, lags, dtype, device)
    return Fourier(n, lags, dtype, device)


def _multiplies_exactly(dtype: torch.dtype) -> bool:
    """Return whether matrix products use every bit: users may allow fewer for float32."""
    if dtype.is_complex:
        return False  # direct sums of complex values were never the faster ones
    flags = (torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    return dtype == torch.float64 or all(flag.fp32_precision in ("none", "ieee") for flag in flags)


def pieces(
    shape: torch.Size,
    kernel_size: int,
    device: torch.device,
    algorithm: Algorithm | None = None,
    *,
    whole_heads: bool = False,
) -> Iterator[tuple[slice, Iterator[Part]]]:
    """Cut signals of `shape`, `(rows, n, heads, channels)`: first by heads, whose filters are then prepared once."""
    rows, n, heads, width = shape
    least, most = PIECE.get(device.type, PIECE_ELSEWHERE)
    if isinstance(algorithm, Direct):  # which keeps no spectra beside its pieces
        columns = min(most // algorithm.span, max(shape.numel() // 4, most) // n)
    else:
        columns = min(max(shape.numel() // 16, least), most) // n
    # Eight complex64 side by side fill a cache line: below that, strided transforms read lines twice.
    columns = max(1, columns, min(8, shape.numel() // (8 * n)))
    channels = width if whole_heads else min(width, max(columns, 4 * (kernel_size - 1)))
    channels = -(-width // -(-width // channels))  # equal pieces
    together = max(1, columns // width)
    if isinstance(algorithm, Direct):
        together = min(together, max(1, most // (kernel_size * algorithm.block * algorithm.span)))
    at_once = max(1, columns // (min(together, heads) * channels))
    for start in range(0, heads, together):
        some = slice(start, min(start + together, heads))
        parts = (
            Part(slice(row, min(row + at_once, rows)), some, slice(channel, min(channel + channels, width)))
            for row in range(0, rows, at_once)
            for channel in range(0, width, channels)
        )
        yield some, parts


def read(a: Tensor, part: Part, before: int = 0, after: int = 0, fill: float = 0) -> Tensor:
    """Return a part of `(rows, n, heads, channels)`, time first, with more channels on each side; a view if without."""
    low, high, width = part.channels.start - before, part.channels.stop + after, a.shape[-1]
    block = a[part.rows, :, part.heads, max(low, 0) : min(high, width)].movedim(1, 0)
    if low < 0 or high > width:
        block = functional.pad(block, (max(-low, 0), max(high - width, 0)), value=fill)
    return block


@dataclass(frozen=True)
class Scales:
    """Powers of two by which two factors exceed 1: lags `(heads, m)`, or channels `(rows, 1, heads, channels)`.

    `first` and `second` are those exponents, or the peaks themselves where all are safe: nothing is scaled then, which
    does not change a bit of the results. Where values are not looked at, nothing is known to be finite or safe.
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
        finite = safe = False
        if arrays.values_known(first):
            low, high = SAFE[first.dtype]
            peaks = torch.cat([first.flatten(), second.flatten()])
            least, most = (peak.item() for peak in torch.aminmax(peaks.masked_fill_(peaks == 0, 1)))
            finite, safe = most < math.inf, 2.0**low < least and most < 2.0**high
        if not safe:
            first, second = (torch.where(peak > 0, torch.frexp(peak).exponent, ZERO) for peak in (first, second))
        return Scales(finite, safe, dtype, first, second)

    def unit_filters(self, w: Tensor, heads: slice) -> Tensor:
        """Return the lags of some heads, of size about 1 where scaling is needed."""
        return w[heads] if self.safe else by_power(w[heads], -self.first[heads, :, None])

    def unit_signals(
        self, x: Tensor, part: Part, before: int, after: int, kernel_size: int, adjoint: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return a block of signals, the kernel rows' shares of each output, and the exponents of the outputs."""
        block = read(x, part, before, after)
        if self.safe:
            return block, None, None
        exponents = read(self.second, part, before, after, ZERO)
        rows = self.first[part.heads, None].unbind(-1)  # of the kernel, each (heads, 1)
        sizes = torch.stack([reads(exponents, i, kernel_size, adjoint) + row for i, row in enumerate(rows)], -1)
        largest = sizes.amax(-1)
        return by_power(block.to(self.dtype), -exponents), _power(sizes - largest[..., None], self.dtype), largest

    def noise(self, w: Tensor, block: Tensor, shares: Tensor, adjoint: bool) -> Tensor:
        """Return how far rounding may take the outputs `(1, rows, heads, channels)` of scaled filters and signals."""
        kernel_size, norms = w.shape[1], torch.linalg.vector_norm(block, dim=0, keepdim=True)
        read = torch.stack([reads(norms, i, kernel_size, adjoint) for i in range(kernel_size)], -1)
        heard: Tensor = (read * shares * torch.linalg.vector_norm(w, dim=-1)[:, None]).sum(-1)
        return heard.mul_(_rounding(block))

    def noise_of_pairs(self, sources: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        """Return how far rounding may take the correlations `(heads, kernel_size)` of scaled inputs and outputs."""
        kernel_size = shares.shape[-1]
        first, second = (torch.linalg.vector_norm(a, dim=0, keepdim=True) for a in (sources, targets))
        read = torch.stack([reads(first, i, kernel_size, False) for i in range(kernel_size)], -1)
        heard: Tensor = (read * shares * second[..., None]).sum((0, 1, 3))
        return heard.mul_(_rounding(sources))

    def largest_pairs(self, kernel_size: int) -> Tensor | None:
        """Return the exponents `(heads, m)` of the largest products that meet in a correlation, None if safe."""
        if self.safe:
            return None
        padded = functional.pad(self.first, (kernel_size - 1, 0), value=ZERO)
        pairs = [reads(padded, i, kernel_size, False) + self.second for i in range(kernel_size)]
        return torch.stack([pair.amax((0, 1, 3)) for pair in pairs], -1)

    def unit_pairs(
        self, x: Tensor, g: Tensor, part: Part, kernel_size: int, largest: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return blocks of inputs and outputs, and the shares of their pairs in the largest."""
        sources, targets = read(x, part, kernel_size - 1), read(g, part)
        if largest is None:
            return sources, targets, None
        first, second = read(self.first, part, kernel_size - 1, 0, ZERO), read(self.second, part)
        pairs = torch.stack([reads(first, i, kernel_size, False) + second for i in range(kernel_size)], -1)
        shares = _power(pairs - largest[part.heads, None], self.dtype)
        return by_power(sources.to(self.dtype), -first), by_power(targets.to(self.dtype), -second), shares


def _rounding(block: Tensor) -> float:
    """Return `c * eps * log2(n)` of the error law."""
    return 2 * torch.finfo(block.dtype).eps * math.log2(max(block.shape[0], 2))


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)


def _peaks(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest magnitude over axis 1 (of real and imaginary parts), NaN where there is one."""
    if a.is_complex():
        return _peaks(torch.view_as_real(a.resolve_conj()), dtype).amax(-1)
    # On a CPU, aminmax along an axis takes six times as long as amax and amin.
    return torch.maximum(a.amax(1, keepdim=True), -a.amin(1, keepdim=True)).to(dtype.to_real())


def by_power(a: Tensor, exponents: Tensor) -> Tensor:
    """Return `a * 2**exponents`, in three steps since such a power may be out of range where the result is not."""
    third = exponents // 3
    half = (exponents - third) // 2
    for step in (third, half, exponents - third - half):
        a = a * _power(step, a.dtype)
    return a


def regained(unit: Tensor, exponents: Tensor, noise: Tensor) -> Tensor:
    """Return `unit * 2**exponents`, where rounding errors of `unit` up to `noise` make nothing overflow.

    Beside a far larger neighbour in time, they alone may exceed the range where the exact result does not.
    """
    result = by_power(unit, exponents)
    finite = result.isfinite()
    if arrays.values_known(result) and bool(finite.all()):
        return result
    size = unit.abs()
    nearer = torch.where(size > noise, 1 - noise / size, 0)
    return torch.where(finite, result, by_power(unit * nearer, exponents))


def _power(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `2**exponents` exactly, from the bits; exponents out of the normal numbers' range are clamped to it."""
    if dtype.to_real() == torch.float64:
        return (exponents.clamp(-1022, 1023).to(torch.int64) + 1023 << 52).view(torch.float64)
    return (exponents.clamp(-126, 127).to(torch.int32) + 127 << 23).view(torch.float32)
