"""Baselines for a language model: what a text costs under byte n-gram models and under zlib.

The n-gram models are interpolated Kneser-Ney with the three modified discounts of Chen and Goodman (1998). They work on
the bytes of a text file, in which the byte 0xFF ends each document. Like a language model they pay for every byte of
text and for the end of every document, given an end before the first byte, and their cost is per byte of text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core.errors import InputError

from ..data.text import END_BYTE, Part
from ..progress import waiting

__all__ = ["ORDERS", "NGramModel", "baseline_costs", "zlib_cost"]

ORDERS = {"unigram": 1, "bigram": 2, "trigram": 3, "4-gram": 4}
"""The n-gram models by name, and how many bytes each looks at, the predicted one included."""

FITTED_BYTES = 1 << 26
"""The n-gram models are fitted on no more than the first 64 MiB of the training part."""

_LONGEST = max(ORDERS.values())
_CHUNK = 1 << 22  # bytes counted at a time


def baseline_costs(training: Part, held_out: Part) -> dict[str, float]:
    """Return the cost of a held-out text, in bits per byte, by name of the baseline.

    Parameters
    ----------
    training : Part
        What the n-gram models are fitted on: its first 64 MiB (`FITTED_BYTES`).
    held_out : Part
        The text whose cost is measured.

    Returns
    -------
    dict of str to float
        `unigram`, `bigram`, `trigram` and `4-gram`; and `zlib`, which compresses the held-out text by itself, at
        level 9.

    Raises
    ------
    ValueError
        If a part holds no text.

    Notes
    -----
    Time grows as the text; memory as the number of different 4-grams, a few million in English.
    """
    if not held_out.n_bytes:
        raise InputError("the held-out part holds no text: hold out at least one byte")
    model = NGramModel.fit(training)
    costs = {}
    with waiting("measuring n-gram models", len(ORDERS)) as advance:
        for name, order in ORDERS.items():
            costs[name] = model.bits(held_out, order) / held_out.n_bytes
            advance(1)
    return {**costs, "zlib": zlib_cost(held_out)}


def zlib_cost(part: Part) -> float:
    """Return the bits per byte of `part` compressed by zlib at level 9."""
    compressor = zlib.compressobj(9)
    size = sum(len(compressor.compress(chunk)) for chunk in part.chunks()) + len(compressor.flush())
    return 8 * size / part.n_bytes


@dataclass(frozen=True)
class _Level:
    """What a model knows of the grams of one length: a gram is its bytes as one number, the last byte lowest."""

    grams: NDArray[np.uint32]
    discounted: NDArray[np.float64]
    """For each gram its count, less the discount."""
    contexts: NDArray[np.uint32]
    total: NDArray[np.float64]
    """For each context the sum of its counts."""
    backoff: NDArray[np.float64]
    """For each context the sum of its discounts, which is left to the shorter contexts."""

    @classmethod
    def of(cls, grams: NDArray[np.uint32], counts: NDArray[np.float64]) -> _Level:
        """Return the level of sorted `grams` that were counted `counts` times."""
        discounts = _discounts(counts)[np.minimum(counts, 3).astype(np.intp)]
        contexts, starts = np.unique(grams >> np.uint32(8), return_index=True)
        total = np.add.reduceat(counts, starts)
        return cls(grams, counts - discounts, contexts, total, np.add.reduceat(discounts, starts))

    def mix(self, grams: NDArray[np.uint32], shorter: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of the last byte of each gram, given that of the next shorter context."""
        context, known = _find(self.contexts, grams >> np.uint32(8))
        gram, seen = _find(self.grams, grams)
        share = np.where(seen, self.discounted[gram], 0) + self.backoff[context] * shorter
        return np.where(known, share / self.total[context], shorter)


