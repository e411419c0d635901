"""Training on packed documents that are kept apart, against training on the same documents joined."""

from __future__ import annotations

from typing import Any

import numpy as np

import tmm_core
from tmm_core import TMMConfig
from tmm_lab.bench import compare

from . import BACKEND, RATIO, lengths, measures, ready, require, samples
from .training import SCHEDULE, TOKENS, torch_step

MODELS: dict[str, TMMConfig] = {
    "joined, default preset": TMMConfig.preset("default"),
    "joined, d 512": TMMConfig(d_model=512, n_layers=4, n_heads=4, vocab_size=8000, position_bias=False),
}
"""By the name that tables print."""
SHORTEST, LONGEST = 100, 500
"""Tokens of a document, drawn evenly."""


def documents(rows: int, context: int) -> Any:
    """Return the number of each token's document, (rows, context): a text of documents, cut into rows."""
    count = rows * context
    sizes = np.random.default_rng(0).integers(SHORTEST, LONGEST, count // SHORTEST + 1)
    return np.repeat(np.arange(len(sizes)), sizes)[:count].reshape(rows, context)


class PackingAgainst:
    """A step on packed documents, in turns with one on joined documents."""

    params = (lengths(512, 2048), tuple(MODELS))
    param_names = ("context", "baseline")
    schedule, tokens = SCHEDULE, TOKENS

    def setup(self, context: int, baseline: str) -> None:
        """Make both."""
        ready()
        config = TMMConfig.from_dict({**MODELS[baseline].to_dict(), "max_len": context})
        ids = require("torch").from_numpy(documents(max(1, self.tokens // context), context))
        self.ours, self.theirs = (torch_step(config, self.tokens, segment_ids=segments) for segments in (ids, None))

    @measures("training on packed documents, against joined ones", RATIO)
    def track_step(self, context: int, baseline: str) -> dict[str, Any]:
        """Train in turns."""
        with tmm_core.use_backend(BACKEND):
            return samples(compare(self.ours, self.theirs, self.schedule))
