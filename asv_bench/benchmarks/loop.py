"""Training by the loop of `tmm train`, against a loop written out around the same module, for each architecture."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tmm_core
from tmm_adapters.architecture import architectures, get_architecture

from . import BACKEND, RATIO, measures, ready, require, samples

STEPS, TURNS = 20, 7
"""Steps of a turn of each loop, and turns after one that is not timed."""
RATE = 1e-4
TEXT_BYTES = 200_000


class LoopAgainst:
    """Steps of a default model in float32 by either loop, in turns."""

    params = (tuple(architectures()),)
    param_names = ("architecture",)
    timeout = 300.0
    steps, turns = STEPS, TURNS

    def setup(self, architecture: str) -> None:
        """Prepare a run on a random text."""
        ready()
        require("torch")
        self.folder = tempfile.TemporaryDirectory()
        self.loops = Loops(Path(self.folder.name), get_architecture(architecture).config_class.preset("default"))

    def teardown(self, architecture: str) -> None:
        """Remove the run."""
        self.folder.cleanup()

    @measures("training by tmm train, against a bare loop", RATIO)
    def track_steps(self, architecture: str) -> dict[str, Any]:
        """Train in turns, in an order that changes."""
        ratios = []
        with tmm_core.use_backend(BACKEND):
            for turn in range(self.turns + 1):
                first, second = (self.loops.ours, self.loops.theirs)[:: 1 if turn % 2 else -1]
                seconds = {call.__name__: call(self.steps) for call in (first, second)}
                ratios.append(seconds["ours"] / seconds["theirs"])
        return samples(ratios[1:])


class Loops:
    """The same model in both loops; each goes on where its last turn ended.

    Parameters
    ----------
    folder : Path
        For the text and the run; empty.
    config : ModelConfig
        The model, of bytes.
    """

    def __init__(self, folder: Path, config: Any) -> None:
        """Prepare both."""
        from tmm_lab.data.config import DataConfig
        from tmm_lab.training.loop_state import LoopState
        from tmm_lab.training.options import TrainingOptions
        from tmm_lab.training.preparation import description_of, prepared
        from tmm_lab.training.runs import Run
        from tmm_lab.training.torch.runtime import make_runtime

        torch = require("torch")
        text = folder / "text.txt"
        text.write_bytes(np.random.default_rng(0).integers(97, 123, TEXT_BYTES, dtype=np.uint8).tobytes())
        options = TrainingOptions(
            steps=1, learning_rate=RATE, precision="float32", join_documents=True, device="cpu", sample_tokens=0
        )
        data = DataConfig(text=(str(text),))
        run = Run.create(folder / "run", "loop")
        run.describe(
            **description_of(preset="default", config=config, vocab_given=True, data=data, options=options, start=None)
        )
        self.job, self.runtime, self.state = prepared(run), make_runtime(options), LoopState()
        self.trainer = self.runtime.trainer(self.job)
        self.model = self.job.architecture.torch_model(config, seed=options.seed).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, (0.9, 0.95), weight_decay=0.1, fused=True)

    def ours(self, steps: int) -> float:
        """Return the seconds of some steps of the loop of `tmm train`, without the evaluation and checkpoint after."""
        from tmm_lab.training.display import Silence
        from tmm_lab.training.interruption import Interruption
        from tmm_lab.training.loop import Loop
        from tmm_lab.training.reporter import Reporter
        from tmm_lab.training.time_budget import Clock
        from tmm_lab.training.trackers import Trackers

        total = self.state.step + steps
        self.job.run.describe(steps=total)
        job = dataclasses.replace(self.job, options=dataclasses.replace(self.job.options, steps=total, evaluations=1))
        loop = Loop(
            job,
            self.trainer,
            self.runtime,
            Reporter(job, Silence()),
            Interruption(silent=True),
            trackers=Trackers(job, on=False),
            state=self.state,
            clock=Clock(),
        )
        loop.run()
        return loop.clock.training_seconds

    def theirs(self, steps: int) -> float:
        """Return the seconds of as many steps of what anyone would write, on samples that have been read before."""
        torch = require("torch")
        rows = self.job.options.batch
        batches = [
            {
                name: torch.from_numpy(array)
                for name, array in self.job.samples.batch(range(first, first + rows)).items()
            }
            for first in range(0, steps * rows, rows)
        ]
        begin = time.monotonic()
        for batch in batches:
            loss = self.model(**batch)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss.item()
        return time.monotonic() - begin
