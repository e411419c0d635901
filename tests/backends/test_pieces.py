"""Signals are cut into pieces that cover them once, each no larger than it may be."""

import numpy as np
import pytest

from tmm_core.backend import cut_into_pieces


@pytest.mark.parametrize("most_heads", [None, 1])
@pytest.mark.parametrize("least_channels", [0, 3, 8])
@pytest.mark.parametrize("columns", [1, 2, 7, 64])
@pytest.mark.parametrize(("rows", "heads", "width"), [(3, 2, 5), (1, 1, 1), (2, 3, 4), (9, 4, 1), (0, 2, 2)])
def test_pieces_cover_all_once_and_are_small(rows, heads, width, columns, least_channels, most_heads):
    covered = np.zeros((rows, heads, width), int)
    for group, pieces in cut_into_pieces(
        rows, heads, width, columns=columns, least_channels=least_channels, most_heads=most_heads
    ):
        assert most_heads is None or group.stop - group.start <= most_heads
        for piece in pieces:
            assert piece.heads == group
            covered[piece] += 1
            assert covered[piece].size <= max(columns, min(width, least_channels))
            assert covered[piece].shape[2] >= min(width, least_channels) / 2  # pieces of a head are of equal size
    assert (covered == 1).all()
