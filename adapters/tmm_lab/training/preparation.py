"""The folder of a new run, from its description to all that training reads.

The description is written first. So a process that is killed while it reads a long text leaves a run that can be
resumed, which prepares it again, or begun anew in the same folder.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tmm_adapters.architecture import ModelConfig, config_to_dict
from tmm_adapters.checkpoints import DESCRIPTION
from tmm_adapters.files import SUMS, add_sum, digest, sweep
from tmm_adapters.pretrained import load_params, save_params

from ..data.config import DataConfig
from ..evaluation.baselines import baseline_costs
from ..evaluation.measure import prompt_ids
from .data import prepare_data, with_vocabulary
from .job import Job
from .options import TrainingOptions
from .runs import Run, require_new

__all__ = ["begun", "description_of", "prepared", "prepared_from"]


def description_of(
    *,
    preset: str,
    config: ModelConfig,
    vocab_given: bool,
    data: DataConfig,
    options: TrainingOptions,
    start: Path | None,
) -> dict[str, Any]:
    """Return the description of a run that is yet to be prepared; the arguments are those of `session.begin`."""
    return {
        "preset": preset,
        "config": config_to_dict(config),
        "vocab_given": vocab_given,
        "data": data.to_dict(),
        "options": options.to_dict(),
        "start": None if start is None else str(start),
        "steps": options.steps,
        "plan": [],
        "baselines": {},
        "started": time.time(),
        "prepared": False,
        "finished": False,
        "bits_per_byte": None,
    }


@contextmanager
def begun(out: Path | None, description: dict[str, Any]) -> Iterator[tuple[Run, bool]]:
    """Make the folder of a new run and keep it to this process; should the block fail before it is prepared, remove it.

    Yields
    ------
    Run, bool
        The run, and whether its folder is locked.
    """
    run = Run.create(out, f"{description['config']['model_type']}-{description['preset']}")
    with run.locked() as locked:
        require_new(run.folder)  # another process may have begun one meanwhile
        run.describe(**description)
        try:
            yield run, locked
        except BaseException:
            if not run.description["prepared"]:
                _clear(run)
                (run.folder / DESCRIPTION).unlink(missing_ok=True)  # last: until then the run can be resumed
                with suppress(OSError):  # a disk may be mounted there
                    run.folder.rmdir()
            raise


def prepared(run: Run) -> Job:
    """Write all that training reads into the folder of a run, as its description says; open it.

    The options are still as the user gave them.
    """
    config, source, options = run.parsed()
    _clear(run)
    data = prepare_data(run, source)
    config = with_vocabulary(config, data.tokenizer, given=run.description["vocab_given"])
    job = Job.of(run, config, options, data)
    prompt_ids(options.prompt, data.tokenizer, job.architecture.longest_text(config))  # refuses one that is too long
    if run.description["start"] is not None:
        params, _, _ = load_params(run.description["start"])
        weights = {name: np.asarray(array, np.float32) for name, array in params.items()}
        save_params(run.initial, weights, config, data.tokenizer, join_documents=options.join_documents)
    run.description |= {
        "config": config_to_dict(config),
        "baselines": baseline_costs(data.training, data.held_out),
    }
    return job


def prepared_from(folder: Path, owner: Run, description: dict[str, Any]) -> Run:
    """Make the folder of a run that is prepared: it reads the text and the tokens of `owner`, by a link.

    Parameters
    ----------
    folder : Path
        New, or what a process left there that was killed meanwhile.
    owner : Run
        Has its text, tokens and tokenizer; no run needs to be in its folder.
    description : dict
        As `description_of` gives it, with the baselines of the text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder, {})
    run.data.unlink(missing_ok=True)
    run.data.symlink_to(os.path.relpath(owner.data, folder), target_is_directory=True)
    shutil.copyfile(owner.tokenizer, run.tokenizer)
    add_sum(run.tokenizer, digest(run.tokenizer))
    run.describe(**{**description, "prepared": True})
    return run


def _clear(run: Run) -> None:
    """Remove what an earlier attempt has left, but the description."""
    sweep(run.folder)
    for path in (run.tokenizer, run.folder / SUMS):
        path.unlink(missing_ok=True)
    for folder in (run.data, run.initial):
        if folder.is_dir():
            shutil.rmtree(folder)
