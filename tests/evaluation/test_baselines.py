"""What a text costs under n-gram models and zlib."""

import math
import tracemalloc
import zlib
from collections import Counter
from pydoc_data.topics import topics

import numpy as np
import pytest

from tmm_lab.data.text import END_BYTE, Part, write_text
from tmm_lab.evaluation.baselines import ORDERS, NGramModel, baseline_costs


def stored(part):
    return b"".join(part.chunks())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def english(folder):
    return write_text([topics[name] for name in sorted(topics)], folder / "english").split()


@pytest.fixture(scope="module")
def small(folder):
    """Texts in which each rule of the smoothing has its say."""
    rng = np.random.default_rng(0)
    words = ["ab", "abc", "bca", "cab", "daé", "d", "e", "fab"]
    weights = np.asarray([9, 8, 7, 4, 3, 2, 1, 1]) / 35
    training = [" ".join(rng.choice(words, 12, p=weights)) for _ in range(8)]
    return write_text(training, folder / "small").whole(), write_text(
        ["abc dab z", "fé", "bca ca"], folder / "h"
    ).whole()


class Direct:
    """Interpolated modified Kneser-Ney, word for word, in dictionaries."""

    def __init__(self, data, order):
        data = END_BYTE * 3 + data
        grams = Counter(data[i - 3 : i + 1] for i in range(3, len(data)))
        counts = [Counter() for _ in range(5)]
        occurrences = Counter()
        for gram, times in grams.items():
            occurrences[gram[4 - order :]] += times
        counts[order] = occurrences
        for length in range(order - 1, 0, -1):
            longer = {gram[4 - length - 1 :] for gram in grams}
            counts[length] = Counter(gram[1:] for gram in longer)
        self.counts, self.order = counts, order

    def discount(self, length, count):
        if count == 0:
            return 0
        n1, n2, n3, n4 = (sum(c == i for c in self.counts[length].values()) for i in (1, 2, 3, 4))
        if not (n1 and n2 and n3):
            return 0.5
        y = n1 / (n1 + 2 * n2)
        i = min(count, 3)
        estimate = i - (i + 1) * y * (n2 / n1, n3 / n2, n4 / n3)[i - 1]
        return min(max(estimate, 0.1), i)

    def probability(self, context, byte, length=None):
        length = self.order if length is None else length
        if length == 0:
            return 1 / 256
        history = context[len(context) - length + 1 :]
        followers = {gram: count for gram, count in self.counts[length].items() if gram[:-1] == history}
        shorter = self.probability(context, byte, length - 1)
        if not followers:
            return shorter
        count = followers.get(history + byte, 0)
        spared = sum(self.discount(length, c) for c in followers.values())
        return (count - self.discount(length, count) + spared * shorter) / sum(followers.values())


def keys(data):
    return np.frombuffer(data, ">u4").astype(np.uint32)


@pytest.mark.parametrize("order", ORDERS.values())
def test_probabilities_are_those_of_the_formula(small, order):
    training, held_out = small
    direct = Direct(stored(training), order)
    data = END_BYTE * 3 + stored(held_out)
    expected = [direct.probability(data[i - 3 : i], data[i : i + 1]) for i in range(3, len(data))]
    model = NGramModel.fit(training)
    grams = keys(b"".join(data[i - 3 : i + 1] for i in range(3, len(data))))
    np.testing.assert_allclose(model.probabilities(grams, order), expected, rtol=1e-12)
    assert model.bits(held_out, order) == pytest.approx(-sum(map(math.log2, expected)))


def test_small_text_estimates_its_discounts(small):
    direct = Direct(stored(small[0]), 4)
    discounts = [[direct.discount(length, count) for count in (1, 2, 3)] for length in (2, 3, 4)]
    assert any(values != [0.5, 0.5, 0.5] for values in discounts)


