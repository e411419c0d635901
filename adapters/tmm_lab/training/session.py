"""One session of a training run: begin it, or resume it; train; leave the results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tmm_adapters.architecture import ModelConfig, get_architecture
from tmm_adapters.checkpoints import checkpoints, newest_intact, step_of
from tmm_adapters.files import WriteError, discard
from tmm_adapters.pretrained import save_params
from tmm_adapters.words import counted
from tmm_core import use_backend
from tmm_core.errors import InputError, TMMError

from ..data.config import DataConfig
from ..progress import note, waiting
from .data import open_data
from .display import Display, make_display
from .environment import rank
from .frameworks import Runtime, Trainer, TrainingFramework, choose, load
from .interruption import Interruption
from .job import Job
from .loop import Loop, samples_per_step
from .loop_state import LoopState
from .options import TrainingOptions
from .preparation import begun, description_of, prepared
from .reporter import BITS, Reporter, resume_command
from .resources import peak_memory
from .runs import Run
from .time_budget import Clock
from .trackers import Trackers, check_trackers

__all__ = ["begin", "resume", "with_defaults"]


def begin(
    *,
    preset: str,
    config: ModelConfig,
    vocab_given: bool,
    data: DataConfig,
    options: TrainingOptions,
    out: Path | None,
    start: Path | None = None,
) -> int:
    """Make a new run and train it; return the exit code: 0, or 130 and 143 where a signal ended it.

    Parameters
    ----------
    preset : str
        What `config` was made from.
    config : ModelConfig
        The model; its vocabulary becomes the tokenizer's unless `vocab_given`.
    vocab_given : bool
        Whether the user gave the size of the vocabulary.
    data : DataConfig
        The text.
    options : TrainingOptions
        How to train.
    out : Path or None
        Where to; `runs/<architecture>-<preset>-<time>` unless given.
    start : Path, optional
        Folder of the model, of this configuration, whose parameters training begins with.
    """
    description = description_of(
        preset=preset, config=config, vocab_given=vocab_given, data=data, options=options, start=start
    )
    with contextlib.ExitStack() as stack:

        def own() -> tuple[Run, bool]:
            return stack.enter_context(begun(out, description))

        return _first_session(options, config, own)


def resume(run: Run, *, steps: int | None = None, display: Display | None = None, **changes: Any) -> int:
    """Take `run` up again from its newest intact checkpoint; return the exit code.

    Parameters
    ----------
    run : Run
        As `Run.open` or `newest_run` give it.
    steps : int, optional
        A new number of steps for the whole run, which may be finished; the learning rate goes on as in a run of that
        many.
    display : Display, optional
        Shows the run; by default on standard output.
    **changes
        Options that say how to compute, not what: `framework`, `device`, `backend`, `compile`, `report_to`.

    Raises
    ------
    LookupError
        If the framework that the run was trained by is not installed, and no other is asked for.
    ValueError
        If the run is finished, or has done `steps` already.
    """
    config, _, options = run.parsed()
    options = dataclasses.replace(options, **changes)
    if not run.description["prepared"]:
        options = options if steps is None else dataclasses.replace(options, steps=steps)
        with contextlib.ExitStack() as stack:

            def own() -> tuple[Run, bool]:
                locked = stack.enter_context(run.locked())
                run.describe(options=options.to_dict(), steps=options.steps)
                return run, locked

            return _first_session(options, config, own)
    if run.description["finished"] and steps is None:
        raise InputError(
            f"the run {run.folder} is finished, its model is {run.model}; to train it longer: "
            f"{resume_command(run)} --steps N, with more steps than the {run.description['steps']} that are done"
        )
    framework = load(choose(options.framework, config.model_type, training=True))
    checkpoint, skipped = newest_intact(run.checkpoints)
    if steps is not None:
        options = dataclasses.replace(options, steps=steps)
        _lengthen(run, checkpoint, options)
    with _settings(framework, options), contextlib.ExitStack() as stack:
        runtime = framework.make_runtime(options)
        locked = runtime.in_first_process(lambda: stack.enter_context(run.locked()))
        display = display or make_display(silent=not runtime.first)
        for reason in skipped:
            note(f"skipped {reason}")
        display.note(
            f"resuming from {checkpoint}" if checkpoint else "no intact checkpoint: beginning at the first step"
        )
        opened: list[Job] = []
        runtime.in_first_process(lambda: opened.append(_open(run, options, check=True)))  # which mends damaged tokens
        job = opened[0] if opened else _open(run, options, check=False)
        return _train(job, runtime, display, checkpoint=checkpoint, locked=locked, clock=None)


def with_defaults(options: TrainingOptions, config: ModelConfig, framework: TrainingFramework) -> TrainingOptions:
    """Return `options` with what was left open decided for a model, and for this machine."""
    rate = options.learning_rate or get_architecture(config.model_type).learning_rate(config)
    precision = options.precision
    if precision == "auto":
        precision = "bfloat16" if framework.fast_at_bfloat16(options.device) else "float32"
    return dataclasses.replace(options, learning_rate=rate, precision=precision)


def _first_session(options: TrainingOptions, config: ModelConfig, own: Callable[[], tuple[Run, bool]]) -> int:
    """Prepare the run that `own` makes, or takes over, and train it."""
    name, clock = choose(options.framework, config.model_type, training=True), Clock()
    display, job, locked = make_display(silent=rank() > 0), None, True
    if rank() == 0:
        run, locked = own()
        job = prepared(run)
    framework = load(name)
    options = with_defaults(dataclasses.replace(options, framework=name), config, framework)
    with _settings(framework, options):
        runtime = framework.make_runtime(options)
        runtime.engine_name()  # refuses a bad choice
        folder = runtime.in_first_process(lambda: None if job is None else _ready(job.run, options))
        if job is None:
            job = _open(Run.open(Path(folder or "")), options, check=False)
        job = dataclasses.replace(job, options=options)
        return _train(job, runtime, display, checkpoint=None, locked=locked, clock=clock)


def _ready(run: Run, options: TrainingOptions) -> Path:
    """Write that a run is prepared, and with which options; return its folder."""
    run.describe(options=options.to_dict(), prepared=True)
    return run.folder


def _lengthen(run: Run, checkpoint: Path | None, options: TrainingOptions) -> None:
    """Give a run another number of steps; written when the run is locked."""
    if checkpoint is None and run.description["finished"]:
        raise InputError(
            f"the run {run.folder} has no intact checkpoint left to go on from: begin a new run with its model, "
            f"tmm train --from {run.folder}"
        )
    done = 0 if checkpoint is None else step_of(checkpoint)
    if options.steps is not None and options.steps <= done:
        raise InputError(
            f"--steps {options.steps} is the length of the whole run, of which {done} steps are done: give more"
        )
    run.description |= {"options": options.to_dict(), "steps": options.steps, "plan": []}
    run.description |= {"finished": False, "bits_per_byte": None}


@contextlib.contextmanager
def _settings(framework: TrainingFramework, options: TrainingOptions) -> Iterator[None]:
    """Let the options decide how the block computes, whatever the environment says."""
    check_trackers(options.report_to)
    with framework.settings(options), contextlib.ExitStack() as stack:
        if options.backend is not None:
            stack.enter_context(use_backend(options.backend))
        yield


def _open(run: Run, options: TrainingOptions, *, check: bool) -> Job:
    """Return the job of a run that is prepared."""
    parsed = run.parsed()
    return Job.of(run, parsed.config, options, open_data(run, parsed.data, check=check))


def _train(
    job: Job, runtime: Runtime, display: Display, *, checkpoint: Path | None, locked: bool, clock: Clock | None
) -> int:
    """Train from `checkpoint` on, and finish the run unless interrupted."""
    run = job.run
    state = LoopState() if checkpoint is None else LoopState.read(checkpoint)
    with Interruption(silent=not runtime.first) as interruption, _told_how_to_go_on(run):
        if not locked:
            note(f"{run.folder} cannot be locked here: let no other process train this run meanwhile")
        trainer = runtime.trainer(job)
        reporter = Reporter(job, display)
        reporter.header(runtime, state, samples_per_step(job, runtime))
        runtime.in_first_process(lambda: _take_up(run, state))
        trackers = Trackers(job, on=runtime.first)
        loop = Loop(
            job,
            trainer,
            runtime,
            reporter,
            interruption,
            trackers=trackers,
            state=state,
            clock=clock or Clock(state.seconds),
        )
        if checkpoint is not None:
            trainer.load(checkpoint, optimizer=not loop.at_end)
        elif run.description["start"] is not None:
            trainer.load(run.initial, optimizer=False)
        try:
            stopped = loop.run()
        except SystemExit:
            display.note(f"stopped before the first step was compiled; to go on: {resume_command(run)}")
            raise
        finally:
            display.stop()
        if stopped:
            display.note(f"saved after step {state.step}; to go on: {resume_command(run)}")
        elif runtime.first:
            _finish(job, trainer, loop, reporter, memory=peak_memory() + runtime.device_memory())
        trackers.end()
        runtime.end()
    return interruption.exit_code if stopped else 0  # a signal while the results were written came too late


def _take_up(run: Run, state: LoopState) -> None:
    """Put the files of a run back to where its checkpoint was written."""
    run.describe()  # with another number of steps, perhaps
    if run.model.is_dir():
        discard(run.model)  # the run was finished, or nearly
    run.go_back_to(state)


@contextlib.contextmanager
def _told_how_to_go_on(run: Run) -> Iterator[None]:
    """Say of files that cannot be written what is kept, and how to go on."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (TMMError, BrokenPipeError)):  # says what to do; the reader has gone, such as `head`
            raise
        failure = WriteError(Path(os.fsdecode(error.filename or run.folder)), error)
        steps = [step_of(path) for path in checkpoints(run.checkpoints)]
        kept = f"the checkpoint of step {steps[-1]} is intact" if steps else "there is no checkpoint yet"
        raise OSError(f"{failure}, then {resume_command(run)} ({kept})") from error


