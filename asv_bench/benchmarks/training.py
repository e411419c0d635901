"""Training of a whole model (d 512, 4 layers, vocabulary 8000) over that with another token mixing, or in JAX."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import CONTEXTS, TRAINING, Ratio, compare_training

from . import BACKEND, ready, samples

HEADS = (0, 4)  # the paper's flat layer, without projections, and its heads


class Against:
    """A step of training over one without token mixing, which should be nearly 1, and over one by dense matrices."""

    params = (CONTEXTS, HEADS)
    param_names = ("context", "n_heads")
    unit = "of its time"
    pace, tokens_a_step = TRAINING, 8192

    def setup(self, context: int, n_heads: int) -> None:
        """Choose threads; the first turn, which is not counted, warms up."""
        ready()

    def track_no_mixing(self, context: int, n_heads: int) -> dict[str, Any]:
        """Train in turns."""
        return samples(self.compare(context, n_heads, "no mixing"))

    def track_dense(self, context: int, n_heads: int) -> dict[str, Any]:
        """Train in turns."""
        return samples(self.compare(context, n_heads, "dense T @ x"))

    def track_in_jax(self, context: int, n_heads: int) -> dict[str, Any]:
        """Train in turns with the same model in JAX."""
        return samples(self.compare(context, n_heads, "in JAX"))

    def compare(self, context: int, n_heads: int, other: str) -> Ratio:
        """Return what both take, a step in turn."""
        return compare_training(context, n_heads, other, BACKEND, self.pace, self.tokens_a_step)
