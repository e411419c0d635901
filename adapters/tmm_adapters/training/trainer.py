"""Hugging Face's Trainer, told where this project keeps its state and what it means by evaluation.

The loop, the optimiser, clipping, accumulation, mixed precision, several devices and reports are the Trainer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from ..folder import WEIGHTS, read_config, read_tensors, write_model
from ..text import Part
from ..tokenizers import Tokenizer
from ..tokens import TokenWindows, bits_per_byte
from ..torch import LanguageModel
from . import state
from .arguments import UNKNOWN_STEPS
from .checkpoints import step_of, write_checkpoint
from .measure import StoppedError, held_out_nats
from .options import TrainingOptions
from .order import TrainingSamples
from .pace import Clock, learning_rate_factor
from .runs import Run

__all__ = ["LanguageModelTrainer"]

_TRAINER_STATE = "trainer_state.json"


class LanguageModelTrainer(Trainer):
    """Train a `LanguageModel` in the folder of a run.

    Parameters
    ----------
    model : LanguageModel
        What to train.
    arguments : TrainingArguments
        Made by `training_arguments`, with the run's folder.
    options : TrainingOptions
        What the run was told.
    run : Run
        Where it keeps things.
    samples : TrainingSamples
        What to train on.
    held_out : TokenWindows
        What to evaluate on; `held_out_part` is its text.
    tokenizer : Tokenizer
        Kept beside the weights.
    stopped : callable
        Says whether the user wants the run to end; looked at between the batches of an evaluation.
    """

    model: LanguageModel
    train_dataset: TrainingSamples
    optimizer: torch.optim.Optimizer
    lr_scheduler: torch.optim.lr_scheduler.LambdaLR | None

    def __init__(
        self,
        model: LanguageModel,
        arguments: TrainingArguments,
        *,
        options: TrainingOptions,
        run: Run,
        samples: TrainingSamples,
        held_out: TokenWindows,
        held_out_part: Part,
        tokenizer: Tokenizer,
        stopped: Callable[[], bool],
    ) -> None:
        """Prepare to train; nothing is read or written yet."""
        super().__init__(model=model, args=arguments, train_dataset=samples)
        self.options = options
        self.run = run
        self.held_out = held_out
        self.held_out_part = held_out_part
        self.tokenizer = tokenizer
        self.stopped = stopped
        self.clock = Clock()
        self.first_step = 0
        per_batch = options.batch * options.accumulate * self.args.world_size
        self.tokens_per_step = per_batch * model.tmm_config.max_len

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, or None while minutes have not become steps yet."""
        return None if self.args.max_steps >= UNKNOWN_STEPS else self.args.max_steps

    def set_total_steps(self, steps: int) -> None:
        """End the run, and the cosine of its learning rate, after `steps`."""
        self.args.max_steps = self.state.max_steps = steps

    # Data and schedule

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the samples from the first step that is not yet done; a pass over them never ends."""
        first = self.first_step * self.tokens_per_step // self.train_dataset.context
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_size=self.options.batch,
            sampler=range(first, len(self.train_dataset)),
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # its own: an iterator over the loader draws a seed from somewhere
            pin_memory=self.args.device.type == "cuda",
        )
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the weights of linear maps: lags and the embedding of rare tokens are not to decay."""
        return [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """Return the schedule of `learning_rate_factor`, which follows `total_steps` when that becomes known."""
        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer if optimizer is None else optimizer,
                lambda step: learning_rate_factor(step, self.total_steps, self.options.warmup),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # Evaluation and records

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Measure the held-out bits per byte, each held-out byte once, and log them.

        Nothing is logged where the user asked to stop meanwhile.
        """
        alone = self.args.world_size == 1
        # The Trainer's steps wrap the model in mixed precision; a run that has none left to do must measure the same.
        with self.clock.pause(), self.accelerator.autocast():
            try:
                nats = held_out_nats(
                    self.model,
                    self.held_out,
                    batch=self.options.batch,
                    rank=self.args.process_index,
                    world=self.args.world_size,
                    stop=self.stopped if alone else lambda: False,  # all processes must agree, and do after the step
                )
            except StoppedError:
                return {}
            if not alone:
                nats = float(self.accelerator.reduce(torch.tensor(nats, device=self.args.device), "sum"))
            metrics = {"eval_bits_per_byte": bits_per_byte(nats, self.held_out_part)}
            self.log(dict(metrics))
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the Trainer does, with tokens, speed, and passes over the text as the epoch."""
        steps = self.state.global_step - self.first_step
        logs["tokens"] = self.state.global_step * self.tokens_per_step
        if "loss" in logs:
            logs["tokens_per_second"] = steps * self.tokens_per_step / max(self.clock.training_seconds, 1e-9)
        samples = logs["tokens"] / self.train_dataset.context
        self.state.epoch = samples / self.train_dataset.per_pass
        super().log(logs, start_time)
        self.state.log_history.clear()  # `metrics.jsonl` has it; here it would grow in every checkpoint

    # Checkpoints

    def write_state(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""
        write_model(folder, self.model.tmm_config, self.model.state_dict(), tokenizer=self.tokenizer)
        state.write_optimizer(folder, self.model, self.optimizer)
        state.write_random(folder)
        self.state.save_to_json(str(folder / _TRAINER_STATE))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint, in the first process only: all have the same state."""
        if self.args.should_save:
            with self.clock.pause():
                write_checkpoint(self.run.checkpoints, self.state.global_step, self.write_state)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Read the weights; they must be those of the model that the run describes."""
        config = read_config(resume_from_checkpoint)
        if config != self.model.tmm_config:
            ours, theirs = self.model.tmm_config.to_dict(), config.to_dict()
            name = next(name for name in ours if ours[name] != theirs[name])
            raise ValueError(
                f"run.json describes another model than {resume_from_checkpoint} holds: its {name} is {ours[name]!r}, "
                f"there it is {theirs[name]!r}; restore run.json, or begin a new run"
            )
        self.first_step = step_of(Path(resume_from_checkpoint))
        self.model.load_state_dict(read_tensors(Path(resume_from_checkpoint) / WEIGHTS, "pt"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Read the optimiser's state; the learning rate follows from the step."""
        if checkpoint is None or self.lr_scheduler is None:
            return
        state.read_optimizer(Path(checkpoint), self.model, self.optimizer)
        self.lr_scheduler.last_epoch = self.first_step
        factor = learning_rate_factor(self.first_step, self.total_steps, self.options.warmup)
        for group, peak in zip(self.optimizer.param_groups, self.lr_scheduler.base_lrs, strict=True):
            group["lr"] = peak * factor

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Read the state of Torch's generators."""
        if checkpoint is not None:
            state.read_random(Path(checkpoint))

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: bfloat16 needs no loss scaling, and float16 is not offered."""


def _as_it_is(batch: Any) -> Any:
    return batch
