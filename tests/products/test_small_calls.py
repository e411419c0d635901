"""Small calls: an array is looked at once, and what is found is not looked for again.

Counted, not timed: for a product of few times, the calls of Python functions take longer than the arithmetic.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import tmm_core

CORE = str(Path(tmm_core.__file__).parent)
AT_MOST = 84

X = np.ones((8, 4), np.float32)
W, BIAS = np.ones((2, 2, 8), np.float32)
CASES = {
    "product": lambda: tmm_core.causal_toeplitz_matmul(W, X),
    "adjoint": lambda: tmm_core.causal_toeplitz_matmul(W, X, adjoint=True),
    "layer": lambda: tmm_core.mix_tokens(W, X),
    "layer with a bias": lambda: tmm_core.mix_tokens(W, X, BIAS),
}


def calls_of(function):
    """Return how many Python functions of ours a second call of `function` calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        ours = frame.f_code.co_filename.startswith(CORE) or "tmm_backends" in frame.f_code.co_filename
        count += event == "call" and ours

    function()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("case", CASES)
def test_few_times_are_few_calls(case):
    assert 10 < calls_of(CASES[case]) <= AT_MOST


def test_layers_share_the_positions_of_documents():
    ids = np.asarray([0, 0, 0, 1, 1, 2, 2, 2])
    positions = tmm_core.document_positions(ids)
    expected = tmm_core.mix_tokens(W, X, BIAS, segment_ids=ids)
    given = tmm_core.mix_tokens(W, X, BIAS, segment_ids=ids, positions=positions)
    np.testing.assert_array_equal(given, expected)
    anew = calls_of(lambda: tmm_core.mix_tokens(W, X, BIAS, segment_ids=ids))
    shared = calls_of(lambda: tmm_core.mix_tokens(W, X, BIAS, segment_ids=ids, positions=positions))
    assert shared < anew - 10
