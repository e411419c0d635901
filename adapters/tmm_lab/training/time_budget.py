"""A run of given minutes: how many steps fit, decided anew as it goes, and the little that may go to anything else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from .schedule import Revision, spread

__all__ = ["Clock", "TimeBudget"]

_TIMED = 20  # steps, but for the first, which compiles
_RECENT = 0.1  # share of the budget over whose steps the speed is measured
_TIMED_SHARE = 0.05  # of the budget, after which fewer steps have to do
_EACH = 0.05  # share of the budget for the evaluations before the last one, and as much for their samples
_CHECKPOINTS = 0.05  # share of the time for checkpoints
_OTHERS = 0.1  # share of the time that is taken to go to both, until it has gone
_LAST = 0.2  # share of the budget for the last evaluation
_MARGIN = 0.03  # share of the budget that plans leave free: the learning rate is to be down before the time is over
_END = 0.3  # most of the budget that is kept for that and the results
_RESULTS = 2.0  # seconds for the picture and the model
_STALL = 10.0  # times what is usual: the process was suspended, or its machine was, and what is more says nothing
_TOLERANCE = 0.02  # share of the steps that are left by which a plan may be wrong


class Clock:
    """Seconds since it was made, with and without what is not training.

    Parameters
    ----------
    seconds : float
        Those of earlier sessions.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        """Begin to count."""
        self._start = time.monotonic() - seconds
        self._paused = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return time.monotonic() - self._start

    @property
    def training_seconds(self) -> float:
        """Seconds without pauses."""
        return self.seconds - self._paused

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count what happens inside as training."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - start

    def count_at_most(self, seconds: float) -> float:
        """Forget what is more than `seconds` of the time until now; return how much that is."""
        forgotten = max(0.0, self.seconds - seconds)
        self._start += forgotten
        return forgotten


class TimeBudget:
    """Decides how many steps a run has, from the time that is left and the speed of late.

    Parameters
    ----------
    seconds : float
        Time for the whole run.
    clock : Clock
        Began with the run.
    evaluations : int
        Most evaluations.
    windows : int
        Windows of the held-out text.
    rows : int
        Samples of a step.
    sample_tokens, final_tokens : int
        Tokens of the sample after each evaluation, and of those at the end.
    """

    def __init__(
        self,
        seconds: float,
        clock: Clock,
        *,
        evaluations: int,
        windows: int,
        rows: int,
        sample_tokens: int,
        final_tokens: int,
    ) -> None:
        """Begin with no step timed."""
        self._seconds = seconds
        self._clock = clock
        self._most_evaluations = evaluations
        self._windows = windows
        self._rows = rows
        self._tokens = sample_tokens, final_tokens
        self._marks: deque[tuple[int, float]] = deque(maxlen=1000)  # steps, and the seconds of training until then
        self._stalled = 0.0  # seconds of them that are left out
        self._revised = 0.0
        # What is not training takes, in units of a step of that moment: a machine that is busy later delays all of it.
        self._step = 0.0
        self._window = 0.5 / rows
        self._token = self._save = 0.0

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._seconds - self._clock.seconds)

    def step_done(self, step: int, last: Revision | None) -> Revision | None:
        """Return a new decision where the last one would miss the end of the time, or None.

        The first comes after twenty timed steps, or a twentieth of the time. Later ones are a hundredth of the time
        apart, but the one that says that the time is over.
        """
        self._mark(step)
        (first, begin), (_, end) = self._marks[0], self._marks[-1]
        timed, now = step - first, self._clock.seconds
        enough = timed >= _TIMED or (timed > 0 and end - begin > _TIMED_SHARE * self._seconds)
        if self.left > 0 and (timed == 0 or (last is None and not enough)):
            return None
        self._step = max((end - begin) / max(1, timed), 1e-9)
        every, last_every = (self._every(share * self._seconds) for share in (_EACH / self._most_evaluations, _LAST))
        evaluations = self._affordable(every, self._most_evaluations if last is None else last.evaluations)
        left = self.left - self._end(last_every)
        until = left - min(_MARGIN * self._seconds, 0.5 * left)
        total = step + max(int(left > self._step), int(until * (1 - _OTHERS) / self._step))
        evaluations = spread(evaluations, total)
        if last is not None:
            wrong = abs(total - last.total) > max(1, _TOLERANCE * (last.total - step))
            over = total == step < last.total
            if not over and not (wrong and now - self._revised >= 0.01 * self._seconds):
                return None
        self._revised = now
        return Revision(step, total, evaluations, every, last_every)

    def evaluated(self, seconds: float, windows: int) -> None:
        """Learn how long an evaluation took; the first may have compiled, and counts no more than training would."""
        if self._step > 0:
            self._window = (self._window + min(seconds / windows / self._step, 1 / self._rows)) / 2

    def sampled(self, seconds: float, tokens: int) -> None:
        """Learn how long a sample took."""
        if self._step > 0:
            found = seconds / max(1, tokens) / self._step
            if not self._token:
                self._token = found
            elif found < _STALL * self._token:
                self._token = (self._token + found) / 2

    def saved(self, seconds: float) -> None:
        """Learn how long a checkpoint took."""
        self._save = min(seconds, _STALL * self._save) if self._save else seconds

    def checkpoint_is_affordable(self, since: float) -> bool:
        """Return whether a checkpoint may be written, `since` seconds after the last."""
        return self._save <= _CHECKPOINTS * since

    def _mark(self, step: int) -> None:
        training = self._clock.training_seconds - self._stalled
        if self._step > 0 and self._marks:
            stalled = max(0.0, training - self._marks[-1][1] - _STALL * self._step)
            self._stalled += stalled
            training -= stalled
        self._marks.append((step, training))
        while len(self._marks) > 2 and training - self._marks[1][1] > _RECENT * self._seconds:
            self._marks.popleft()

    def _affordable(self, every: int, most: int) -> int:
        """Return how many evaluations of one window in `every` there may be; as many as before, if they nearly fit."""
        each = self._step * (self._windows / every * self._window + self._tokens[0] * self._token)
        fit = max(1, int(2 * _EACH * self._seconds / each))
        return most if fit >= 0.7 * most else fit

    def _every(self, seconds: float) -> int:
        """Return of how many windows one can be measured in some time: a power of two, so that they stay the same."""
        every = 1
        while (
            self._windows // (2 * every) >= self._rows and self._windows / every * self._window * self._step > seconds
        ):
            every *= 2
        return every

    def _end(self, last_every: int) -> float:
        """Return the seconds to keep for the last evaluation, the last samples and the results."""
        computing = self._windows / last_every * self._window + sum(self._tokens) * self._token
        return min(_END * self._seconds, computing * self._step + self._save + _RESULTS)
