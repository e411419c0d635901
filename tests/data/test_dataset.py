"""Windows and samples of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmm_core.lm import IGNORED
from tmm_lab.data.dataset import TokenWindows, TrainingSamples, samples_at


@settings(deadline=None)
@given(n=st.integers(2, 80), context=st.integers(2, 20), data=st.data())
def test_each_token_is_predicted_once_with_context(n, context, data):
    context = min(context, n - 1)
    stride = data.draw(st.none() | st.integers(1, context))
    tokens = np.arange(n, dtype=np.uint16)
    windows = TokenWindows(tokens, context, None, stride=stride)
    predicted = []
    for window in windows:
        assert set(window) == {"input_ids", "targets"}
        ids, targets = window["input_ids"], window["targets"]
        assert ids.dtype == targets.dtype == np.int64
        assert ids.shape == targets.shape == (context,)
        np.testing.assert_array_equal(np.diff(ids), 1)
        kept = targets != IGNORED
        np.testing.assert_array_equal(targets[kept], ids[kept] + 1)
        assert kept.any()
        if stride is not None and ids[0] > 0:
            assert kept.nonzero()[0][0] >= context - stride
        predicted += targets[kept].tolist()
    assert predicted == list(range(1, n))
    assert windows.n_predicted == n - 1
    assert len(list(windows)) == len(windows)
    np.testing.assert_array_equal(windows[-1]["input_ids"], tokens[-context - 1 : -1])
    with pytest.raises(IndexError, match="of"):
        windows[len(windows)]


def test_documents_begin_at_each_end_of_text():
    """The target of a document's last token is the end-of-text that begins the next one."""
    tokens = np.asarray([9, 1, 2, 9, 3, 9, 9, 4, 9], np.uint16)
    sample = samples_at(tokens, [0, 2], 6, end_of_text=9)
    assert sample["input_ids"].tolist() == [[9, 1, 2, 9, 3, 9], [2, 9, 3, 9, 9, 4]]
    assert sample["targets"].tolist() == [[1, 2, 9, 3, 9, 9], [9, 3, 9, 9, 4, 9]]
    assert sample["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 3], [0, 1, 1, 2, 3, 3]]
    joined = samples_at(tokens, [0, 2], 6, end_of_text=None)
    assert set(joined) == {"input_ids", "targets"}
    window = TokenWindows(tokens, 6, 9, stride=2)[1]
    assert window["targets"].tolist() == [IGNORED] * 4 + [4, 9]
    assert window["segment_ids"].tolist() == sample["segment_ids"][1].tolist()
    assert window["input_ids"].tolist() == sample["input_ids"][1].tolist()


def test_windows_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"it has 5 tokens.*needs 6; give more text, or a smaller context"):
        TokenWindows(np.arange(5), 5, None)
    with pytest.raises(ValueError, match="context must be at least 1"):
        TokenWindows(np.arange(5), 0, None)
    for stride in (0, 5):
        with pytest.raises(ValueError, match="stride must be in"):
            TokenWindows(np.arange(5), 4, None, stride=stride)


def test_a_pass_reads_the_text_once_and_the_next_reads_it_otherwise():
    tokens = np.arange(1000, dtype=np.uint16)
    samples = TrainingSamples(tokens, 16, seed=3, end_of_text=500)
    first = samples.batch(range(samples.per_pass))
    assert all(a.shape == (61, 16) and a.dtype == np.int64 for a in first.values())
    ids = first["input_ids"]
    assert len(set(ids.flatten().tolist())) == 61 * 16, "no token twice in a pass"
    assert (np.diff(ids, axis=1) == 1).all(), "a sample is a stretch of text"
    assert (first["targets"] == ids + 1).all()
    holds = (ids == 500).any(axis=1)
    assert (first["segment_ids"] == (ids >= 500) * holds[:, None]).all()
    second = samples.batch(range(samples.per_pass, 2 * samples.per_pass))["input_ids"]
    assert not np.array_equal(ids, second)
    again = TrainingSamples(tokens, 16, seed=3, end_of_text=None)
    assert "segment_ids" not in again.batch([5])
    for name, batch in again.batch([100, 5]).items():
        np.testing.assert_array_equal(batch, samples.batch([100, 5])[name])
    other = TrainingSamples(tokens, 16, seed=4, end_of_text=500)
    assert not np.array_equal(other.batch([5])["input_ids"], ids[5:6])


@pytest.mark.parametrize("n_tokens", [17, 18, 32, 33, 34])
def test_texts_of_about_one_context_can_be_read(n_tokens):
    samples = TrainingSamples(np.arange(n_tokens), 16, seed=0, end_of_text=0)
    batch = samples.batch(range(40))
    assert batch["input_ids"].shape == batch["targets"].shape == (40, 16)
    assert set(batch["targets"].flatten().tolist()) <= set(range(1, n_tokens))
    if n_tokens > 17:
        assert batch["targets"].max() == n_tokens - 1, "the last token is read too, in some pass"


def test_a_text_shorter_than_one_context_is_refused():
    with pytest.raises(ValueError, match=r"training text is too short: 16 tokens, and one context needs 17"):
        TrainingSamples(np.arange(16), 16, seed=0, end_of_text=0)
