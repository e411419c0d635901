"""Training in PyTorch: Hugging Face's Trainer, told where this project keeps its state, and what follows a step.

The loop, the optimiser, clipping, accumulation, mixed precision, several devices and reports are the Trainer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tmm_adapters.pretrained import WEIGHTS, read_tensors, write_model
from tmm_adapters.torch import LanguageModel
from tmm_core import lm

from ...data.dataset import TrainingSamples
from ...evaluation.measure import Windows, continuation, held_out_nats
from ..checkpoints import check_model
from ..course import Course
from ..learner import Work
from ..moments import read_moments
from ..options import MANY_STEPS
from . import state as torch_state
from .measure import TorchModel

__all__ = ["LanguageModelTrainer"]

_TRAINER_STATE = "trainer_state.json"


class LanguageModelTrainer(Trainer):
    """Train a `LanguageModel` in the folder of a run.

    Parameters
    ----------
    work : Work
        What to train, on what, and where it is kept.
    arguments : TrainingArguments
        Made by `training_arguments`.
    """

    model: LanguageModel
    train_dataset: TrainingSamples
    optimizer: torch.optim.Optimizer
    lr_scheduler: torch.optim.lr_scheduler.LambdaLR | None

    def __init__(self, work: Work, arguments: TrainingArguments) -> None:
        """Prepare to train; nothing is read or written yet."""
        arguments.output_dir = str(work.run.folder)
        arguments.max_steps = work.run.description["steps"] or MANY_STEPS
        model = LanguageModel(work.config, seed=work.options.seed)
        super().__init__(model=model, args=arguments, train_dataset=work.samples)
        self.remove_callback(PrinterCallback)
        self.work = work
        self.course: Course

    # What a `Learner` does

    def train(self, course: Course, checkpoint: Path | None) -> None:  # type: ignore[override]
        """Do the steps from `checkpoint` on."""
        self.course = course
        self.add_callback(_Steps(course))
        super().train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def load(self, checkpoint: Path) -> None:
        """Take the parameters of a checkpoint."""
        check_model(checkpoint, self.work.config)
        self.model.load_state_dict(read_tensors(checkpoint / WEIGHTS, "pt"))

    def parameters(self, containing: str = "") -> dict[str, NDArray[Any]]:
        """Return the parameters whose names contain a word as NumPy arrays."""
        named = self.model.named_parameters()
        return {name: p.detach().cpu().numpy() for name, p in named if containing in name}

    def nats(self, windows: Windows, *, stop: Callable[[], bool] = lambda: False) -> float:
        """Return the cross-entropy of this process's share of `windows`."""
        # The Trainer's steps wrap the model in mixed precision; a run that has none left to do must measure the same.
        with self.accelerator.autocast():
            return held_out_nats(
                TorchModel(self.model),
                windows,
                batch=self.work.options.batch,
                rank=self.args.process_index,
                world=self.args.world_size,
                stop=stop,
            )

    def text(self, prompt: str, n_tokens: int) -> tuple[str, int]:
        """Return how the model continues `prompt`."""
        return continuation(TorchModel(self.model), self.work.tokenizer, prompt, n_tokens, seed=self.work.options.seed)

    def write_state(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""
        write_model(folder, self.work.config, self.model.state_dict(), tokenizer=self.work.tokenizer)
        torch_state.write_optimizer(folder, self.model, self.optimizer)
        torch_state.write_random(folder)
        self.state.save_to_json(str(folder / _TRAINER_STATE))

    def report(self, figures: dict[str, float]) -> None:
        """Tell the services that follow the run."""
        self.state.epoch = figures["epoch"]
        super().log(dict(figures))
        self.state.log_history.clear()  # `metrics.jsonl` has it; here it would grow in every checkpoint

    # What the Trainer asks for: data and schedule

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the samples from the first step that is not yet done; a pass over them never ends."""
        first = self.course.first_step * self.course.tokens_per_step // self.work.samples.context
        loader: DataLoader[Any] = DataLoader(
            cast("Dataset[Any]", self.train_dataset),  # anything that has a length and items is one
            batch_size=self.work.options.batch,
            sampler=range(first, len(self.train_dataset)),
            collate_fn=cast(Any, _as_tensors),
            generator=torch.Generator(),  # its own: an iterator over the loader draws a seed from somewhere
            pin_memory=self.args.device.type == "cuda",
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the weights of linear maps."""
        return sorted(lm.decayed_names(model.tmm_config))

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """Return the schedule of the run, which changes when the number of its steps becomes known."""
        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer if optimizer is None else optimizer, self.course.learning_rate_factor
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # What the Trainer asks for: what follows a step

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Measure the held-out bits per byte."""
        metrics = self.course.evaluate()
        if metrics:
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Let the course of the run record figures; the Trainer's summary at the end is for services only."""
        if "loss" in logs:
            self.course.log(logs)
        else:
            super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint."""
        self.course.save()

    # What the Trainer asks for: a checkpoint

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Read the weights; they must be those of the model that the run describes."""
        self.load(Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Read the optimiser's state; the learning rate follows from the step."""
        if checkpoint is None or self.lr_scheduler is None:
            return
        torch_state.set_moments(read_moments(Path(checkpoint), self.work.config), self.model, self.optimizer)
        self.lr_scheduler.last_epoch = self.course.first_step
        factor = self.course.learning_rate_factor(self.course.first_step)
        for group, peak in zip(self.optimizer.param_groups, self.lr_scheduler.base_lrs, strict=True):
            group["lr"] = peak * factor

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Read the state of Torch's generators."""
        if checkpoint is not None:
            torch_state.read_random(Path(checkpoint))

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: bfloat16 needs no loss scaling, and float16 is not offered."""


class _Steps(TrainerCallback):
    """Pass on what the course of a run decides."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._course.begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        decision = self._course.step_done(state.global_step)
        args.max_steps = state.max_steps = self._course.total_steps or MANY_STEPS
        control.should_log = decision.log
        control.should_evaluate = decision.evaluate
        control.should_save = decision.save
        control.should_training_stop = decision.stop
        return control


def _as_tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(array) for name, array in batch.items()}
