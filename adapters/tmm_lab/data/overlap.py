"""How much of a held-out text the training text holds as well, word for word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..progress import waiting
from .text import END_BYTE, Part

__all__ = ["MUCH", "shared_part"]

MUCH = 0.1
"""From this part on it is worth saying: of plain English, about 0.02 is phrases that occur elsewhere."""

_LOOKED_AT = 1 << 22  # bytes of the held-out text
# The hash of a block is that of its first half times a factor, plus that of its second; the factors by the half's size.
_FACTORS = {size: np.uint64(pow(0x9E3779B97F4A7C15, size, 1 << 64)) for size in (1, 2, 4, 8, 16)}
_BLOCK = 2 * max(_FACTORS)  # bytes compared at a time


def shared_part(held_out: Part, training: Part) -> float:
    """Return which part of `held_out` stands in `training` as well, between 0 and 1.

    Notes
    -----
    Every place of the first 4 MiB of the held-out text is compared, by hash, with each block of 32 bytes of the
    training text. So what both hold in a stretch of 63 bytes is found wherever it stands, be it a whole document, a
    part of one, or a file under another name. A gigabyte takes a few seconds.
    """
    held = np.frombuffer(b"".join(held_out.chunks(_LOOKED_AT))[:_LOOKED_AT], np.uint8)
    if len(held) < _BLOCK:
        return 0.0
    hashes, places = np.unique(_at_every_place(held), return_inverse=True)
    found = np.zeros(len(hashes), bool)
    with waiting("looking for held-out text in the training text", training.size) as advance:
        for chunk in training.chunks():
            blocks = _of_blocks(np.frombuffer(chunk, np.uint8))
            nearest = np.searchsorted(hashes, blocks).clip(max=len(hashes) - 1)
            found[nearest[hashes[nearest] == blocks]] = True
            advance(len(chunk))
    edges = np.zeros(len(held) + 1, np.int64)
    starts = np.flatnonzero(found[places])
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + _BLOCK, -1)
    text = held != END_BYTE[0]
    return float((np.cumsum(edges[:-1])[text] > 0).mean())


def _at_every_place(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the hash of the block that begins at each byte."""
    hashes = data.astype(np.uint64)
    for size, factor in _FACTORS.items():
        hashes = hashes[:-size] * factor + hashes[size:]
    return hashes


def _of_blocks(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the hashes of the blocks that `data` is cut into, without what is left over."""
    hashes = data[: len(data) // _BLOCK * _BLOCK].astype(np.uint64)
    for factor in _FACTORS.values():
        hashes = hashes[::2] * factor + hashes[1::2]
    return hashes
