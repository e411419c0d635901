"""A comparison: everything is done once, in an order that interleaves the models, and kept as it ends.

Its folder holds

comparison.json   what is compared; the models that were found, the steps of a run, learning rates tried
data/             the text as tokens, which all runs read, and tokenizer.json
runs/             <model>-rate-<rate>, then <model>-seed-<seed>: folders of runs, as `tmm train` makes them
results.json, comparison.md, comparison.png      once all runs have ended
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from tmm_adapters.architecture import ModelConfig, config_from_dict, config_to_dict
from tmm_adapters.devices import torch_device
from tmm_adapters.files import atomic_write
from tmm_adapters.words import counted
from tmm_core import use_backend
from tmm_core.errors import InputError, MissingFileError

from ..data.config import DataConfig
from ..data.dataset import TrainingSamples
from ..data.tokens import bits_per_byte
from ..evaluation.accounts import Speeds, speeds
from ..progress import Advance, note, waiting
from ..training import session
from ..training.data import Data
from ..training.display import Silence, duration
from ..training.loop import DivergedError
from ..training.options import TrainingOptions
from ..training.preparation import description_of, prepared_from
from ..training.runs import DESCRIPTION, Run
from .documents import costs_of
from .entries import collect_results
from .folder import Folder
from .length import RATES, TimeLeft, expected_seconds, kinds, plan, steps_in
from .models import build_model, equal_models
from .options import Arm, ComparisonOptions, width_of
from .results import Results, table, write_results

__all__ = ["InterruptedRun", "compare"]

RATE_SEED = 9
"""Of the runs that try learning rates; their results are not used again."""
CALIBRATION_TURNS = 20
_DIVERGED = "leave it out (--arch), or compare models of another size, in another folder (--out)"


class InterruptedRun(Exception):
    """Raised when a signal ended a run; what it did is kept."""

    def __init__(self, code: int) -> None:
        """Remember the exit code."""
        super().__init__(code)
        self.code = code


def compare(path: Path, arms: Sequence[Arm], options: ComparisonOptions, source: DataConfig) -> Results:
    """Compare models, doing what is left to do, and return the results; they are written into the folder as well.

    Parameters
    ----------
    path : Path
        The folder of the comparison: new, or that of a comparison with the same arms, options and text.
    arms : sequence of Arm
        The first is the reference.
    options : ComparisonOptions
        How they are compared.
    source : DataConfig
        The text.

    Raises
    ------
    InterruptedRun
        If a signal ended a run.
    ValueError
        If the folder holds something else, the text is too short, a model cannot be made as expensive as the
        reference, or the minutes do not suffice for 20 steps a run.
    """
    folder = Folder(path, arms, options, source)
    backend = nullcontext() if options.backend is None else use_backend(options.backend)
    with backend, folder.data() as data:
        results = _Comparison(folder, tuple(arms), options, data).results()
    write_results(path / "results.json", results)
    from .picture import draw_comparison  # brings Matplotlib

    with atomic_write(path / "comparison.md") as file:
        file.write(f"{results.sentence}\n\n{table(results)}\n".encode())
    with waiting("drawing"):
        draw_comparison(path / "comparison.png", results)
    return results


class _Comparison:
    """The steps of a comparison."""

    def __init__(self, folder: Folder, arms: tuple[Arm, ...], options: ComparisonOptions, data: Data) -> None:
        self._folder, self._arms, self._options, self._data = folder, arms, options, data
        self._device = str(torch_device(options.device))
        TrainingSamples(data.training_tokens, options.max_len, 0, end_of_text=None)  # refuses a text that is too short
        if data.held_out.n_documents == 1:
            note(
                "the held-out text is one document, which tells nothing of others, so that nothing will be decided: "
                "give more documents, or say what stands between them (--separator)"
            )
        self._configs = self._models()
        self._speeds = self._timed()
        self._steps = self._length()
        seconds = expected_seconds(self._speeds, options, len(data.held_out_tokens), self._steps)
        self._left = TimeLeft(seconds)
        print(
            f"comparing {len(arms)} models: {len(seconds)} runs, {self._steps:,} steps for each of "
            f"{counted(options.seeds, 'seed')}, about {duration(sum(seconds.values()))} in all",
            flush=True,
        )

    def results(self) -> Results:
        """Train what is not trained yet, and put the results together."""
        self._try_rates()
        for seed in range(self._options.seeds):
            for arm in self._arms:
                self._trained(arm.label, f"seed-{seed}", seed, self._rate(arm.label))
        return collect_results(
            self._folder,
            self._arms,
            self._options,
            self._data,
            configs=self._configs,
            speeds=self._speeds,
            rates={arm.label: self._rate(arm.label) for arm in self._arms},
            device=self._device,
        )

    def _models(self) -> dict[str, ModelConfig]:
        if "models" not in self._folder:
            found = equal_models(self._arms, self._options, self._data.tokenizer.vocab_size, self._device)
            self._folder.keep("models", {label: config_to_dict(config) for label, config in found.items()})
        return {label: config_from_dict(fields) for label, fields in self._folder["models"].items()}

    def _timed(self) -> dict[str, Speeds]:
        """Return the speeds of all models, timed in turns."""
        if "speeds" not in self._folder:
            options, vocab_size = self._options, self._data.tokenizer.vocab_size
            with waiting(f"timing {len(self._configs)} models"):
                models = {label: build_model(config, self._device) for label, config in self._configs.items()}
                found = speeds(models, vocab_size, batch=options.batch, n=options.max_len, turns=CALIBRATION_TURNS)
            self._folder.keep("speeds", {label: dataclasses.asdict(speed) for label, speed in found.items()})
        return {label: Speeds(**speed) for label, speed in self._folder["speeds"].items()}

    def _length(self) -> int:
        """Return the steps of each run."""
        if "steps" not in self._folder:
            fitting = self._options.steps or steps_in(self._speeds, self._options, len(self._data.held_out_tokens))
            self._folder.keep("steps", fitting)
        return int(self._folder["steps"])

    def _try_rates(self) -> None:
        """Train each model with each learning rate for a quarter of the steps, at a seed of its own."""
        tried: dict[str, dict[str, float | None]] = self._folder.get("candidates", {})
        for base in RATES:
            for arm in self._arms:
                rate, kind = self._scaled(base, arm.label), f"rate-{base:g}"
                of_arm = tried.setdefault(arm.label, {})
                if f"{rate:g}" in of_arm:
                    self._left.skip((arm.label, kind))
                    continue
                try:
                    of_arm[f"{rate:g}"] = self._trained(arm.label, kind, RATE_SEED, rate)
                except DivergedError:
                    of_arm[f"{rate:g}"] = None
                self._folder.keep("candidates", tried)

    def _scaled(self, rate: float, label: str) -> float:
        """Return a learning rate at 128 channels as that of a model."""
        return float(f"{rate * 128 / width_of(self._configs[label]):.3g}")

    def _rate(self, label: str) -> float:
        """Return the learning rate with the fewest bits per byte."""
        tried = {rate: bits for rate, bits in self._folder["candidates"][label].items() if bits is not None}
        if not tried:
            raise DivergedError(f"{label} diverged with every learning rate tried: {_DIVERGED}")
        return float(min(tried, key=lambda rate: tried[rate]))

    def _trained(self, label: str, kind: str, seed: int, rate: float) -> float:
        """Train what is left of a run, and return its bits per byte."""
        folder = self._folder.run(label, kind)
        name = f"{label}, {f'seed {seed}' if kind.startswith('seed') else f'learning rate {rate:g}'}"
        with _told(name, folder):
            if not (folder / DESCRIPTION).is_file():
                self._make_run(folder, self._configs[label], seed, rate, kinds(self._options, self._steps)[kind])
            run = Run.open(folder)
            if run.description["finished"]:
                self._left.skip((label, kind))
                return self._bits(run, kind)
            with waiting(f"{name}; {self._left}", run.description["steps"]) as advance, self._left.timed((label, kind)):
                code = session.resume(run, display=_Bar(advance))
                if code:
                    raise InterruptedRun(code)
                bits = self._bits(Run.open(folder), kind)
        print(f"{name}: {bits:.3f} bits per byte; {self._left}", flush=True)
        return bits

    def _bits(self, run: Run, kind: str) -> float:
        """Return the bits per byte of a run that has ended: on a part of the text where it tried a learning rate."""
        if not kind.startswith("seed"):
            return float(run.description["bits_per_byte"])
        costs = costs_of(run, self._data, batch=self._options.batch, device=self._device)
        if not np.isfinite(costs).all():
            raise DivergedError("the held-out text costs no number")
        return bits_per_byte(costs.sum(), self._data.held_out)

    def _make_run(self, folder: Path, config: ModelConfig, seed: int, rate: float, steps: int) -> None:
        """Make the folder of a run that is prepared: it reads the text of the comparison."""
        options = TrainingOptions(
            steps=steps,
            batch=self._options.batch,
            join_documents=True,  # not every architecture can keep them apart
            learning_rate=rate,
            seed=seed,
            precision="float32",  # in which the models are timed as well
            framework="torch",
            device=self._options.device,
            backend=self._options.backend,
            sample_tokens=0,
        )
        description = description_of(
            preset="default", config=config, vocab_given=True, data=self._folder.source, options=options, start=None
        )
        prepared_from(
            folder,
            self._folder.owner,
            {**description, "baselines": self._folder["baselines"], "plan": [list(plan(steps))]},
        )


@contextmanager
def _told(name: str, folder: Path) -> Iterator[None]:
    """Say of a run that diverged, or whose files are damaged, what to do about it in a comparison."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(f"{name}: training has diverged: {_DIVERGED}") from error
    except (InputError, MissingFileError) as error:
        raise InputError(f"{error}; or remove {folder}, and the same command trains it anew") from error


class _Bar(Silence):
    """Moves the bar of one run."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._done = advance, 0

    def step(self, step: int, total: int | None, **metrics: Any) -> None:
        """Show that `step` is done."""
        self._advance(step - self._done)
        self._done = step
