"""What happens around the steps of a run: when to evaluate, save and stop; what is recorded; what is shown."""

from __future__ import annotations

import math
import time
from typing import Any

import safetensors.torch
import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..text import written_aside
from .display import Display
from .interruption import Interruption
from .measure import continuation, held_out_nats
from .pace import Pace, evaluation_steps
from .runs import Run
from .trainer import LanguageModelTrainer

__all__ = ["Flow", "Narration", "Records"]

SAMPLE_TOKENS = 100
FINAL_SAMPLE_TOKENS = 400
BITS = "eval_bits_per_byte"


class Flow(TrainerCallback):
    """Decide when to log, evaluate, save and stop, and how many steps the minutes hold."""

    def __init__(self, trainer: LanguageModelTrainer, interruption: Interruption) -> None:
        """Decide for `trainer`."""
        self._trainer = trainer
        self._interruption = interruption
        self._options = trainer.options
        self._saved_at = time.monotonic()
        self._pace: Pace | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin to time steps where their number is unknown."""
        self._saved_at = time.monotonic()
        if self._trainer.total_steps is None:
            self._pace = Pace(self._options.minutes, self._trainer.clock, self._other_seconds)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Set what the Trainer does after this step."""
        step = state.global_step
        if self._pace is not None:
            self._decide(step)
        total = self._trainer.total_steps
        stop = self._any_process(self._interruption.requested)
        last = total is not None and step >= total
        control.should_evaluate = total is not None and step in evaluation_steps(
            total, self._options.evaluations, timed=self._options.steps is None
        )
        control.should_log = step == 1 or step % self._options.log_every == 0 or control.should_evaluate
        control.should_save = last or stop or self._due(step)
        control.should_training_stop = last or stop
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin to wait for the next checkpoint."""
        self._saved_at = time.monotonic()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End a run whose loss, in training or held out, is no number: nothing can come of it."""
        wrong = [kwargs["logs"][key] for key in ("loss", BITS) if not math.isfinite(kwargs["logs"].get(key, 0.0))]
        if wrong:
            raise ValueError(
                f"training has diverged: the loss is {wrong[0]} at step {state.global_step}; start again with a "
                f"smaller --learning-rate (it was {self._options.learning_rate}) or a longer --warmup"
            )

    def _due(self, step: int) -> bool:
        waited = time.monotonic() - self._saved_at
        return step % self._options.checkpoint_steps == 0 or waited >= self._options.checkpoint_seconds

    def _decide(self, step: int) -> None:
        """Let the first process turn minutes into steps, when it can, and tell the others."""
        steps = self._pace.step_done(step) if self._pace is not None and self._trainer.args.process_index == 0 else None
        if self._trainer.args.world_size > 1:
            box = [steps]
            torch.distributed.broadcast_object_list(box, src=0)
            steps = box[0]
        if steps is None:
            return
        self._pace = None
        self._trainer.set_total_steps(steps)
        if self._trainer.args.should_save:
            self._trainer.run.describe(steps=steps)

    def _other_seconds(self, step_seconds: float) -> float:
        """Return how long evaluations, samples and checkpoints of the rest of the run will take, by trying each."""
        trainer, options = self._trainer, self._options
        with trainer.clock.pause():
            start = time.monotonic()
            trainer._save_checkpoint(None, None)
            self._saved_at = time.monotonic()
            save = self._saved_at - start
            rows = [trainer.held_out[i] for i in range(min(options.batch, len(trainer.held_out)))]
            start = time.monotonic()
            held_out_nats(trainer.model, rows, batch=len(rows))
            evaluate = (time.monotonic() - start) * len(trainer.held_out) / len(rows) / trainer.args.world_size
            ids = torch.from_numpy(rows[0]["input_ids"][: SAMPLE_TOKENS // 2])[None].to(trainer.args.device)
            with torch.no_grad():
                trainer.model(ids)  # the first of a new length is slow
                start = time.monotonic()
                trainer.model(ids)
            sample = (time.monotonic() - start) * SAMPLE_TOKENS
        between = min(options.checkpoint_seconds, options.checkpoint_steps * step_seconds)
        saves = 60 * options.minutes / max(between, save)
        return float(options.evaluations * (evaluate + sample) + saves * save)

    def _any_process(self, flag: bool) -> bool:
        """Return whether any process says yes: all must stop after the same step."""
        if self._trainer.args.world_size == 1:
            return flag
        votes = torch.tensor(float(flag), device=self._trainer.args.device)
        torch.distributed.all_reduce(votes)
        return bool(votes > 0)


class Records(TrainerCallback):
    """Write `metrics.jsonl`, and the lags at every evaluation."""

    def __init__(self, run: Run) -> None:
        """Write into the folder of `run`."""
        self._run = run

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add a line; the Trainer's summary at the end is none."""
        logs = kwargs["logs"]
        if state.is_world_process_zero and ("loss" in logs or BITS in logs):
            self._run.record({"step": state.global_step, "time": round(time.time(), 2), **logs})

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the lags of every layer."""
        if state.is_world_process_zero:
            write_lags(self._run, state.global_step, kwargs["model"])


class Narration(TrainerCallback):
    """Show the run, and keep what the model wrote."""

    def __init__(self, trainer: LanguageModelTrainer, display: Display, yardsticks: dict[str, float]) -> None:
        """Show `trainer` on `display`."""
        self._trainer = trainer
        self._display = display
        self._yardsticks = yardsticks
        self._loss: float | None = None
        self._rate: float | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show the bar."""
        self._display.start(state.global_step, self._trainer.total_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Move the bar."""
        total = self._trainer.total_steps
        done = state.global_step - self._trainer.first_step
        seconds = self._trainer.clock.seconds
        if total is None:
            left = max(0.0, 60 * self._trainer.options.minutes - seconds)
        else:
            left = (total - state.global_step) * seconds / done
        self._display.step(state.global_step, total, loss=self._loss, rate=self._rate, left=left)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Remember what the bar shows."""
        self._loss = kwargs["logs"].get("loss", self._loss)
        self._rate = kwargs["logs"].get("tokens_per_second", self._rate)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show the held-out cost beside the yardsticks, and a sample."""
        if state.is_world_process_zero:
            caption = f"step {state.global_step}: {compared(kwargs['metrics'][BITS], self._yardsticks)}"
            self.sample(caption, SAMPLE_TOKENS)

    def sample(self, caption: str, n_tokens: int) -> None:
        """Show what the model writes now, and keep it."""
        trainer = self._trainer
        prompt = trainer.options.prompt
        text, _ = continuation(trainer.model, trainer.tokenizer, prompt, n_tokens, seed=trainer.options.seed)
        self._display.sample(caption, prompt + text)
        with trainer.run.samples.open("a", encoding="utf-8") as file:
            file.write(f"== {caption}\n{prompt}{text}\n\n")


def compared(bits: float, yardsticks: dict[str, float]) -> str:
    """Return a held-out cost in words, between the yardsticks next to it.

    >>> compared(2.5, {"bigram": 3.5, "trigram": 2.7, "4-gram": 2.3})
    '2.500 bits per byte, below trigram 2.700, above 4-gram 2.300'
    """
    beaten = {name: cost for name, cost in yardsticks.items() if bits < cost}
    ahead = {name: cost for name, cost in yardsticks.items() if bits >= cost}
    parts = [f"{bits:.3f} bits per byte"]
    if beaten:
        name = min(beaten, key=lambda key: beaten[key])
        parts.append(f"below {name} {beaten[name]:.3f}")
    if ahead:
        name = max(ahead, key=lambda key: ahead[key])
        parts.append(f"above {name} {ahead[name]:.3f}")
    return ", ".join(parts)


def write_lags(run: Run, step: int, model: nn.Module) -> None:
    """Write the lags of every layer into one file of `lags/`."""
    lags = {name: p.detach().cpu() for name, p in model.named_parameters() if ".mix.lags" in name}
    if lags:
        run.lags.mkdir(exist_ok=True)
        with written_aside(run.lags / f"step-{step:08d}.safetensors") as file:
            file.write(safetensors.torch.save(lags))
