"""One session of a training run: begin it, or resume it; train; leave the results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tmm_adapters.architecture import ModelConfig, config_to_dict, get_architecture
from tmm_adapters.checkpoints import checkpoints, newest_intact, step_of
from tmm_adapters.files import WriteError
from tmm_adapters.pretrained import save_params
from tmm_core import use_backend
from tmm_core.errors import InputError, TMMError

from ..data.config import DataConfig
from ..evaluation.baselines import baseline_costs
from ..evaluation.measure import prompt_ids
from ..progress import waiting
from .data import open_data, prepare_data, with_vocabulary
from .display import Display, make_display
from .frameworks import Runtime, Trainer, TrainingFramework, choose, load
from .interruption import Interruption
from .job import Job
from .loop import Loop, tokens_per_step
from .options import TrainingOptions
from .reporter import BITS, FINAL_SAMPLE_TOKENS, Reporter, resume_command
from .resources import peak_memory
from .runs import Run

__all__ = ["begin", "resume", "with_defaults"]


def begin(
    *,
    preset: str,
    config: ModelConfig,
    vocab_given: bool,
    data: DataConfig,
    options: TrainingOptions,
    out: Path | None,
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
    """
    name = choose(options.framework, config.model_type, training=True)
    with _backend(options):
        first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun began
        made = _created(preset, config, data, options, out, vocab_given=vocab_given) if first else None
        with made or contextlib.nullcontext() as job:
            framework = load(name)  # takes seconds: what is wrong with a text has been told by now
            options = with_defaults(dataclasses.replace(options, framework=name), config, framework)
            runtime = framework.make_runtime(options)
            runtime.engine_name()  # refuses a bad choice
            folder = runtime.in_first_process(lambda: None if job is None else _described(job, preset, data, options))
        if job is None:
            assert folder is not None
            job = _open(Run.open(folder), options, check=False)
        job = dataclasses.replace(job, options=options)
        return _train(job, runtime, make_display(silent=not runtime.first), checkpoint=None)


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
    parsed = run.parsed()
    options = dataclasses.replace(parsed.options, **changes)
    name = choose(options.framework, parsed.config.model_type, training=True)
    runtime = load(name).make_runtime(options)
    display = make_display(silent=not runtime.first)
    with _backend(options):
        checkpoint, skipped = newest_intact(run.checkpoints)
        for reason in skipped:
            display.note(f"skipped {reason}")
        display.note(
            f"resuming from {checkpoint}" if checkpoint else "no intact checkpoint: beginning at the first step"
        )
        return _train(_open(run, options, check=runtime.first), runtime, display, checkpoint=checkpoint)


def with_defaults(options: TrainingOptions, config: ModelConfig, framework: TrainingFramework) -> TrainingOptions:
    """Return `options` with what was left open decided for a model, and for this machine."""
    rate = options.learning_rate or get_architecture(config.model_type).learning_rate(config)
    precision = options.precision
    if precision == "auto":
        precision = "bfloat16" if framework.fast_at_bfloat16(options.device) else "float32"
    return dataclasses.replace(options, learning_rate=rate, precision=precision)


def _backend(options: TrainingOptions) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if options.backend is None else use_backend(options.backend)


@contextlib.contextmanager
def _created(
    preset: str,
    config: ModelConfig,
    source: DataConfig,
    options: TrainingOptions,
    out: Path | None,
    *,
    vocab_given: bool,
) -> Iterator[Job]:
    """Make the folder of a new run, with all that training reads; nothing stays of it where the block fails."""
    run = Run.create(out, f"{config.model_type}-{preset}")
    try:
        with waiting(f"reading {source.name}"):
            data = prepare_data(run, source)
        config = with_vocabulary(config, data.tokenizer, given=vocab_given)
        job = Job.of(run, config, options, data)
        longest = job.architecture.longest_text(config)
        prompt_ids(options.prompt, data.tokenizer, longest)  # refuses one that is too long
        run.description["baselines"] = baseline_costs(data.training, data.held_out)
        yield job
    except BaseException:
        shutil.rmtree(run.folder, ignore_errors=True)
        raise


