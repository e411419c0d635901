"""The training loop, whichever framework computes: steps, records, evaluations, checkpoints, and when it stops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tmm_core.errors import InputError

from ..data.tokens import bits_per_byte
from ..evaluation.measure import Batch, StoppedError, Windows, continuation, held_out_nats
from ..progress import waiting
from .checkpoints import write_checkpoint
from .interruption import Interruption
from .job import Job
from .reporter import BITS, SAMPLE_TOKENS, Reporter
from .schedule import Clock, TimedSchedule, evaluation_steps, learning_rate_factor

if TYPE_CHECKING:
    from .frameworks import Runtime, Trainer

__all__ = ["Loop", "tokens_per_step"]


class Loop:
    """The steps of one session of a run.

    Parameters
    ----------
    job : Job
        What is trained.
    trainer : Trainer
        The model.
    runtime : Runtime
        The devices and processes that compute.
    reporter : Reporter
        Shows it.
    interruption : Interruption
        Knows whether the user wants it to end.
    first_step : int
        Steps that earlier sessions have done.
    """

    def __init__(
        self,
        job: Job,
        trainer: Trainer,
        runtime: Runtime,
        reporter: Reporter,
        interruption: Interruption,
        *,
        first_step: int,
    ) -> None:
        """Prepare to train; nothing is read or written yet."""
        self.clock = Clock()
        self.first_step = self.step = first_step
        self.total_steps: int | None = job.run.description["steps"]
        """Steps of the whole run, or None while minutes have not become steps yet."""
        self._job = job
        self._options = job.options
        self._trainer = trainer
        self._runtime = runtime
        self._reporter = reporter
        self._interruption = interruption
        self._saved_at = time.monotonic()
        self._timed: TimedSchedule | None = None
        self._first = 0.0, 0.0  # seconds after the first step, of which in training

    def run(self) -> bool:
        """Train until the last step, or the step in which a stop is requested; then a checkpoint is written.

        Returns
        -------
        bool
            Whether a stop was requested, the same in every process.
        """
        self._saved_at = time.monotonic()
        if self.total_steps is None:
            self._timed = TimedSchedule(self._options.minutes, self.clock, self._other_seconds)
        self._reporter.start(self.step, self.total_steps)
        losses: list[float] = []
        batch = self._batch()
        while True:
            factor = learning_rate_factor(self.step, self.total_steps, self._options.warmup)
            with waiting("compiling the first step") if self.step == self.first_step else nullcontext():
                loss, grad_norm = self._trainer.step(batch, factor)
                self.step += 1
                batch = self._batch()  # read while the device computes
                losses.append(float(loss))
            if self.step == self.first_step + 1:
                self._first = self.clock.seconds, self.clock.training_seconds
            if self._timed is not None:
                self._decide_length(self._timed)
            stop = self.stop_requested()
            last = self.total_steps is not None and self.step >= self.total_steps
            evaluate = self._evaluation_is_due()
            self._reporter.step(self.step, self.total_steps, left=self._seconds_left())
            if self.step == 1 or self.step % self._options.log_every == 0 or evaluate:
                self._log_step(losses, float(grad_norm), factor)
                losses = []
            if evaluate:
                self.evaluate()
            if last or stop or self._checkpoint_is_due():
                self.save()
            if last or stop:
                return self.stop_requested()  # in the last step the signal may have come after the question above

    def stop_requested(self) -> bool:
        """Return whether any process was signalled to stop: they stop after the same step, so all of them must ask."""
        return self._runtime.total(self._interruption.requested) > 0

    def _log_step(self, losses: list[float], grad_norm: float, factor: float) -> None:
        """Record the mean of the losses since the last record, over all processes."""
        mean = self._runtime.total(math.fsum(losses) / len(losses)) / self._runtime.processes
        rate = self._job.learning_rate * factor
        self.log({"loss": mean, "grad_norm": grad_norm, "learning_rate": rate})

    def log(self, metrics: dict[str, float]) -> None:
        """Record the metrics of a step, with tokens, speed, and passes over the text as the epoch.

        Raises
        ------
        ValueError
            If the loss, in training or held out, is no number: nothing can come of such a run.
        """
        samples, per_step = self._job.samples, tokens_per_step(self._job, self._runtime)
        metrics["tokens"] = self.step * per_step
        if "loss" in metrics:
            steps, _, seconds = self._timed_steps()
            metrics["tokens_per_second"] = steps * per_step / max(seconds, 1e-9)
        metrics["epoch"] = metrics["tokens"] / samples.context / samples.per_pass
        wrong = [metrics[key] for key in ("loss", BITS) if not math.isfinite(metrics.get(key, 0.0))]
        if wrong:
            raise InputError(
                f"training has diverged: the loss is {wrong[0]} at step {self.step}; start again with a "
                f"smaller --learning-rate (it was {self._options.learning_rate}) or a longer --warmup"
            )
        if self._runtime.first:
            self._job.run.record({"step": self.step, "time": round(time.time(), 2), **metrics})
        self._reporter.metrics(metrics)
        self._trainer.report(metrics, self.step)

    def evaluate(self) -> None:
        """Measure the held-out bits per byte, each held-out byte once; record and show them, with a sample.

        Nothing is recorded where the user asked to stop meanwhile.
        """
        job, trainer = self._job, self._trainer
        alone = self._runtime.processes == 1  # several must agree, and do after the step
        with self.clock.pause():
            try:
                nats = self._nats(job.held_out, stop=lambda: alone and self._interruption.requested)
            except StoppedError:
                return
            bits = bits_per_byte(self._runtime.total(nats), job.data.held_out)
            self.log({BITS: bits})
            if self._runtime.first:
                job.run.log_parameters(self.step, trainer.parameters(job.architecture.is_logged))
                self._reporter.evaluated(self.step, bits, self.sample(SAMPLE_TOKENS)[0])

    def sample(self, n_tokens: int) -> tuple[str, int]:
        """Return how the model continues the prompt, and how many tokens, at most `n_tokens`, that took."""
        options, tokenizer = self._options, self._job.data.tokenizer
        with waiting("writing a sample"):
            return continuation(self._trainer.model(), tokenizer, options.prompt, n_tokens, seed=options.seed)

    def _nats(self, windows: Windows, *, stop: Callable[[], bool] = lambda: False) -> float:
        """Return the cross-entropy (nats) of this process's share of `windows`, summed."""
        return held_out_nats(
            self._trainer.model(),
            windows,
            batch=self._options.batch * self._runtime.local_devices,
            rank=self._runtime.rank,
            world=self._runtime.processes,
            stop=stop,
        )

    def save(self) -> None:
        """Write a checkpoint, in the first process only: all have the same state."""
        if self._runtime.first:
            with self.clock.pause(), waiting("saving"):
                write_checkpoint(self._job.run.checkpoints, self.step, self._trainer.write)
        self._saved_at = time.monotonic()

    def _batch(self) -> Batch:
        """Return the samples of the next step that this process takes, (accumulate, rows, context)."""
        accumulate, rows = self._options.accumulate, self._options.batch * self._runtime.local_devices
        parts = range(self.step * accumulate, (self.step + 1) * accumulate)
        starts = [(part * self._runtime.processes + self._runtime.rank) * rows for part in parts]
        batch = self._job.samples.batch([start + row for start in starts for row in range(rows)])
        return {name: array.reshape(accumulate, rows, -1) for name, array in batch.items()}

    def _evaluation_is_due(self) -> bool:
        options, total = self._options, self.total_steps
        return total is not None and self.step in evaluation_steps(
            total, options.evaluations, timed=options.steps is None
        )

    def _checkpoint_is_due(self) -> bool:
        waited = time.monotonic() - self._saved_at
        return self.step % self._options.checkpoint_steps == 0 or waited >= self._options.checkpoint_seconds

    # How long

    def _decide_length(self, timed: TimedSchedule) -> None:
        """Let the first process turn minutes into steps, when it can, and tell the others."""
        steps = self._runtime.in_first_process(lambda: timed.step_done(self.step))
        if steps is None:
            return
        self._timed = None
        self.total_steps = steps
        if self._runtime.first:
            self._job.run.describe(steps=steps)

    def _other_seconds(self, step_seconds: float) -> float:
        """Return how long evaluations, samples and checkpoints of the rest of the run will take, by trying each."""
        options, held_out = self._options, self._job.held_out
        rows = [held_out[i] for i in range(min(options.batch * self._runtime.local_devices, len(held_out)))]
        written = 0

        def write() -> None:
            nonlocal written
            _, written = self.sample(SAMPLE_TOKENS)

        with self.clock.pause():
            save = _seconds(self.save)
            evaluate, sample = (
                min(_seconds(function) for _ in range(2))  # the first time may be slow: it allocates, and compiles
                for function in (lambda: self._nats(rows), write)
            )
        evaluate *= len(held_out) / len(rows) / self._runtime.processes
        sample *= SAMPLE_TOKENS / max(1, written)
        between = min(options.checkpoint_seconds, options.checkpoint_steps * step_seconds)
        saves = 60 * options.minutes / max(between, save)
        return float(options.evaluations * (evaluate + sample) + saves * save)

    def _seconds_left(self) -> float:
        """Return how long the run will go on, from how long it has taken."""
        if self.total_steps is None:
            return max(0.0, 60 * self._options.minutes - self.clock.seconds)
        steps, seconds, _ = self._timed_steps()
        return (self.total_steps - self.step) * seconds / steps

    def _timed_steps(self) -> tuple[int, float, float]:
        """Return steps of this session, how long they took, and how long without evaluations, samples and checkpoints.

        The first one compiles: it is left out as soon as there is another.
        """
        steps, seconds, training = self.step - self.first_step, self.clock.seconds, self.clock.training_seconds
        if steps < 2:
            return steps, seconds, training
        return steps - 1, seconds - self._first[0], training - self._first[1]


def tokens_per_step(job: Job, runtime: Runtime) -> int:
    """Return how many tokens one step trains on."""
    devices = runtime.processes * runtime.local_devices
    return job.options.batch * job.options.accumulate * devices * job.config.max_len


def _seconds(function: Callable[[], object]) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start
