"""The course of a run, whichever framework trains: after which step to log, evaluate, save and stop, and doing so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from tmm_core.errors import InputError

from ..data.tokens import bits_per_byte
from ..evaluation.measure import StoppedError
from .checkpoints import write_checkpoint
from .interruption import Interruption
from .learner import Learner, Place, Work
from .reporter import BITS, SAMPLE_TOKENS, Narration
from .schedule import Clock, Pace, evaluation_steps, learning_rate_factor

__all__ = ["Course", "Decision"]


@dataclass(frozen=True)
class Decision:
    """What happens after a step, in this order."""

    log: bool
    evaluate: bool
    save: bool
    stop: bool


class Course:
    """One sitting of a run.

    Parameters
    ----------
    work : Work
        What is trained.
    learner : Learner
        The model.
    place : Place
        Where it is computed.
    narration : Narration
        Shows it.
    interruption : Interruption
        Knows whether the user wants it to end.
    first_step : int
        Steps that earlier sittings have done.
    """

    def __init__(
        self,
        work: Work,
        learner: Learner,
        place: Place,
        narration: Narration,
        interruption: Interruption,
        *,
        first_step: int,
    ) -> None:
        """Prepare to train; nothing is read or written yet."""
        self.work = work
        self.place = place
        self.clock = Clock()
        self.first_step = self.step = first_step
        self.total_steps: int | None = work.run.description["steps"]
        """Steps of the whole run, or None while minutes have not become steps yet."""
        self.tokens_per_step = tokens_per_step(work, place)
        self._options = work.options
        self._learner = learner
        self._narration = narration
        self._interruption = interruption
        self._saved_at = time.monotonic()
        self._pace: Pace | None = None
        self._first = 0.0, 0.0  # seconds after the first step, of which in training

    # Before, between and after the steps

    def begin(self) -> None:
        """Show the bar, and begin to time steps where their number is unknown."""
        self._saved_at = time.monotonic()
        if self.total_steps is None:
            self._pace = Pace(self._options.minutes, self.clock, self._other_seconds)
        self._narration.begin(self.step, self.total_steps)

    def learning_rate_factor(self, step: int) -> float:
        """Return the learning rate of the step after `step`, as a share of its peak."""
        return learning_rate_factor(step, self.total_steps, self._options.warmup)

    def step_done(self, step: int) -> Decision:
        """Return what follows `step`, the last that was done."""
        self.step = step
        if step == self.first_step + 1:
            self._first = self.clock.seconds, self.clock.training_seconds
        if self._pace is not None:
            self._decide_length()
        total = self.total_steps
        stop = self.place.total(self._interruption.requested) > 0  # all processes must stop after the same step
        last = total is not None and step >= total
        evaluate = total is not None and step in evaluation_steps(
            total, self._options.evaluations, timed=self._options.steps is None
        )
        log = step == 1 or step % self._options.log_every == 0 or evaluate
        self._narration.step(step, total, left=self._seconds_left())
        return Decision(log, evaluate, save=last or stop or self._due(), stop=last or stop)

    # What may follow a step

    def log(self, figures: dict[str, float]) -> None:
        """Record the figures of a step, with tokens, speed, and passes over the text as the epoch.

        Raises
        ------
        ValueError
            If the loss, in training or held out, is no number: nothing can come of such a run.
        """
        samples = self.work.samples
        figures["tokens"] = self.step * self.tokens_per_step
        if "loss" in figures:
            steps, _, seconds = self._timed()
            figures["tokens_per_second"] = steps * self.tokens_per_step / max(seconds, 1e-9)
        figures["epoch"] = figures["tokens"] / samples.context / samples.per_pass
        wrong = [figures[key] for key in ("loss", BITS) if not math.isfinite(figures.get(key, 0.0))]
        if wrong:
            raise InputError(
                f"training has diverged: the loss is {wrong[0]} at step {self.step}; start again with a "
                f"smaller --learning-rate (it was {self._options.learning_rate}) or a longer --warmup"
            )
        if self.place.first:
            self.work.run.record({"step": self.step, "time": round(time.time(), 2), **figures})
        self._narration.figures(figures)
        self._learner.report(figures)

    def evaluate(self) -> dict[str, float]:
        """Measure the held-out bits per byte, each held-out byte once; record and show them, with lags and a sample.

        Nothing is recorded, and nothing returned, where the user asked to stop meanwhile.
        """
        alone = self.place.processes == 1  # several must agree, and do after the step
        with self.clock.pause():
            try:
                nats = self._learner.nats(self.work.held_out, stop=lambda: alone and self._interruption.requested)
            except StoppedError:
                return {}
            bits = bits_per_byte(self.place.total(nats), self.work.held_out_part)
            self.log({BITS: bits})
            if self.place.first:
                self._narration.evaluated(self.step, bits)
        return {BITS: bits}

    def save(self) -> None:
        """Write a checkpoint, in the first process only: all have the same state."""
        if self.place.first:
            with self.clock.pause():
                write_checkpoint(self.work.run.checkpoints, self.step, self._learner.write_state)
        self._saved_at = time.monotonic()

    def _due(self) -> bool:
        waited = time.monotonic() - self._saved_at
        return self.step % self._options.checkpoint_steps == 0 or waited >= self._options.checkpoint_seconds

    # How long

    def _decide_length(self) -> None:
        """Let the first process turn minutes into steps, when it can, and tell the others."""
        pace = self._pace
        steps = None if pace is None else self.place.in_first_process(lambda: pace.step_done(self.step))
        if steps is None:
            return
        self._pace = None
        self.total_steps = steps
        if self.place.first:
            self.work.run.describe(steps=steps)

    def _other_seconds(self, step_seconds: float) -> float:
        """Return how long evaluations, samples and checkpoints of the rest of the run will take, by trying each."""
        options, held_out = self._options, self.work.held_out
        at_a_time = options.batch * self.place.batches // self.place.processes
        rows = [held_out[i] for i in range(min(at_a_time, len(held_out)))]
        written = 0

        def write() -> None:
            nonlocal written
            _, written = self._learner.text(options.prompt, SAMPLE_TOKENS)

        with self.clock.pause():
            save = _seconds(self.save)
            evaluate, sample = (
                min(_seconds(function) for _ in range(2))  # the first time may be slow: it allocates, and compiles
                for function in (lambda: self._learner.nats(rows), write)
            )
        evaluate *= len(held_out) / len(rows) / self.place.processes
        sample *= SAMPLE_TOKENS / max(1, written)
        between = min(options.checkpoint_seconds, options.checkpoint_steps * step_seconds)
        saves = 60 * options.minutes / max(between, save)
        return float(options.evaluations * (evaluate + sample) + saves * save)

    def _seconds_left(self) -> float:
        """Return how long the run will go on, from how long it has taken."""
        if self.total_steps is None:
            return max(0.0, 60 * self._options.minutes - self.clock.seconds)
        steps, seconds, _ = self._timed()
        return (self.total_steps - self.step) * seconds / steps

    def _timed(self) -> tuple[int, float, float]:
        """Return steps of this sitting, how long they took, and how long without evaluations, samples and checkpoints.

        The first one compiles: it is left out as soon as there is another.
        """
        steps, seconds, training = self.step - self.first_step, self.clock.seconds, self.clock.training_seconds
        if steps < 2:
            return steps, seconds, training
        return steps - 1, seconds - self._first[0], training - self._first[1]


def tokens_per_step(work: Work, place: Place) -> int:
    """Return how many tokens one step trains on."""
    return work.options.batch * work.options.accumulate * place.batches * work.config.max_len


def _seconds(function: Callable[[], object]) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start
