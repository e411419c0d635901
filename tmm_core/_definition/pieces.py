"""Signals cut into pieces that are computed one after the other, so that each fits a cache or a device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Piece", "cut_into_pieces"]


class Piece(NamedTuple):
    """Rows, heads, and channels of each head that are computed at once."""

    rows: slice
    heads: slice
    channels: slice


def cut_into_pieces(
    rows: int, heads: int, width: int, *, columns: int, least_channels: int = 1, most_heads: int | None = None
) -> Iterator[tuple[slice, list[Piece]]]:
    """Yield groups of heads, whose filters are then prepared once, each with the pieces that cover its signals.

    Parameters
    ----------
    rows, heads, width
        Shape of the signals without time: rows of the batch, heads, channels of a head.
    columns
        Signals of one row and channel that a piece has at most.
    least_channels
        Channels of a head that a piece may have where `columns` says fewer: a filter of kernel size m reads m - 1
        channels more than a piece has.
    most_heads
        The heads of a group at most; None stands for no limit.

    Examples
    --------
    >>> [group for group, pieces in cut_into_pieces(1, 3, 4, columns=8)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    channels = min(width, max(columns, least_channels))
    channels = -(-width // -(-width // channels))  # pieces of equal size
    group = max(1, min(heads, columns // width, most_heads or heads))
    together = max(1, columns // (group * channels))
    for head in range(0, heads, group):
        some = slice(head, min(head + group, heads))
        yield (
            some,
            [
                Piece(slice(row, min(row + together, rows)), some, slice(channel, min(channel + channels, width)))
                for row in range(0, rows, together)
                for channel in range(0, width, channels)
            ],
        )
