"""The training loop, whichever framework computes: steps, records, evaluations, checkpoints, and when it stops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tmm_core.errors import InputError
from tmm_core.lm import IGNORED

from ..data.dataset import TokenWindows
from ..data.tokens import bits_per_byte
from ..evaluation.measure import Batch, StoppedError, Windows, continuation, held_out_nats
from ..progress import waiting
from .checkpoints import write_checkpoint
from .interruption import Interruption
from .job import Job
from .loop_state import LoopState
from .options import EVALUATIONS
from .reporter import BITS, Reporter
from .schedule import Revision
from .time_budget import Clock, TimeBudget
from .trackers import Trackers

if TYPE_CHECKING:
    from .frameworks import Runtime, Trainer

__all__ = ["DivergedError", "Loop", "samples_per_step"]


class DivergedError(InputError):
    """Raised where the loss is no number: nothing can come of such a run."""


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
    trackers : Trackers
        Are told of the metrics.
    state : LoopState
        How far earlier sessions have come.
    clock : Clock
        Began with the session; goes on from `state` where there was an earlier one.
    """

    def __init__(
        self,
        job: Job,
        trainer: Trainer,
        runtime: Runtime,
        reporter: Reporter,
        interruption: Interruption,
        *,
        trackers: Trackers,
        state: LoopState,
        clock: Clock,
    ) -> None:
        """Prepare to train; nothing is read or written yet."""
        self.state = state
        self.clock = clock
        self._first_step = state.step
        self._job = job
        self._options = job.options
        self._trainer = trainer
        self._runtime = runtime
        self._reporter = reporter
        self._interruption = interruption
        self._trackers = trackers
        self._saved_at = time.monotonic()
        self.schedule = job.run.schedule(job.options)
        self._budget = TimeBudget(
            60 * job.options.minutes,
            clock,
            evaluations=job.options.evaluations or EVALUATIONS,
            windows=len(job.held_out),
            rows=samples_per_step(job, runtime),
            sample_tokens=job.options.sample_tokens,
            final_tokens=job.options.final_sample_tokens,
        )
        self._marks = [(0, 0.0, 0.0)]  # steps of this session, seconds, seconds of training: at its begin, after a step

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, as is planned now; None while minutes have not become steps yet."""
        return self.schedule.total(self.state.step)

    @property
    def at_end(self) -> bool:
        """Whether the last step is done."""
        return self.total_steps is not None and self.state.step >= self.total_steps

    def run(self) -> bool:
        """Train until the last step, or the step in which a stop is requested; then a checkpoint is written.

        Returns
        -------
        bool
            Whether a stop was requested, the same in every process.
        """
        state = self.state
        self._saved_at = time.monotonic()
        self._marks = [(0, self.clock.seconds, self.clock.training_seconds)]
        self._reporter.start(state.step, self.total_steps)
        if self._evaluation_is_owed() and not self.evaluate():
            return self.stop_requested()
        batch = self._batch()
        while not self.at_end:
            factor = self.schedule.factor(state.step)
            with self._compiling() if state.step == self._first_step else nullcontext():
                loss, grad_norm = self._trainer.step(batch, factor)
                state.step += 1
                state.samples_per_step = samples_per_step(self._job, self._runtime)
                state.samples += state.samples_per_step
                batch = self._batch()  # read while the device computes
                stop = self._agree(float(loss))
            evaluate = self.schedule.evaluation_is_due(state.step)
            self._reporter.step(state.step, self.total_steps, left=self._seconds_left())
            if state.step == 1 or state.step % self._options.log_every == 0 or evaluate:
                self._log_step(float(grad_norm), factor)
            if evaluate:
                stop = not self.evaluate() or stop
            if stop or self.at_end or self._checkpoint_is_due():
                self.save()
            if stop:
                break
        return self.stop_requested()  # in the last step the signal may have come after it was asked for

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Say that the first step compiles.

        PyTorch's compiler has processes of its own, and waits for ever where a signal to all of the group ended them,
        so that a request to stop ends this one; the session has done nothing yet that could be saved.
        """
        ends = self._interruption.at_once() if self._options.compile else nullcontext()
        with waiting("compiling the first step"), ends:
            yield

    def stop_requested(self) -> bool:
        """Return whether any process was signalled to stop: they stop after the same step, so all of them must ask."""
        return self._runtime.totals([self._interruption.requested])[0] > 0

    def _agree(self, loss: float) -> bool:
        """Let the processes agree on the loss of a step, on how many are to come, and on whether to stop; return that.

        The first of them decides on how many steps fit into the minutes; what was decided once is kept with the run.
        """
        state, decided = self.state, None
        if len(self._marks) == 1:
            if self._first_step == 0 and self._options.steps is None:  # half of the time is left for the other steps
                forgotten = self.clock.count_at_most(30 * self._options.minutes)
                self._marks = [(0, seconds - forgotten, training - forgotten) for _, seconds, training in self._marks]
            self._marks.append((1, self.clock.seconds, self.clock.training_seconds))
        if self._options.steps is None and self._runtime.first:
            last = self.schedule.revisions[-1] if self.schedule.revisions else None
            if last is None or state.step > last.step:
                decided = self._budget.step_done(state.step, last)
        stops, total, decisions = self._runtime.totals([self._interruption.requested, loss, decided is not None])
        state.loss_sum += total / self._runtime.processes
        state.loss_steps += 1
        if decisions:
            self.schedule.revise(self._runtime.in_first_process(lambda: self._decided(decided)))
        return stops > 0

    def _decided(self, revision: Revision | None) -> Revision:
        """Keep a decision with the run."""
        assert revision is not None  # the first process, which calls this, made it
        self._job.run.describe(steps=revision.total, plan=[*self._job.run.description["plan"], list(revision)])
        return revision

    def _log_step(self, grad_norm: float, factor: float) -> None:
        """Record the mean of the losses since the last record, over all processes."""
        state = self.state
        mean, state.loss_sum, state.loss_steps = state.loss_sum / state.loss_steps, 0.0, 0
        rate = self._job.learning_rate * factor
        self.log({"loss": mean, "grad_norm": grad_norm, "learning_rate": rate})

    def log(self, metrics: dict[str, float]) -> None:
        """Record the metrics of a step, with tokens, speed, and passes over the text as the epoch.

        Raises
        ------
        DivergedError
            If the loss, in training or held out, is no number.
        """
        samples, state = self._job.samples, self.state
        metrics["tokens"] = state.samples * samples.context
        if "loss" in metrics:
            steps, _, seconds = self._timed_steps()
            metrics["tokens_per_second"] = steps * state.samples_per_step * samples.context / max(seconds, 1e-9)
        metrics["epoch"] = state.samples / samples.per_pass
        wrong = [metrics[key] for key in ("loss", BITS) if not math.isfinite(metrics.get(key, 0.0))]
        if wrong:
            raise DivergedError(
                f"training has diverged: the loss is {wrong[0]} at step {state.step}; start again with a "
                f"smaller --learning-rate (it was {self._options.learning_rate}) or a longer --warmup"
            )
        if self._runtime.first:
            self._job.run.record({"step": state.step, "time": round(time.time(), 2), **metrics})
        state.records += 1
        self._reporter.metrics(metrics)
        self._trackers.report(metrics, state.step)

    def evaluate(self) -> bool:
        """Measure the held-out bits per byte, each held-out byte once; record and show them, with a sample.

        In a run of given minutes, those before the last are measured on a part of the text; so is the last where all
        of it would take more than a fifth of the time.

        Returns
        -------
        bool
            False where the user asked to stop meanwhile; nothing is recorded then.
        """
        job, trainer, every = self._job, self._trainer, self.schedule.every(self.state.step)
        alone = self._runtime.processes == 1  # several must agree, and do after the step
        with self.clock.pause():
            windows, share = _part(job.held_out, every)
            begin = time.monotonic()
            try:
                nats = self._nats(windows, stop=lambda: alone and self._interruption.requested)
            except StoppedError:
                return False
            bits = bits_per_byte(self._runtime.totals([nats])[0] / share, job.data.held_out)
            self._budget.evaluated(time.monotonic() - begin, len(windows))
            self.log({BITS: bits} if every == 1 else {BITS: bits, "eval_share": round(share, 4)})
            if self._runtime.first:
                job.run.log_parameters(self.state.step, trainer.parameters(job.architecture.is_logged))
                text = None
                if self._options.sample_tokens:
                    begin = time.monotonic()
                    text, n_tokens = self.sample(self._options.sample_tokens)
                    self._budget.sampled(time.monotonic() - begin, n_tokens)
                self._reporter.evaluated(self.state.step, bits, text, share=share)
        return True

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
            run, begin = self._job.run, time.monotonic()
            with self.clock.pause(), waiting("saving"):
                self.state.sizes = run.sizes()
                self.state.seconds = self.clock.seconds
                write_checkpoint(run.checkpoints, self.state.step, self._write)
            self._budget.saved(time.monotonic() - begin)
        self._saved_at = time.monotonic()

    def _write(self, folder: Path) -> None:
        """Write the files of a checkpoint."""
        self._trainer.write(folder)
        self.state.write(folder)

    def _batch(self) -> Batch:
        """Return the samples of the next step that this process takes, (accumulate, rows, context)."""
        accumulate, rows = self._options.accumulate, self._options.batch * self._runtime.local_devices
        parts = [part * self._runtime.processes + self._runtime.rank for part in range(accumulate)]
        numbers = [self.state.samples + part * rows + row for part in parts for row in range(rows)]
        return {name: array.reshape(accumulate, rows, -1) for name, array in self._job.samples.batch(numbers).items()}

    def _evaluation_is_owed(self) -> bool:
        """Return whether the evaluation of the last session's last step is missing: a signal came in its turn."""
        step, run = self.state.step, self._job.run
        return self.schedule.evaluation_is_due(step) and self._runtime.in_first_process(
            lambda: not any(record["step"] == step and BITS in record for record in run.records())
        )

    def _checkpoint_is_due(self) -> bool:
        since = time.monotonic() - self._saved_at
        due = self.state.step % self._options.checkpoint_steps == 0 or since >= self._options.checkpoint_seconds
        return due and (self._options.steps is not None or self._budget.checkpoint_is_affordable(since))

    def _seconds_left(self) -> float:
        """Return how long the run will go on: what is left of its minutes, or as long as its steps have taken."""
        if self._options.steps is None or self.total_steps is None:
            return self._budget.left
        steps, seconds, _ = self._timed_steps()
        return (self.total_steps - self.state.step) * seconds / steps

    def _timed_steps(self) -> tuple[int, float, float]:
        """Return steps of this session, how long they took, and how long without evaluations, samples and checkpoints.

        The first one compiles: it is left out as soon as there is another.
        """
        done = self.state.step - self._first_step
        steps, seconds, training = self._marks[min(done - 1, len(self._marks) - 1)] if done > 1 else self._marks[0]
        return done - steps, self.clock.seconds - seconds, self.clock.training_seconds - training


def samples_per_step(job: Job, runtime: Runtime) -> int:
    """Return how many samples one step trains on."""
    return job.options.batch * job.options.accumulate * runtime.processes * runtime.local_devices


def _part(windows: TokenWindows, every: int) -> tuple[Windows, float]:
    """Return one in `every` windows, and the share of the predicted tokens that are theirs."""
    if every == 1:
        return windows, 1.0
    some = [windows[index] for index in range(0, len(windows), every)]
    return some, sum(int((window["targets"] != IGNORED).sum()) for window in some) / windows.n_predicted
