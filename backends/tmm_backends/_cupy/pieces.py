"""How work is cut into pieces that need not much memory at once, and what a piece reads of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tmm_core._arrays import exchange
from tmm_core._arrays.exchange import Array

__all__ = ["ENTRIES", "Part", "Window", "pieces"]

ENTRIES = 1 << 24
"""Entries of a buffer at most, so that a product needs a few hundred megabytes beside its arrays."""


class Part(NamedTuple):
    """Rows, heads, and channels of each head that are computed at once."""

    rows: slice
    heads: slice
    channels: slice


def pieces(
    length: int, rows: int, heads: int, width: int, kernel_size: int, most: int = ENTRIES
) -> Iterator[tuple[slice, list[Part]]]:
    """Cut signals of transforms of `length`: first by heads, whose filters are then prepared once.

    >>> [some for some, parts in pieces(8, 1, 3, 4, 1, most=64)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    columns = max(1, most // length)
    channels = min(width, max(columns, 4 * (kernel_size - 1)))  # the kernel reads m - 1 more
    channels = -(-width // -(-width // channels))  # equal pieces
    together = max(1, min(heads, columns // width))
    at_once = max(1, columns // (together * channels))
    for head in range(0, heads, together):
        some = slice(head, min(head + together, heads))
        yield (
            some,
            [
                Part(slice(row, min(row + at_once, rows)), some, slice(channel, min(channel + channels, width)))
                for row in range(0, rows, at_once)
                for channel in range(0, width, channels)
            ],
        )


@dataclass(frozen=True)
class Window:
    """Some channels of a head of `width`, and those that a kernel of `size` rows reads for them."""

    channels: slice
    size: int
    width: int
    adjoint: bool

    @property
    def read(self) -> slice:
        """Return the channels that are read and are there."""
        more = self.size - 1
        if self.adjoint:
            return slice(self.channels.start, min(self.width, self.channels.stop + more))
        return slice(max(0, self.channels.start - more), self.channels.stop)

    @property
    def missing(self) -> int:
        """Return how many channels are read as zeros before those."""
        return 0 if self.adjoint else self.size - 1 - (self.channels.start - self.read.start)

    @property
    def count(self) -> int:
        """Return how many channels are written."""
        count: int = self.channels.stop - self.channels.start
        return count

    def rows(self, a: Array, fill: float) -> list[Array]:
        """Return what each row of the kernel reads of the columns `read` of `a`, with `fill` for missing channels."""
        xp = exchange.namespace_of(a)
        behind = self.count + self.size - 1 - self.missing - a.shape[-1]
        ends = [xp.full((*a.shape[:-1], more), fill, dtype=a.dtype) for more in (self.missing, behind)]
        a = xp.concat([ends[0], a, ends[1]], axis=-1)
        starts = range(self.size)[:: -1 if self.adjoint else 1]
        return [a[..., start : start + self.count] for start in starts]

    def pairs(self, i: int) -> tuple[slice, slice]:
        """Return the channels of `read`, and those written, that row i of the kernel joins in a correlation."""
        first, shift = min(self.count, max(0, self.missing - i)), i - self.missing
        return slice(first + shift, self.count + shift), slice(first, self.count)
