"""Decoding with a whole model (d 512, 10 layers, vocabulary 8000), one text of a row, against others."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import DECODED, DECODING, Decoding, measure_decoding

from . import BACKEND, ready, samples

RIVALS = (
    "authors' decode",
    "authors' mixing alone",
    "Transformer",
    "Transformer, first token after n",
    "no mixing",
    "our first tokens",
)


class Against:
    """A token, or the first one after a prompt, over another's."""

    params = (DECODED, RIVALS)
    param_names = ("tokens", "rival")
    unit = "of its time"
    pace = DECODING

    def setup(self, tokens: int, rival: str) -> None:
        """Choose threads."""
        ready()

    def track_token(self, tokens: int, rival: str) -> dict[str, Any]:
        """Decode in turns."""
        return samples(measure_decoding(Decoding(tokens, 4, BACKEND, self.pace), rival))


class Decode:
    """What has no rival."""

    params = (DECODED,)
    param_names = ("tokens",)

    def setup(self, tokens: int) -> None:
        """Choose threads."""
        ready()

    def track_slowest_step(self, tokens: int) -> float:
        """Step where the largest tile is."""
        return 1000 * float(measure_decoding(Decoding(tokens, 4, BACKEND), "our slowest step"))

    def track_cache(self, tokens: int) -> int:
        """Count what a layer holds."""
        return int(measure_decoding(Decoding(tokens, 4, BACKEND), "cache of a layer"))


Decode.track_slowest_step.unit = "ms"  # type: ignore[attr-defined]
Decode.track_cache.unit = "bytes"  # type: ignore[attr-defined]