class NGramModel:
    """Byte n-gram models of orders 1 to 4, fitted together.

    Parameters
    ----------
    grams : array of uint32, sorted
        The different 4-grams of a text.
    counts : array
        How often each occurs.

    Notes
    -----
    The model of order `n` counts occurrences of `n`-grams, and of shorter grams the different bytes that precede them:

        p(b | c) = (max(count(cb) - D, 0) + backoff(c) * p(b | c')) / count(c)

    with `c'` the context without its first byte, and `backoff(c)` the sum of the discounts `D` of the grams of `c`. The
    empty context gives each byte the probability 1/256, so all probabilities are positive and sum to one.
    """

    def __init__(self, grams: NDArray[np.uint32], counts: NDArray[Any]) -> None:
        """Fit the models to the counts of 4-grams."""
        self._levels: list[tuple[_Level, _Level]] = []  # by length: of occurrences, of predecessors
        occurrences: NDArray[np.float64] = counts.astype(np.float64)
        predecessors = occurrences
        for length in range(_LONGEST, 0, -1):
            self._levels.insert(0, (_Level.of(grams, occurrences), _Level.of(grams, predecessors)))
            grams, suffix = np.unique(grams & ((1 << 8 * (length - 1)) - 1), return_inverse=True)
            occurrences = np.bincount(suffix, occurrences).astype(np.float64)
            predecessors = np.bincount(suffix).astype(np.float64)

    @classmethod
    def fit(cls, part: Part, max_bytes: int = FITTED_BYTES) -> NGramModel:
        """Return the models fitted on the first `max_bytes` of `part`, counted chunk by chunk."""
        grams = np.empty(0, np.uint32)
        counts = np.empty(0, np.int64)
        with waiting("counting n-grams", min(part.size, max_bytes)) as advance:
            for chunk in _grams(part):
                chunk = chunk[:max_bytes]
                max_bytes -= len(chunk)
                new, times = np.unique(chunk, return_counts=True)
                grams, place = np.unique(np.concatenate([grams, new]), return_inverse=True)
                counts = np.bincount(place, np.concatenate([counts, times])).astype(np.int64)
                advance(len(chunk))
                if max_bytes <= 0:
                    break
        if not len(grams):
            raise InputError("there is nothing to fit on: the training part holds no text, or max_bytes is 0")
        return cls(grams, counts)

    def probabilities(self, grams: NDArray[np.uint32], order: int) -> NDArray[np.float64]:
        """Return the probability of the last byte of each gram given the `order - 1` bytes before it.

        Parameters
        ----------
        grams : array of uint32
            Four bytes as one number, the last byte lowest.
        order : int
            1 to 4.
        """
        if not 1 <= order <= _LONGEST:
            raise InputError(f"order must be in [1, {_LONGEST}], and is {order}")
        probability = np.full(grams.shape, 1 / 256)
        for length in range(1, order + 1):
            occurrences, predecessors = self._levels[length - 1]
            level = occurrences if length == order else predecessors
            probability = level.mix(grams & np.uint32((1 << 8 * length) - 1), probability)
        return probability

    def bits(self, part: Part, order: int) -> float:
        """Return what `part` costs under the model of `order`, in bits, ends of documents included."""
        return float(sum(-np.log2(self.probabilities(grams, order)).sum() for grams in _grams(part)))


def _discounts(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the discounts of the counts 0, 1, 2 and at least 3, by Chen and Goodman's estimate."""
    once, twice, thrice, four = (float(np.count_nonzero(counts == times)) for times in (1, 2, 3, 4))
    if not (once and twice and thrice):  # too few grams to estimate from
        return np.asarray([0.0, 0.5, 0.5, 0.5])
    share = once / (once + 2 * twice)
    estimates = [1 - 2 * share * twice / once, 2 - 3 * share * thrice / twice, 3 - 4 * share * four / thrice]
    return np.asarray([0.0, *np.clip(estimates, 0.1, [1, 2, 3])])


def _find(table: NDArray[np.uint32], keys: NDArray[np.uint32]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return where each key stands in a sorted table, and whether it does; elsewhere the place means nothing."""
    place = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return place, table[place] == keys


def _grams(part: Part) -> Iterator[NDArray[np.uint32]]:
    """Yield for each byte of `part` the 4-gram that it ends; before the first stand ends of documents."""
    before = END_BYTE * (_LONGEST - 1)
    for chunk in part.chunks(_CHUNK):
        data = before + chunk
        grams = np.zeros(len(chunk), np.uint32)
        for place in range(_LONGEST):
            grams <<= np.uint32(8)
            grams |= np.frombuffer(data, np.uint8, len(chunk), place)
        yield grams
        before = data[-(_LONGEST - 1) :]
