"""One sitting of a training run: begin it, or take it up again; train; leave the results."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainingArguments

from tmm_core import TMMConfig, use_backend

from ..tokens import TokenWindows, evaluation_windows
from ..torch import LanguageModel
from ..yardsticks import yardsticks
from .arguments import UNKNOWN_STEPS, in_first_process, part, settled, training_arguments
from .callbacks import BITS, Flow, Narration, Records
from .checkpoints import newest_intact, step_of
from .data import Data, fitting, open_data, prepare_data
from .display import Display, make_display
from .interruption import Interruption
from .machine import engine_name
from .measure import prompt_ids
from .options import TrainingOptions
from .order import TrainingSamples
from .report import finish, header, resume_command
from .runs import DESCRIPTION, Run
from .source import Source
from .trainer import LanguageModelTrainer

__all__ = ["Plan", "begin", "resume"]


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
    plan = dataclasses.replace(plan, options=settled(plan.options, plan.config))
    arguments = training_arguments(plan.options)
    display = make_display(silent=arguments.process_index != 0)
    with _backend(plan.options):
        engine_name(arguments.device, plan.options.precision)  # refuses a bad choice before anything is written
        folder = in_first_process(arguments, lambda: _create(plan, display).folder)
        return _train(Run.open(folder), arguments, plan.options, display, checkpoint=None)


def resume(run: Run, **changes: Any) -> int:
    """Take `run` up again from its newest intact checkpoint; return the exit code.

    Parameters
    ----------
    run : Run
        As `Run.open` or `newest_run` give it.
    **changes
        Options that say where to compute, not what: `device`, `backend`, `compile`, `report_to`.

    Raises
    ------
    ValueError
        If the run is finished.
    """
    if run.description["finished"]:
        raise ValueError(f"the run {run.folder} is finished, nothing is left to resume: its model is {run.model}")
    options = dataclasses.replace(_described(run)[2], **changes)
    arguments = training_arguments(options)
    display = make_display(silent=arguments.process_index != 0)
    with _backend(options):
        checkpoint, skipped = newest_intact(run.checkpoints)
        for reason in skipped:
            display.note(f"skipped {reason}")
        display.note(
            f"resuming from {checkpoint}" if checkpoint else "no intact checkpoint: beginning at the first step"
        )
        return _train(run, arguments, options, display, checkpoint=checkpoint)


def _described(run: Run) -> tuple[TMMConfig, Source, TrainingOptions]:
    """Return the model, the text and the options of `run`, checked."""
    try:
        return (
            TMMConfig.from_dict(run.description["config"]),
            Source.from_dict(run.description["source"]),
            TrainingOptions.from_dict(run.description["options"]),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{run.folder / DESCRIPTION} describes no run that can go on ({error}): restore it, or begin a new run"
        ) from error


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
            yardsticks=yardsticks(data.training, data.held_out),
            started=time.time(),
            finished=False,
        )
    except BaseException:
        shutil.rmtree(run.folder, ignore_errors=True)
        raise
    return run


def _windows(data: Data, config: TMMConfig, options: TrainingOptions) -> tuple[TrainingSamples, TokenWindows]:
    """Return what to train and to evaluate on; refuse a text that is shorter than one context."""
    samples = TrainingSamples(data.training_tokens, config.max_len, options.seed)
    return samples, evaluation_windows(data.held_out_tokens, config.max_len)


def _train(
    run: Run, arguments: TrainingArguments, options: TrainingOptions, display: Display, *, checkpoint: Path | None
) -> int:
    """Train from `checkpoint` on, and finish the run unless interrupted."""
    config, source, _ = _described(run)
    arguments.output_dir = str(run.folder)
    arguments.max_steps = run.description["steps"] or UNKNOWN_STEPS
    data = open_data(run, source)
    samples, held_out = _windows(data, config, options)
    with Interruption(silent=arguments.process_index != 0) as interruption:
        trainer = LanguageModelTrainer(
            LanguageModel(config, seed=options.seed),
            arguments,
            options=options,
            run=run,
            samples=samples,
            held_out=held_out,
            held_out_part=data.held_out,
            tokenizer=data.tokenizer,
            stopped=lambda: interruption.requested,
        )
        trainer.remove_callback(PrinterCallback)
        narration = Narration(trainer, display, run.description["yardsticks"])
        for callback in (Flow(trainer, interruption), Records(run), narration):
            trainer.add_callback(callback)
        display.header(f"Toeplitz MLP Mixer, {run.description['preset']}", header(run, trainer, data))
        if arguments.process_index == 0:
            run.forget_after(0 if checkpoint is None else step_of(checkpoint))
        try:
            try:
                _steps(trainer, checkpoint)
            finally:
                display.stop()
            step = trainer.state.global_step
            if not interruption.requested and not in_first_process(arguments, lambda: _evaluated(run, step)):
                trainer.evaluate()  # a signal came in its turn
            if interruption.requested:
                display.note(f"saved after step {step}; to go on: {resume_command(run)}")
                part(arguments)
                return interruption.exit_code
            if arguments.process_index == 0:
                finish(run, trainer, display, narration)
            part(arguments)
        except OSError as error:
            raise OSError(f"{error}; earlier checkpoints are intact: make room, then {resume_command(run)}") from error
    return 0


def _steps(trainer: LanguageModelTrainer, checkpoint: Path | None) -> None:
    """Do the steps that are left; none are where only the end of the run was missed."""
    if checkpoint is not None and step_of(checkpoint) == trainer.total_steps:
        trainer._load_from_checkpoint(str(checkpoint))
        trainer.state.global_step = step_of(checkpoint)
    else:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def _evaluated(run: Run, step: int) -> bool:
    return any(record["step"] == step and BITS in record for record in run.records())
