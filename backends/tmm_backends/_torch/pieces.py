"""How work is cut into pieces that fit the cache, and scaled into the range of transforms by exact powers of two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .transforms import Direct, Fourier, Method, reads

__all__ = ["Part", "Scales", "by_power", "choose_method", "pieces", "read"]

# Entries of a piece at least and at most. On a CPU, measured on two cores with 1 MB of L2 each at n = 1024, 8192 and
# 65536: from 2^15 to 2^18 the differences are below the noise, 2^20 is 1.4 times slower. Elsewhere only memory counts.
PIECE = {"cpu": (1 << 16, 1 << 18)}
PIECE_ELSEWHERE = (1 << 20, 1 << 24)

# Up to this length dense products are faster, where many columns share a matrix. Milliseconds, dense and transforms,
# for as many float32 elements on two cores: n = 128: 8 and 19, 256: 12 and 24, 512: 23 and 28, 1024: 44 and 31.
DENSE_UP_TO = 512
DENSE_COLUMNS = 64
DENSE_ENTRIES = 1 << 22

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


def choose_method(shape: torch.Size, lags: int, dtype: torch.dtype, device: torch.device) -> Method:
    """Return how to compute on signals of `shape`, `(rows, n, heads, channels)`."""
    rows, n, _, width = shape
    if device.type == "cpu" and n <= DENSE_UP_TO and rows * width >= DENSE_COLUMNS and _multiplies_exactly(dtype):
        return Direct(n, lags, dtype, device)
    return Fourier(n, lags, dtype, device)


def _multiplies_exactly(dtype: torch.dtype) -> bool:
    """Return whether matrix products use every bit: users may allow fewer for float32."""
    if dtype.is_complex:
        return False  # dense complex products were never the faster ones
    flags = (torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    return dtype == torch.float64 or all(flag.fp32_precision in ("none", "ieee") for flag in flags)


def pieces(
    shape: torch.Size, kernel: int, device: torch.device, method: Method | None = None, *, whole_heads: bool = False
) -> Iterator[tuple[slice, Iterator[Part]]]:
    """Cut signals of `shape`, `(rows, n, heads, channels)`: first by heads, whose filters are then prepared once."""
    rows, n, heads, width = shape
    least, most = PIECE.get(device.type, PIECE_ELSEWHERE)
    columns = min(max(shape.numel() // 16, least), most) // n
    # Eight complex64 side by side fill a cache line: below that, strided transforms read lines twice.
    columns = max(1, columns, min(8, shape.numel() // (8 * n)))
    channels = width if whole_heads else min(width, max(columns, 4 * (kernel - 1)))
    channels = -(-width // -(-width // channels))  # equal pieces
    together = max(1, columns // width)
    if isinstance(method, Direct):
        together = min(together, max(1, DENSE_ENTRIES // (kernel * method.block * method.reach)))
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
    """Powers of two by which two factors exceed 1: whole filters `(heads,)`, or channels `(rows, 1, heads, channels)`.

    `first` and `second` are those exponents, or the peaks themselves where all are safe: nothing is scaled then, which
    does not change a bit of the results.
    """

    finite: bool
    safe: bool
    dtype: torch.dtype
    first: Tensor
    second: Tensor

    @staticmethod
    def of_product(w: Tensor, x: Tensor) -> Scales:
        """Return the scales of lags and signals."""
        filters = _peaks(w.flatten(1), w.dtype).flatten()
        return Scales._of(filters, _peaks(_by_head(x, w.shape[0]), w.dtype), w.dtype)

    @staticmethod
    def of_correlation(x: Tensor, g: Tensor, dtype: torch.dtype, heads: int) -> Scales:
        """Return the scales of inputs and outputs."""
        return Scales._of(_peaks(_by_head(x, heads), dtype), _peaks(_by_head(g, heads), dtype), dtype)

    @staticmethod
    def _of(first: Tensor, second: Tensor, dtype: torch.dtype) -> Scales:
        low, high = SAFE[first.dtype]
        peaks = torch.cat([first.flatten(), second.flatten()])
        safe = (peaks == 0) | ((peaks > 2.0**low) & (peaks < 2.0**high))
        finite, safe_all = torch.stack([peaks.isfinite().all(), safe.all()]).tolist()  # one wait for a device
        if not safe_all:
            first, second = (torch.where(peak > 0, torch.frexp(peak).exponent, ZERO) for peak in (first, second))
        return Scales(finite, safe_all, dtype, first, second)

    def unit_filters(self, w: Tensor, heads: slice) -> Tensor:
        """Return the lags of some heads, of size about 1 where scaling is needed."""
        return w[heads] if self.safe else by_power(w[heads], -self.first[heads, None, None])

    def unit_signals(
        self, x: Tensor, part: Part, before: int, after: int, kernel: int, adjoint: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return a block of signals, the kernel rows' shares of each output, and the exponents of the outputs."""
        block = read(x, part, before, after)
        if self.safe:
            return block, None, None
        exponents = read(self.second, part, before, after, ZERO)
        sizes = torch.stack([reads(exponents, i, kernel, adjoint) for i in range(kernel)], -1)
        largest = sizes.amax(-1)
        shares = _power(sizes - largest[..., None], self.dtype)
        outputs = largest + self.first[part.heads, None]
        return by_power(block.to(self.dtype), -exponents), shares, outputs

    def largest_pairs(self, kernel: int) -> Tensor | None:
        """Return the exponents `(heads, kernel)` of the largest products that meet in a correlation, None if safe."""
        if self.safe:
            return None
        padded = functional.pad(self.first, (kernel - 1, 0), value=ZERO)
        pairs = [reads(padded, i, kernel, False) + self.second for i in range(kernel)]
        return torch.stack([pair.amax((0, 1, 3)) for pair in pairs], -1)

    def unit_pairs(
        self, x: Tensor, g: Tensor, part: Part, kernel: int, largest: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return blocks of inputs and outputs, and the shares of their pairs in the largest."""
        sources, targets = read(x, part, kernel - 1), read(g, part)
        if largest is None:
            return sources, targets, None
        first, second = read(self.first, part, kernel - 1, 0, ZERO), read(self.second, part)
        pairs = torch.stack([reads(first, i, kernel, False) + second for i in range(kernel)], -1)
        shares = _power(pairs - largest[part.heads, None], self.dtype)
        return by_power(sources.to(self.dtype), -first), by_power(targets.to(self.dtype), -second), shares


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)


def _peaks(a: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest magnitude over axis 1 (of real and imaginary parts), NaN where there is one."""
    # amax and amin: aminmax along one axis takes six times as long on a CPU.
    if a.is_complex():
        a = torch.view_as_real(a.resolve_conj())
    largest = torch.maximum(a.amax(1, keepdim=True), -a.amin(1, keepdim=True)).to(dtype.to_real())
    return largest.amax(-1) if dtype.is_complex and a.ndim > 4 else largest


def by_power(a: Tensor, exponents: Tensor) -> Tensor:
    """Return `a * 2**exponents`, in three steps since such a power may be out of range where the result is not."""
    third = exponents // 3
    half = (exponents - third) // 2
    for step in (third, half, exponents - third - half):
        a = a * _power(step, a.dtype)
    return a


def _power(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `2**exponents` exactly, from the bits; exponents out of the normal numbers' range are clamped to it."""
    if dtype.to_real() == torch.float64:
        return (exponents.clamp(-1022, 1023).to(torch.int64) + 1023 << 52).view(torch.float64)
    return (exponents.clamp(-126, 127).to(torch.int32) + 127 << 23).view(torch.float32)
