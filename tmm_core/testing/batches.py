"""The laws of batches: what a document becomes does not depend on what it is batched, padded or packed with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from .. import lm
from .._arrays.exchange import Array
from ..config import TMMConfig
from ..mixing import mix_tokens
from .libraries import Library
from .oracles import EPS, Numbers, check_close, check_equal, error_bound, normal

__all__ = ["BATCH_LAWS", "check_batched_layers", "check_batched_models"]

_MODEL = TMMConfig(vocab_size=7, max_len=6, d_model=4, n_layers=1, n_heads=2, d_mlp=4, softplus=True, mean=True)
_ROUNDINGS = 64
"""How many roundings of the largest logit stand between a model's input and its output, of which most cancel."""


def places(n: int, length: int) -> list[tuple[slice, Numbers, Numbers]]:
    """Return rows that hold one document: where it is, a mask of tokens, and numbers of documents, each `(n,)`.

    After padding, before padding, and packed between others with padding around them.
    """
    first, between = n - length, 2 + (n - length) // 2
    at = [slice(first, n), slice(0, length), slice(between, between + length)]
    rows = []
    for row, place in enumerate(at):
        inside = np.zeros(n, np.int64)
        inside[place] = 1
        mask = inside if row < 2 else np.asarray([0, *[1] * (n - 2), 0])
        ids = np.cumsum(np.diff(inside, prepend=0) != 0)
        rows.append((place, mask, ids))
    return rows


@functools.cache
def _layer(library: Library, backend: str, softplus: bool, mean: bool) -> Callable[..., Array]:
    """Return a layer as a function of arrays, compiled once."""

    def layer(w: Array, x: Array, bias: Array, segment_ids: Array | None = None) -> Array:
        return mix_tokens(w, x, bias, softplus=softplus, mean=mean, segment_ids=segment_ids, backend=backend)

    return library.transform(layer)


@functools.cache
def _model(library: Library, backend: str) -> Callable[..., tuple[Array, Array]]:
    """Return logits and loss as a function of arrays, compiled once."""

    def model(params: dict[str, Array], ids: Array, labels: Array, **batch: Array) -> tuple[Array, Array]:
        logits = lm.forward(params, ids, _MODEL, backend=backend, **batch)
        return logits, lm.loss(params, ids, _MODEL, labels=labels, backend=backend, **batch)

    return library.transform(model)


def check_batched_layers(library: Library, backend: str) -> None:
    """A layer makes of a document what it makes of it alone, and no bit of it changes with what stands around it.

    With position bias, which counts within the document, with mean normalisation, and with kernels.
    """
    rng = np.random.default_rng(20)
    n = library.packed_length
    length = n // 2
    rows = places(n, length)
    ids = library.asarray(np.stack([ids for _, _, ids in rows]), "int32")
    document = normal(rng, 1, length, 6, dtype="float32")
    for kernel_size, mean in ((1, True), (3, False)):
        w, bias = normal(rng, 2, kernel_size, length - 1, dtype="float32"), normal(rng, 2, n, dtype="float32")
        layer = _layer(library, backend, mean, mean)
        given = library.asarray(w if kernel_size > 1 else w[:, 0], "float32")
        positions = library.asarray(bias, "float32")
        alone = library.to_numpy(layer(given, library.asarray(document, "float32"), positions))
        lags = np.logaddexp(w, 0) if mean else w
        sums = np.cumsum(lags[:, 0], axis=1) if mean else np.ones((2, 1))
        sums = np.repeat(np.pad(sums, ((0, 0), (0, length - sums.shape[1])), "edge"), 3, axis=0).T  # (length, d)
        bound = 2 * error_bound(lags, document, "float32") / sums + 8 * EPS["float32"] * (
            np.abs(alone) + np.max(np.abs(bias))
        )
        before: Numbers | None = None
        for around in (0.0, 3e38, math.nan):
            x = np.full((3, n, 6), around)
            for row, (place, _, _) in enumerate(rows):
                x[row, place] = document[0]
            y = library.to_numpy(layer(given, library.asarray(x, "float32"), positions, ids))
            found = np.stack([y[row, place] for row, (place, _, _) in enumerate(rows)])
            check_close(found, np.tile(alone, (3, 1, 1)), bound, f"a document among {around}, {kernel_size=} {mean=}")
            check_equal(found, found if before is None else before, f"isolation from {around}, {kernel_size=} {mean=}")
            before = found


def check_batched_models(library: Library, backend: str) -> None:
    """A model's logits and loss of a document are those of it alone, and no bit changes with what stands around it."""
    rng = np.random.default_rng(21)
    n, length = 16, _MODEL.max_len
    rows = places(n, length)
    params = {
        name: library.asarray(p + 0.2 * rng.standard_normal(p.shape), "float32")
        for name, p in lm.init_params(_MODEL, rng).items()
    }
    document = rng.integers(0, _MODEL.vocab_size, (1, length))
    model = _model(library, backend)
    alone = library.asarray(document, "int32")
    logits, loss = (library.to_numpy(a) for a in model(params, alone, alone))
    bound = _ROUNDINGS * EPS["float32"] * np.max(np.abs(logits))
    batch = {
        "attention_mask": library.asarray(np.stack([mask for _, mask, _ in rows]), "int32"),
        "segment_ids": library.asarray(np.stack([ids for _, _, ids in rows]), "int32"),
    }
    before: tuple[Numbers, Numbers] | None = None
    for seed in range(2):
        ids = np.random.default_rng(seed).integers(0, _MODEL.vocab_size, (3, n))
        labels = np.full((3, n), lm.IGNORED)
        for row, (place, _, _) in enumerate(rows):
            ids[row, place] = labels[row, place] = document[0]
        found, its_loss = model(params, library.asarray(ids, "int32"), library.asarray(labels, "int32"), **batch)
        whole, mean = library.to_numpy(found), library.to_numpy(its_loss)
        if not np.all(np.isfinite(whole)):
            raise AssertionError("logits at padding must be finite")
        part = np.stack([whole[row, place] for row, (place, _, _) in enumerate(rows)])
        check_close(part, np.tile(logits, (3, 1, 1)), bound, "logits of a document in a batch")
        check_close(mean, loss, bound, "loss of a document in a batch")
        if before is not None:
            check_equal(part, before[0], "logits of a document, whatever is around")
            check_equal(mean, before[1], "loss of a document, whatever is around")
        before = part, mean


BATCH_LAWS: tuple[Callable[[Library, str], None], ...] = (check_batched_layers, check_batched_models)
