"""One sitting of a training run: begin it, or take it up again; train; leave the results."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmm_core import TMMConfig, use_backend
from tmm_core.errors import InputError

from ..data.config import Source
from ..data.dataset import TrainingSamples
from ..data.tokens import TokenWindows, evaluation_windows
from ..evaluation.baselines import baseline_costs
from ..evaluation.measure import prompt_ids
from .checkpoints import newest_intact, step_of
from .course import Course
from .data import Data, fitting, open_data, prepare_data
from .display import Display, make_display
from .frameworks import choose, load
from .interruption import Interruption
from .learner import Framework, Place, Work
from .options import TrainingOptions
from .report import finish, header, resume_command
from .reporter import BITS, Narration
from .runs import Run

__all__ = ["Plan", "begin", "resume", "settled"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user wants of a new run."""

    preset: str
    config: TMMConfig
    """The model; its vocabulary becomes the tokenizer's unless `vocab_given`."""
    vocab_given: bool
    source: Source
    options: TrainingOptions
    out: Path | None
    """Where to; `runs/<preset>-<time>` unless given."""


def begin(plan: Plan) -> int:
    """Make a new run and train it; return the exit code: 0, or 130 and 143 where a signal ended it."""
    name = choose(plan.options.framework, training=True)
    framework = load(name)
    options = dataclasses.replace(plan.options, framework=name)
    plan = dataclasses.replace(plan, options=settled(options, plan.config, framework))
    place = framework.place(plan.options)
    display = make_display(silent=not place.first)
    with _backend(plan.options):
        place.engine_name()  # refuses a bad choice before anything is written
        folder = place.in_first_process(lambda: _create(plan, display).folder)
        return _train(Run.open(folder), place, plan.options, display, checkpoint=None)


def resume(run: Run, **changes: Any) -> int:
    """Take `run` up again from its newest intact checkpoint; return the exit code.

    Parameters
    ----------
    run : Run
        As `Run.open` or `newest_run` give it.
    **changes
        Options that say how to compute, not what: `framework`, `device`, `backend`, `compile`, `report_to`.

    Raises
    ------
    LookupError
        If the framework that the run was trained by is not installed, and no other is asked for.
    ValueError
        If the run is finished.
    """
    if run.description["finished"]:
        raise InputError(f"the run {run.folder} is finished, nothing is left to resume: its model is {run.model}")
    options = dataclasses.replace(run.described()[2], **changes)
    place = load(choose(options.framework, training=True)).place(options)
    display = make_display(silent=not place.first)
    with _backend(options):
        checkpoint, skipped = newest_intact(run.checkpoints)
        for reason in skipped:
            display.note(f"skipped {reason}")
        display.note(
            f"resuming from {checkpoint}" if checkpoint else "no intact checkpoint: beginning at the first step"
        )
        return _train(run, place, options, display, checkpoint=checkpoint)


def settled(options: TrainingOptions, config: TMMConfig, framework: Framework) -> TrainingOptions:
    """Return `options` with what was left open decided for a model, and for this machine.

    Adam's steps do not shrink with the gradients, so a learning rate goes with 1 / width: 0.006 was the best measured
    at 128 channels (0.003 and 0.012 were worse), 0.003 served at 256.
    """
    rate = options.learning_rate or 0.768 / config.d_model
    precision = options.precision
    if precision == "auto":
        precision = "bfloat16" if framework.fast_at_bfloat16(options.device) else "float32"
    return dataclasses.replace(options, learning_rate=rate, precision=precision)


def _backend(options: TrainingOptions) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if options.backend is None else use_backend(options.backend)


