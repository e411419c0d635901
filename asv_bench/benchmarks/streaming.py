"""Token mixing, one token at a time, from the first token on: against products with the history at each token."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import HEADS, HISTORIES, STREAMED, Stream, compare_streams, slowest_step, stream_memory, time_streams

from . import BACKEND, ready, samples


class Streaming:
    """One row of d 512."""

    params = (STREAMED, HEADS)
    param_names = ("tokens", "heads")

    def setup(self, tokens: int, heads: int) -> None:
        """Choose threads."""
        ready()

    def track_token(self, tokens: int, heads: int) -> dict[str, Any]:
        """Stream, again and again."""
        seconds = time_streams(Stream(tokens, heads), BACKEND)
        return {"samples": [1e6 * s / tokens for s in seconds], "number": 1}

    def track_slowest_step(self, tokens: int, heads: int) -> float:
        """Time each step."""
        return 1e6 * slowest_step(Stream(tokens, heads), BACKEND)

    def track_memory(self, tokens: int, heads: int) -> int:
        """Count what the stream holds."""
        return stream_memory(Stream(tokens, heads), BACKEND)


Streaming.track_token.unit = "us a token"  # type: ignore[attr-defined]
Streaming.track_slowest_step.unit = "us"  # type: ignore[attr-defined]
Streaming.track_memory.unit = "bytes"  # type: ignore[attr-defined]


class Against:
    """A whole stream over the same by products with the history."""

    params = (STREAMED, HEADS, tuple(HISTORIES))
    param_names = ("tokens", "heads", "rival")
    unit = "of its time"

    def setup(self, tokens: int, heads: int, rival: str) -> None:
        """Choose threads; a first stream, which is not counted, warms up."""
        ready()

    def track_stream(self, tokens: int, heads: int, rival: str) -> dict[str, Any]:
        """Stream in turns."""
        return samples(compare_streams(Stream(tokens, heads), rival, BACKEND))