@pytest.mark.parametrize("order", ORDERS.values())
def test_chances_of_all_bytes_sum_to_one(english, order):
    training, held_out = english
    model = NGramModel.fit(training)
    data = stored(held_out)
    rng = np.random.default_rng(1)
    contexts = [data[i : i + 3] for i in range(0, 3000, 60)] + [rng.bytes(3) for _ in range(50)] + [END_BYTE * 3]
    grams = keys(b"".join(context + bytes([byte]) for context in contexts for byte in range(256)))
    chances = model.probabilities(grams, order).reshape(-1, 256)
    assert chances.min() > 0
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-10)


def test_longer_contexts_and_more_text_cost_less(english):
    training, held_out = english
    costs = baseline_costs(training, held_out)
    assert list(costs) == [*ORDERS, "zlib"]
    in_order = [costs[name] for name in ORDERS]
    assert in_order == sorted(in_order, reverse=True)
    assert in_order[0] < 6
    assert 1 < in_order[-1] < 3
    assert baseline_costs(training, held_out) == costs
    assert costs["4-gram"] == NGramModel.fit(training).bits(held_out, 4) / held_out.n_bytes
    part_of_it = NGramModel.fit(training, 50_000)
    assert part_of_it.bits(held_out, 4) / held_out.n_bytes > in_order[-1] + 0.1


def test_unigrams_of_a_text_cost_its_entropy(english):
    """And a little more: what the discounts spare for bytes that do not occur."""
    text = english[0]
    data = np.frombuffer(stored(text), np.uint8)
    shares = np.bincount(data)[np.unique(data)] / len(data)
    entropy = -(shares * np.log2(shares)).sum() * len(data) / text.n_bytes
    assert entropy <= NGramModel.fit(text).bits(text, 1) / text.n_bytes < entropy + 1e-3


def test_ends_of_documents_are_paid_for(folder):
    text = write_text(["abcd"] * 20, folder / "many").whole()
    model = NGramModel.fit(text)
    a, b, c, d, end = -np.log2(model.probabilities(np.frombuffer(b"abcd\xff", np.uint8).astype(np.uint32), 1))
    assert model.bits(text, 1) == pytest.approx(20 * (a + b + c + d + end))
    assert model.bits(text, 2) < 15  # an end follows each d, and an a each end


@pytest.mark.parametrize("byte", ["a", "\0", "é"])
def test_texts_of_one_byte_have_costs(folder, byte):
    for times in (1, 2, 500):
        text = write_text([byte * times], folder / "one").whole()
        assert all(0 < cost < 100 for cost in baseline_costs(text, text).values())


def test_parts_without_text_are_refused(english):
    training, held_out = english
    nothing = Part(training.text, (), 0)
    with pytest.raises(ValueError, match="nothing to fit on"):
        baseline_costs(nothing, held_out)
    with pytest.raises(ValueError, match="held-out part holds no text"):
        baseline_costs(training, nothing)
    with pytest.raises(ValueError, match=r"order must be in \[1, 4\], and is 5"):
        NGramModel.fit(held_out).bits(held_out, 5)


def test_zlib_compresses_the_held_out_text_by_itself(english):
    training, held_out = english
    expected = 8 * len(zlib.compress(stored(held_out), 9)) / held_out.n_bytes
    assert baseline_costs(training, held_out)["zlib"] == pytest.approx(expected, rel=1e-3)


def test_counts_do_not_depend_on_the_chunks(english, monkeypatch):
    training, held_out = english
    expected = [NGramModel.fit(training, 40_000).bits(held_out, order) for order in ORDERS.values()]
    monkeypatch.setattr("tmm_lab.evaluation.baselines._CHUNK", 997)
    found = [NGramModel.fit(training, 40_000).bits(held_out, order) for order in ORDERS.values()]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_memory_is_bounded_whatever_the_size(english, folder, monkeypatch):
    document = stored(english[1]).replace(END_BYTE, b"\n").decode()
    text = write_text((document for _ in range(1000)), folder / "large").whole()
    monkeypatch.setattr("tmm_lab.evaluation.baselines._CHUNK", 1 << 18)
    tracemalloc.start()
    try:
        model = NGramModel.fit(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text.n_bytes > 20_000_000
    assert peak < text.n_bytes / 2
    assert model.bits(english[1], 4) / english[1].n_bytes < 2.5