def _described(job: Job, preset: str, source: DataConfig, options: TrainingOptions) -> Path:
    """Write what a new run is into its folder, which makes it one that can be resumed; return the folder."""
    job.run.describe(
        preset=preset,
        config=config_to_dict(job.config),
        data=source.to_dict(),
        options=options.to_dict(),
        steps=options.steps,
        started=time.time(),
        finished=False,
    )
    return job.run.folder


def _open(run: Run, options: TrainingOptions, *, check: bool) -> Job:
    """Return the job of a run that has begun."""
    parsed = run.parsed()
    return Job.of(run, parsed.config, options, open_data(run, parsed.data, check=check))


def _train(job: Job, runtime: Runtime, display: Display, *, checkpoint: Path | None) -> int:
    """Train from `checkpoint` on, and finish the run unless interrupted."""
    run = job.run
    with (
        contextlib.ExitStack() as stack,
        Interruption(silent=not runtime.first) as interruption,
        _told_of_full_disks(run),
    ):
        locked = runtime.in_first_process(lambda: stack.enter_context(run.locked()))
        if not locked:
            display.note(f"note: {run.folder} cannot be locked here: let no other process train this run meanwhile")
        trainer = runtime.trainer(job)
        reporter = Reporter(job, display)
        first = 0 if checkpoint is None else step_of(checkpoint)
        if runtime.first:
            run.forget_after(first)
        reporter.header(runtime, tokens_per_step(job, runtime))
        loop = Loop(job, trainer, runtime, reporter, interruption, first_step=first)
        missed_the_end = loop.total_steps is not None and first >= loop.total_steps
        if checkpoint is not None:
            trainer.load(checkpoint, optimizer=not missed_the_end)
        try:
            if not missed_the_end:
                stopped = loop.run()
            else:
                if not runtime.in_first_process(lambda: _evaluated(run, first)):
                    loop.evaluate()  # a signal came in its turn
                stopped = loop.stop_requested()
        finally:
            display.stop()
        if stopped:
            display.note(f"saved after step {loop.step}; to go on: {resume_command(run)}")
        elif runtime.first:
            _finish(job, trainer, loop, reporter, memory=peak_memory() + runtime.device_memory())
        trainer.end()
    return interruption.exit_code if stopped else 0  # a signal while the results were written came too late


@contextlib.contextmanager
def _told_of_full_disks(run: Run) -> Iterator[None]:
    """Say of files that cannot be written what is kept, and how to go on."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (TMMError, BrokenPipeError)):  # says what to do; the reader has gone, such as `head`
            raise
        failure = error if isinstance(error, WriteError) else WriteError(Path(error.filename or run.folder), error)
        steps = [step_of(path) for path in checkpoints(run.checkpoints)]
        kept = f"the checkpoint of step {steps[-1]} is intact" if steps else "there is no checkpoint yet"
        raise OSError(f"{failure}, then {resume_command(run)} ({kept})") from error


def _finish(job: Job, trainer: Trainer, loop: Loop, reporter: Reporter, *, memory: str) -> None:
    """Leave the model, a longer sample and the picture in the run's folder, and show what the run came to."""
    from .plots import plot_training  # brings Matplotlib, which would keep the first step waiting

    run, config = job.run, job.config
    curve = [(record["tokens"], record[BITS]) for record in run.records() if {"tokens", BITS} <= set(record)]
    tokens, bits = curve[-1]
    reporter.sample("what it writes now:", loop.sample(FINAL_SAMPLE_TOKENS)[0])
    plot_training(
        run.plot,
        title=f"{job.architecture.title}, {run.description['preset']}, {loop.step:,} steps",
        curve=curve,
        baselines=run.description["baselines"],
        heatmap=job.architecture.heatmap(config, trainer.parameters(job.architecture.is_logged)),
    )
    if not run.model.is_dir():
        save_params(
            run.model,
            trainer.parameters(),
            config,
            job.data.tokenizer,
            join_documents=job.options.join_documents,
        )
    run.describe(finished=True, bits_per_byte=bits)
    reporter.done(bits, tokens, memory=memory)


def _evaluated(run: Run, step: int) -> bool:
    return any(record["step"] == step and BITS in record for record in run.records())
