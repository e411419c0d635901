"""What streaming takes: token mixing, one token at a time, against the product with the history at each token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tmm_core

from .measure import agree
from .rivals import HISTORIES
from .turns import FULL, Pace, Ratio, take_turns

__all__ = ["STREAMED", "Stream", "compare_streams", "slowest_step", "stream_memory", "time_streams"]

STREAMED = (64, 128, 256, 512, 1024, 8192, 32768)
"""Tokens of a stream."""
STEPS = 512
"""Steps that a rival takes of a longer stream, evenly spaced: all of 32768 would take a minute each time."""
TURN = 256
"""Shorter streams are repeated, up to so many tokens a turn: few enough to stay in the cache, as a history does."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Stream:
    """A stream of `n` tokens of one row, mixed by `heads` filters.

    >>> Stream(64, 1).times[:3], Stream(32768, 1).times[:3]
    (range(0, 3), range(32, 224, 64))
    """

    n: int
    heads: int
    channels: int = 512

    def arrays(self) -> tuple[Floats, Floats]:
        """Return filters (heads, n) and tokens (n, channels), normally distributed, the same each time."""
        rng = np.random.default_rng(0)
        w = rng.standard_normal((self.heads, self.n), dtype=np.float32) / np.float32(self.n**0.5)
        return w, rng.standard_normal((self.n, self.channels), dtype=np.float32)

    @property
    def times(self) -> range:
        """The steps that a rival takes, each standing for as many."""
        spacing = max(1, self.n // STEPS)
        return range(spacing // 2, self.n, spacing)

    @property
    def repeats(self) -> int:
        """How many streams of it a turn takes."""
        return max(1, TURN // self.n)


class Streams:
    """Streams of a case's tokens by a backend. The plan is made once: a model has one, whatever it decodes."""

    def __init__(self, case: Stream, backend: str) -> None:
        """Make the plan."""
        w, x = case.arrays()
        self.case = case
        self.plan = tmm_core.stream_plan(w, case.n, backend=backend)
        self.tokens = list(x[:, None])  # (1, d) each
        self.states: list[Any] = []

    def prepare(self) -> None:
        """Begin the streams of the next turn, as rivals have memory for theirs."""
        self.states = [tmm_core.stream_init(self.plan, (1,), self.case.channels) for _ in range(self.case.repeats)]

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
        state = tmm_core.stream_init(self.plan, (1,), self.case.channels)
        for token in self.tokens:
            y, state = tmm_core.stream_step(self.plan, state, token)
            after(y)


def time_streams(case: Stream, backend: str, pace: Pace = FULL) -> list[float]:
    """Return the seconds of a stream, one entry a turn."""
    streams = Streams(case, backend)
    streams.each(lambda y: None)  # to compile
    (seconds,) = take_turns([streams.run], pace, prepare=streams.prepare)
    return [s / case.repeats for s in seconds]


def compare_streams(case: Stream, rival: str, backend: str, pace: Pace = FULL) -> Ratio:
    """Return how many times as fast as `rival` a whole stream by `backend` is.

    Parameters
    ----------
    case : Stream
        The tokens.
    rival : str
        A name in `HISTORIES`. Of long streams it takes some steps, and its time is that of as many as there are tokens.
    backend : str
        Who computes ours.
    pace : Pace
        How long they take turns.

    Raises
    ------
    NotImplementedError
        If the rival's library is missing.
    RuntimeError
        If the two do not agree.
    """
    streams, step, times = Streams(case, backend), HISTORIES[rival](*case.arrays()), case.times
    mine: list[Any] = []
    streams.each(mine.append)
    agree(rival, np.stack([mine[t][0] for t in times]), np.stack([np.asarray(step(t)) for t in times]))
    del mine

    def theirs() -> None:
        for _ in range(case.repeats):
            for t in times:
                step(t)

    ours, some = take_turns([streams.run, theirs], pace, prepare=streams.prepare)
    share = len(times) / case.n
    return Ratio.of([s / case.repeats for s in ours], [s / case.repeats / share for s in some])


def slowest_step(case: Stream, backend: str, *, times: int = 5) -> float:
    """Return the seconds of the slowest step, each step's being the median over so many streams.

    What other processes take from a step of one stream does not count.
    """
    streams = Streams(case, backend)
    streams.each(lambda y: None)  # to compile, and to make the spectra
    taken = []
    for _ in range(times):
        clock: list[float] = []
        streams.each(partial(_note, clock))
        taken.append(np.diff(clock))
    return float(np.max(np.median(np.stack(taken), axis=0)))


def _note(clock: list[float], _: Any) -> None:
    clock.append(time.perf_counter())


def stream_memory(case: Stream, backend: str) -> int:
    """Return the bytes that a stream holds at its end, inputs and pending outputs of all its times."""
    streams = Streams(case, backend)
    streams.prepare()
    return int(streams.run().tape.nbytes)
