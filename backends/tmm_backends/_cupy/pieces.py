"""Pieces of signals that are computed one after the other, to bound memory, and the channels that a piece reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tmm_core.backend import Array, Piece, cut_into_pieces, namespace_of

__all__ = ["ENTRIES", "Window", "pieces", "row_groups"]

ENTRIES = 1 << 24
"""Entries of a buffer at most: a product then needs a few hundred megabytes beside its arrays."""


def pieces(length: int, rows: int, heads: int, width: int, kernel_size: int) -> Iterator[tuple[slice, list[Piece]]]:
    """Cut signals into pieces of about `ENTRIES` entries, for transforms of a length."""
    columns, least_channels = max(1, ENTRIES // length), 4 * (kernel_size - 1)
    return cut_into_pieces(rows, heads, width, columns=columns, least_channels=least_channels)


def row_groups(segment_ids: Array, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield ids `(rows, n)` and signals `(rows, n, d)` of as many rows as are computed at once."""
    n, d = arrays[0].shape[-2:]
    flat = [segment_ids.reshape(-1, n), *(a.reshape(-1, n, d) for a in arrays)]
    step = max(1, ENTRIES // (n * d))
    for start in range(0, flat[0].shape[0], step):
        yield tuple(a[start : start + step] for a in flat)


@dataclass(frozen=True)
class Window:
    """Channels of a head of `width` channels that are written, and those that a filter reads for them."""

    channels: slice
    kernel_size: int
    width: int
    adjoint: bool

    @property
    def read(self) -> slice:
        """The channels that are read and exist."""
        more = self.kernel_size - 1
        if self.adjoint:
            return slice(self.channels.start, min(self.width, self.channels.stop + more))
        return slice(max(0, self.channels.start - more), self.channels.stop)

    @property
    def missing(self) -> int:
        """How many channels of zeros are read before those."""
        return 0 if self.adjoint else self.kernel_size - 1 - (self.channels.start - self.read.start)

    @property
    def count(self) -> int:
        """How many channels are written."""
        count: int = self.channels.stop - self.channels.start
        return count

    def rows(self, a: Array, fill: float) -> list[Array]:
        """Return, for each kernel row, the channels of `a` that it reads, with `fill` for missing ones.

        The last axis of `a` has the channels `read`, that of the results the channels that are written.
        """
        xp = namespace_of(a)
        behind = self.count + self.kernel_size - 1 - self.missing - a.shape[-1]
        ends = [xp.full((*a.shape[:-1], more), fill, dtype=a.dtype) for more in (self.missing, behind)]
        a = xp.concat([ends[0], a, ends[1]], axis=-1)
        starts = range(self.kernel_size)[:: -1 if self.adjoint else 1]
        return [a[..., start : start + self.count] for start in starts]

    def pairs(self, i: int) -> tuple[slice, slice]:
        """Return the channels of `read`, and those written, that kernel row i multiplies in a correlation."""
        first, shift = min(self.count, max(0, self.missing - i)), i - self.missing
        return slice(first + shift, self.count + shift), slice(first, self.count)
