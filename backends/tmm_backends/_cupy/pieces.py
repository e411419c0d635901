"""How work is cut into pieces that need not much memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["ENTRIES", "Part", "pieces"]

ENTRIES = 1 << 24
"""Entries of a buffer at most, so that a product needs a few hundred megabytes beside its arrays."""


class Part(NamedTuple):
    """Rows, heads, and channels of each head that are computed at once."""

    rows: slice
    heads: slice
    channels: slice


def pieces(
    length: int, rows: int, heads: int, width: int, kernel: int, most: int = ENTRIES
) -> Iterator[tuple[slice, list[Part]]]:
    """Cut signals of transforms of `length`: first by heads, whose filters are then prepared once.

    >>> [some for some, parts in pieces(8, 1, 3, 4, 1, most=64)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    columns = max(1, most // length)
    channels = min(width, max(columns, 4 * (kernel - 1)))  # the kernel reads m - 1 more
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