def _finish(job: Job, trainer: Trainer, loop: Loop, reporter: Reporter, *, memory: str) -> None:
    """Leave the model, a longer sample and the picture in the run's folder, and show what the run came to."""
    from .plots import plot_training  # brings Matplotlib, which would keep the first step waiting

    run, config = job.run, job.config
    records = run.records()
    curve = [(record["tokens"], record[BITS]) for record in records if {"tokens", BITS} <= set(record)]
    losses = [(record["tokens"], record["loss"]) for record in records if {"tokens", "loss"} <= set(record)]
    tokens, bits = curve[-1]
    if job.options.sample_tokens:
        reporter.sample("what it writes now:", loop.sample(job.options.final_sample_tokens)[0])
    with waiting("drawing"):
        plot_training(
            run.plot,
            title=f"{job.architecture.title}, {run.description['preset']}, {counted(loop.state.step, 'step')}",
            curve=curve,
            training=[(tokens, job.training_bits(loss)) for tokens, loss in losses],
            baselines=run.description["baselines"],
            heatmap=job.architecture.heatmap(config, trainer.parameters(job.architecture.is_logged)),
        )
    save_params(
        run.model,
        trainer.parameters(),
        config,
        job.data.tokenizer,
        join_documents=job.options.join_documents,
        results={"held-out bits per byte": bits, "training tokens": tokens},
    )
    run.describe(finished=True, bits_per_byte=bits)
    reporter.done(bits, tokens, memory=memory)
