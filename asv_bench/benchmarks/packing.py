"""Training on packed documents that are kept apart, over training on joined ones."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import PACKED, PACKED_MODELS, TRAINING, compare_packing

from . import BACKEND, ready, samples


class Against:
    """A step of training over one without documents."""

    params = (PACKED, tuple(PACKED_MODELS))
    param_names = ("context", "model")
    unit = "of its time"
    pace, tokens_a_step = TRAINING, 8192

    def setup(self, context: int, model: str) -> None:
        """Choose threads; the first turn, which is not counted, warms up."""
        ready()

    def track_joined(self, context: int, model: str) -> dict[str, Any]:
        """Train in turns."""
        return samples(compare_packing(context, model, BACKEND, self.pace, self.tokens_a_step))
