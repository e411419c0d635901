"""Token mixing, one token at a time, from the first token on: against products with the history at each token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tmm_core
from tmm_lab.bench import FULL, Schedule, take_turns

from . import BACKEND, RATIO, check_same, lengths, measures, ready, samples
from ._baselines import HISTORIES, Step
from .product import HEADS, Case

TOKENS = lengths(64, 128, 256, 512, 1024, 8192, 32768)
STEPS = 512
"""Steps that a baseline takes of a longer stream, evenly spaced: all of 32768 would take a minute each time."""
TURN = 256
"""Shorter streams are repeated, up to so many tokens a turn: few enough to stay in the cache, as a history does."""


class Streams:
    """Streams of the same tokens by a backend. The plan is made once: a model has one, whatever it decodes."""

    def __init__(self, n: int, heads: int, channels: int = 512, backend: str = BACKEND) -> None:
        """Make the plan."""
        self.n, self.channels = n, channels
        self.w, x = Case(n, heads, elements=n * channels, channels=channels).arrays()
        self.x = x[0]  # (n, channels)
        self.plan = tmm_core.stream_plan(self.w, n, backend=backend)
        self.tokens = list(x.swapaxes(0, 1))  # (1, channels) each
        self.states: list[Any] = []

    @property
    def times(self) -> range:
        """The steps that a baseline takes, each standing for as many."""
        spacing = max(1, self.n // STEPS)
        return range(spacing // 2, self.n, spacing)

    @property
    def repeats(self) -> int:
        """How many streams a turn takes."""
        return max(1, TURN // self.n)

    def prepare(self) -> None:
        """Begin the streams of the next turn: baselines have memory for theirs, too."""
        self.states = [tmm_core.stream_init(self.plan, (1,), self.channels) for _ in range(self.repeats)]

    def run(self) -> Any:
        """Go through the streams from the first token to the last, and return the state of the last stream."""
        step, plan = tmm_core.stream_step, self.plan
        while self.states:
            state = self.states.pop()
            for token in self.tokens:
                _, state = step(plan, state, token)
        return state

    def each(self, after: Callable[[Any], Any]) -> None:
        """Go through one stream, and call a function with each output."""
        state = tmm_core.stream_init(self.plan, (1,), self.channels)
        for token in self.tokens:
            y, state = tmm_core.stream_step(self.plan, state, token)
            after(y)


def stream_ratios(streams: Streams, baseline: str, step: Step, schedule: Schedule = FULL) -> list[float]:
    """Return the time of a whole stream over that of a baseline, which takes some steps of long ones, for every turn.

    Raises
    ------
    RuntimeError
        If the two do not agree.
    """
    times = streams.times
    mine: list[Any] = []
    streams.each(mine.append)
    check_same(baseline, np.stack([mine[t][0] for t in times]), np.stack([np.asarray(step(t)) for t in times]))

    def theirs() -> None:
        for _ in range(streams.repeats):
            for t in times:
                step(t)

    turns = take_turns([streams.run, theirs], schedule, prepare=streams.prepare)
    return [our / their * len(times) / streams.n for our, their in zip(*turns, strict=True)]


def slowest_step(streams: Streams, *, times: int = 5) -> float:
    """Return the seconds of the slowest step, each step's being the median over so many streams.

    What other processes take from a step of one stream does not count.
    """
    clocks: list[list[float]] = [[] for _ in range(times)]
    for clock in clocks:
        streams.each(lambda _, clock=clock: clock.append(time.perf_counter()))  # type: ignore[misc]
    return float(np.median(np.diff(clocks), axis=0).max())


class Streaming:
    """One row of d 512."""

    params = (TOKENS, HEADS)
    param_names = ("tokens", "heads")

    def setup(self, tokens: int, heads: int) -> None:
        """Stream once: to compile, and to make the spectra."""
        ready()
        self.streams = Streams(tokens, heads)
        self.streams.each(lambda y: None)

    @measures("streaming", "us a token")
    def track_token(self, tokens: int, heads: int) -> dict[str, Any]:
        """Stream, again and again."""
        (seconds,) = take_turns([self.streams.run], FULL, prepare=self.streams.prepare)
        return samples(1e6 * s / (tokens * self.streams.repeats) for s in seconds)

    @measures("slowest step of a stream", "us")
    def track_slowest_step(self, tokens: int, heads: int) -> float:
        """Time each step."""
        return 1e6 * slowest_step(self.streams)

    @measures("memory of a stream", "bytes")
    def track_memory(self, tokens: int, heads: int) -> int:
        """Count what the stream holds at its end, inputs and pending outputs of all its times."""
        self.streams.prepare()
        return int(self.streams.run().cache.nbytes)


class StreamingAgainst:
    """A whole stream, in turns with the same by products with the history."""

    params = (TOKENS, HEADS, tuple(HISTORIES))
    param_names = ("tokens", "heads", "baseline")

    def setup(self, tokens: int, heads: int, baseline: str) -> None:
        """Make both."""
        ready()
        self.streams = Streams(tokens, heads)
        self.step = HISTORIES[baseline](self.streams.w, self.streams.x)

    @measures("streaming, against others", RATIO)
    def track_stream(self, tokens: int, heads: int, baseline: str) -> dict[str, Any]:
        """Stream in turns."""
        return samples(stream_ratios(self.streams, baseline, self.step))
