"""The choice of the algorithm of a product, and pieces of its signals that fit the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from tmm_core.backend import Piece, cut_into_pieces

from .transforms import Algorithm, Direct, Fourier

__all__ = ["choose_algorithm", "pieces", "take"]

# Least and most entries of a piece. On a CPU, measured on two cores with 1 MB of L2 each at n = 1024, 8192 and 65536:
# from 2^15 to 2^18 the differences are below the noise, 2^20 is 1.4 times slower. On other devices only memory matters.
PIECE = {"cpu": (1 << 16, 1 << 18)}
PIECE_ELSEWHERE = (1 << 20, 1 << 24)

# Direct sums are faster up to this length, or up to so many lags, if at least so many columns share a matrix.
# Milliseconds on one core, direct and by transforms, for float32 as (batch, n, heads, channels of a head):
#     (8, 256, 4, 64)   k = 256:  3.5 and 4.8     (2, 2048, 4, 64)  k = 32:   7.6 and 11.9
#     (8, 320, 4, 64)   k = 320:  6.0 and 5.9     (2, 2048, 4, 64)  k = 64:   9.0 and 12.8
#     (4, 512, 8, 16)   k = 512:  4.0 and 2.9     (1, 8192, 4, 64)  k = 64:  21.2 and 22.2
#     (1, 256, 8, 16)   k = 256:  0.4 and 0.5     (1, 8192, 4, 64)  k = 128: 24.7 and 21.9
#     (1, 512, 64, 4)   k = 32:   5.2 and 2.0     (1, 65536, 1, 32) k = 32:   117 and 36
# Correlations have the crossover a little later.
DIRECT_LENGTH = 320
DIRECT_LAGS = 64
DIRECT_COLUMNS = 64


def choose_algorithm(shape: torch.Size, lags: int, dtype: torch.dtype, device: torch.device) -> Algorithm:
    """Return the algorithm for signals of `shape`, `(rows, n, heads, channels)`."""
    rows, n, _, width = shape
    short = n <= DIRECT_LENGTH or lags <= DIRECT_LAGS
    if device.type == "cpu" and short and rows * width >= DIRECT_COLUMNS and _multiplies_exactly(dtype):
        return Direct(n, lags, dtype, device)
    return Fourier(n, lags, dtype, device)


def _multiplies_exactly(dtype: torch.dtype) -> bool:
    """Return whether matrix products keep the precision of a dtype; users may allow less for float32."""
    if dtype.is_complex:
        return False  # direct sums of complex values were never faster
    flags = (torch.backends, torch.backends.mkldnn, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    return dtype == torch.float64 or all(flag.fp32_precision in ("none", "ieee") for flag in flags)


def pieces(
    shape: torch.Size,
    kernel_size: int,
    device: torch.device,
    algorithm: Algorithm | None = None,
    *,
    whole_heads: bool = False,
) -> Iterator[tuple[slice, list[Piece]]]:
    """Yield groups of heads and their pieces, for signals of `shape`, `(rows, n, heads, channels)`."""
    rows, n, heads, width = shape
    least, most = PIECE.get(device.type, PIECE_ELSEWHERE)
    if isinstance(algorithm, Direct):  # it has no spectra beside its pieces
        columns = min(most // algorithm.span, max(shape.numel() // 4, most) // n)
    else:
        columns = min(max(shape.numel() // 16, least), most) // n
    # Eight complex64 fill a cache line: with fewer columns, strided transforms read lines twice.
    columns = max(1, columns, min(8, shape.numel() // (8 * n)))
    least_channels = width if whole_heads else 4 * (kernel_size - 1)
    most_heads = None
    if isinstance(algorithm, Direct):
        most_heads = max(1, most // (kernel_size * algorithm.block * algorithm.span))
    return cut_into_pieces(rows, heads, width, columns=columns, least_channels=least_channels, most_heads=most_heads)


def take(a: Tensor, piece: Piece, before: int = 0, after: int = 0, fill: float = 0) -> Tensor:
    """Return a part of `(rows, n, heads, channels)`, time first, with more channels on each side; a view if without."""
    low, high, width = piece.channels.start - before, piece.channels.stop + after, a.shape[-1]
    block = a[piece.rows, :, piece.heads, max(low, 0) : min(high, width)].movedim(1, 0)
    if low < 0 or high > width:
        block = functional.pad(block, (max(-low, 0), max(high - width, 0)), value=fill)
    return block
