"""What a training run can be told, besides its model and its text: one frozen dataclass, kept in the run's folder."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tmm_core.errors import InputError

__all__ = ["MANY_STEPS", "TrainingOptions"]

MANY_STEPS = 1 << 31
"""More steps than any run has."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Describe how a model is trained; the fields are the options of `tmm train`."""

    steps: int | None = None
    """Optimiser steps; unless given, as many as fit into --minutes."""
    minutes: float = 3.0
    """Time to train for unless --steps are given, evaluations and samples included; in steps after 20 timed ones."""
    batch: int = 4
    """Sequences in a batch, on each device."""
    join_documents: bool = False
    """Let documents that share a context see each other, as the authors do; else each is read as if alone."""
    accumulate: int = 1
    """Batches whose gradients are added up before a step."""
    learning_rate: float | None = None
    """Learning rate after the warm-up; falls to zero along a cosine. Unless given, 0.768 / d_model."""
    warmup: int = 200
    """Steps over which the learning rate rises; at most a quarter of the run."""
    weight_decay: float = 0.1
    """Decay of the linear maps' weights (AdamW); lags, embedding, biases and norms have none."""
    beta1: float = 0.9
    """Memory of AdamW's average of gradients."""
    beta2: float = 0.95
    """Memory of AdamW's average of squared gradients."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    seed: int = 0
    """Of the initial weights, the order of the text and the samples."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the model; bfloat16 is mixed precision, with weights in float32; auto is bfloat16 where the device
    is fast at it."""
    framework: Literal["auto", "torch", "jax"] = "auto"
    """What trains: PyTorch with Hugging Face's Trainer, or JAX; auto is PyTorch where it is installed. The runs are the
    same, and either goes on with the other's."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto is an accelerator where there is one."""
    backend: str | None = None
    """Engine of the Toeplitz products (see `tmm backends`); unless given, TMM_BACKEND's, else the fastest."""
    compile: bool = False
    """Compile the model with torch.compile; JAX always compiles."""
    evaluations: int = 10
    """How often the held-out text is evaluated, evenly over the run; at least once, at the end."""
    log_every: int = 10
    """Steps between two records of the loss."""
    checkpoint_steps: int = 100
    """Most steps between two checkpoints."""
    checkpoint_seconds: float = 30.0
    """Most seconds between two checkpoints."""
    prompt: str = "The "
    """How samples begin."""
    report_to: str = "none"
    """Services of Hugging Face's Trainer that follow the run, such as tensorboard or wandb; commas between several."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a run."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            _require(_fits(value, hints[field.name]), field.name, _in_words(hints[field.name]), repr(value))
            _require(not isinstance(value, float) or math.isfinite(value), field.name, "a finite number", value)
        for name in ("batch", "accumulate", "evaluations", "log_every", "checkpoint_steps"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("warmup", "weight_decay", "clip", "seed", "checkpoint_seconds"):
            _require(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, name, "from 0 to below 1", getattr(self, name))
        _require(self.steps is None or 1 <= self.steps < MANY_STEPS, "steps", f"from 1 to {MANY_STEPS - 1}", self.steps)
        _require(self.seed < 1 << 32, "seed", "below 2**32", self.seed)  # what NumPy's older generator takes
        _require(self.minutes > 0, "minutes", "more than 0", self.minutes)
        _require(
            self.learning_rate is None or self.learning_rate > 0, "learning_rate", "more than 0", self.learning_rate
        )
        _require(self.prompt != "", "prompt", "some text for the samples to begin with", "empty")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingOptions:
        """Return the options that `to_dict` wrote; unknown ones are refused, not dropped."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(
                f"unknown training options {unknown}: was the run made by a newer version? update tmm-core"
            )
        # Runs that began before this option had joined documents.
        return cls(**{"join_documents": True, **values})

    def to_dict(self) -> dict[str, Any]:
        """Return every option as plain data, fit for JSON."""
        return asdict(self)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a field's type: dataclasses do not ask, and people edit the descriptions of runs."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    kinds = get_args(hint) or (hint,)
    return type(value) in kinds or (type(value) is int and float in kinds)


def _in_words(hint: Any) -> str:
    """Return what a field's type takes."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "nothing"}
    return " or ".join(words[kind] for kind in get_args(hint) or (hint,))


def _require(condition: bool, name: str, expected: str, got: object) -> None:
    if not condition:
        raise InputError(f"--{name.replace('_', '-')} must be {expected}, and is {got}")