def _create(plan: Plan, display: Display) -> Run:
    """Make the folder of a new run, with all that training reads; nothing stays of it where that fails."""
    run = Run.create(plan.out, plan.preset)
    try:
        display.note(f"reading {plan.source.name}")
        data = prepare_data(run, plan.source)
        config = fitting(plan.config, data.tokenizer, given=plan.vocab_given)
        _windows(data, config, plan.options)
        prompt_ids(plan.options.prompt, data.tokenizer, config)  # refuses one that is too long
        run.describe(
            preset=plan.preset,
            config=config.to_dict(),
            source=plan.source.to_dict(),
            options=plan.options.to_dict(),
            steps=plan.options.steps,
            yardsticks=baseline_costs(data.training, data.held_out),
            started=time.time(),
            finished=False,
        )
    except BaseException:
        shutil.rmtree(run.folder, ignore_errors=True)
        raise
    return run


def _windows(data: Data, config: TMMConfig, options: TrainingOptions) -> tuple[TrainingSamples, TokenWindows]:
    """Return what to train and to evaluate on; refuse a text that is shorter than one context."""
    end_of_text = None if options.join_documents else data.tokenizer.end_of_text
    samples = TrainingSamples(data.training_tokens, config.max_len, options.seed, end_of_text=end_of_text)
    return samples, evaluation_windows(data.held_out_tokens, config.max_len, end_of_text)


def _train(run: Run, place: Place, options: TrainingOptions, display: Display, *, checkpoint: Path | None) -> int:
    """Train from `checkpoint` on, and finish the run unless interrupted."""
    config, source, _ = run.described()
    data = open_data(run, source)
    samples, held_out = _windows(data, config, options)
    work = Work(
        run=run,
        config=config,
        options=options,
        samples=samples,
        held_out=held_out,
        held_out_part=data.held_out,
        tokenizer=data.tokenizer,
    )
    with contextlib.ExitStack() as stack, Interruption(silent=not place.first) as interruption:
        place.in_first_process(lambda: stack.enter_context(run.occupied()))
        learner = place.learner(work)
        narration = Narration(work, learner, display)
        first = 0 if checkpoint is None else step_of(checkpoint)
        course = Course(work, learner, place, narration, interruption, first_step=first)
        display.header(f"Toeplitz MLP Mixer, {run.description['preset']}", header(work, data, place))
        if place.first:
            run.forget_after(first)
            _tell_of_another_step(run, course.tokens_per_step, display)
        try:
            try:
                if checkpoint is not None and course.total_steps is not None and first >= course.total_steps:
                    learner.load(checkpoint)  # only the end of the run was missed
                else:
                    learner.train(course, checkpoint)
            finally:
                display.stop()
            if not interruption.requested and not place.in_first_process(lambda: _evaluated(run, course.step)):
                course.evaluate()  # a signal came in its turn
            stopped = interruption.requested
            if stopped:
                display.note(f"saved after step {course.step}; to go on: {resume_command(run)}")
            elif place.first:
                finish(course, learner, narration, display)
            place.part()
        except BrokenPipeError:
            raise  # who read the output has gone, such as `head`
        except OSError as error:
            if error.errno is None and type(error) is not OSError:
                raise  # ours, of a path that is wrong: it says what to do
            locked = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            remedy = "let it be written" if locked else "make room"
            raise OSError(f"{error}; earlier checkpoints are intact: {remedy}, then {resume_command(run)}") from error
    return interruption.exit_code if stopped else 0  # a signal while the results were written came too late


def _tell_of_another_step(run: Run, tokens: int, display: Display) -> None:
    """Say where a step is larger or smaller than in the sitting before: the run goes on, but not bit for bit."""
    records = ((record["step"], record.get("tokens")) for record in run.records())
    before = [total // step for step, total in records if step > 0 and isinstance(total, int)]
    if before and before[-1] != tokens:
        display.note(
            f"note: a step trains on {tokens:,} tokens here, and did on {before[-1]:,}: each device takes a batch, "
            "and there is another number of them"
        )


def _evaluated(run: Run, step: int) -> bool:
    return any(record["step"] == step and BITS in record for record in run.records())
