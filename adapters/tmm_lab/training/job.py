"""The model, options, texts and folder of a training run, opened and ready to train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tmm_adapters.architecture import Architecture, ModelConfig, get_architecture
from tmm_core.errors import InputError

from ..data.dataset import TokenWindows, TrainingSamples, evaluation_windows
from ..data.tokens import bits_per_byte
from .data import Data
from .options import TrainingOptions
from .runs import Run

__all__ = ["Job"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained, on what, and where it is kept."""

    run: Run
    config: ModelConfig
    options: TrainingOptions
    data: Data
    samples: TrainingSamples
    held_out: TokenWindows
    """The windows of `data.held_out` to evaluate on."""

    @classmethod
    def of(cls, run: Run, config: ModelConfig, options: TrainingOptions, data: Data) -> Job:
        """Return the job of training a model of `config` on `data`.

        Raises
        ------
        ValueError
            If the text is shorter than one context.
        """
        end_of_text = None if options.join_documents else data.tokenizer.end_of_text
        return cls(
            run=run,
            config=config,
            options=options,
            data=data,
            samples=TrainingSamples(data.training_tokens, config.max_len, options.seed, end_of_text=end_of_text),
            held_out=evaluation_windows(data.held_out_tokens, config.max_len, end_of_text),
        )

    @property
    def learning_rate(self) -> float:
        """The peak; a run's options are written with it."""
        if self.options.learning_rate is None:
            raise InputError("the options of the run have no learning_rate: restore run.json, or begin a new run")
        return self.options.learning_rate

    def training_bits(self, nats: float) -> float:
        """Return a loss (nats a token) of the training text in its bits per byte, as held-out costs are told."""
        return bits_per_byte(nats * len(self.data.training_tokens), self.data.training)

    @property
    def architecture(self) -> Architecture[Any]:
        """The kind of the model."""
        return get_architecture(self.config.model_type)
