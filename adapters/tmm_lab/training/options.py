"""The options of a training run, except its model and its text: one frozen dataclass, kept in the run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tmm_core.errors import InputError
from tmm_core.fields import Bounds, Configuration, Count, Size

__all__ = ["EVALUATIONS", "MANY_STEPS", "TrainingOptions"]

EVALUATIONS = 10
"""Of a run, where it is long enough."""

MANY_STEPS = 1 << 31
"""More steps than any run has."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Configuration):
    """Describe how a model is trained; the fields are the options of `tmm train`."""

    steps: Annotated[int, Bounds(at_least=1, below=MANY_STEPS)] | None = None
    """Optimiser steps of the whole run; by default as many as fit into --minutes."""
    minutes: Annotated[float, Bounds(above=0, below=10_000_000)] = 3.0
    """Duration from reading the text to the trained model, where --steps is not given; the steps that fit are planned
    anew as it goes, and the learning rate falls with them."""
    batch: Count = 4
    """Sequences in a batch, on each device."""
    join_documents: bool = False
    """Let documents that share a context see each other, as in the research code; else each is read as if alone."""
    accumulate: Count = 1
    """Batches whose gradients are added up before a step."""
    learning_rate: Annotated[float, Bounds(above=0)] | None = None
    """Learning rate after the warm-up; it falls to zero along a cosine. By default the architecture's own."""
    warmup: Size = 200
    """Steps over which the learning rate rises; at most a quarter of the run."""
    weight_decay: Annotated[float, Bounds(at_least=0)] = 0.1
    """Weight decay of linear maps (AdamW); embeddings, biases and norms have none."""
    beta1: Annotated[float, Bounds(at_least=0, below=1)] = 0.9
    """Decay rate of AdamW's average of gradients."""
    beta2: Annotated[float, Bounds(at_least=0, below=1)] = 0.95
    """Decay rate of AdamW's average of squared gradients."""
    clip: Annotated[float, Bounds(at_least=0)] = 1.0
    """Largest norm of the gradient; 0 for no clipping."""
    seed: Annotated[int, Bounds(at_least=0, below=1 << 32)] = 0  # what NumPy's older generator takes
    """Seed of the initial weights, the order of the text and the samples."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the model; bfloat16 is mixed precision, with weights in float32; auto is bfloat16 where the device
    is fast at it."""
    framework: Literal["auto", "torch", "jax"] = "auto"
    """What trains: PyTorch or JAX; auto is PyTorch where it is installed. The runs are the same, and either continues
    the other's."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto is an accelerator where there is one."""
    backend: str | None = None
    """Backend of the Toeplitz products (see `tmm backends`); by default that of TMM_BACKEND, else the fastest."""
    compile: bool = False
    """Compile the model with torch.compile; JAX always compiles."""
    evaluations: Count | None = None
    """Evaluations of the held-out text, evenly over the run; the last one is at its end. By default ten, or fewer where
    they would be less than five steps apart. Where minutes are given, those before the last measure a part of the
    text, and there are fewer if they would take more than a tenth of the time."""
    log_every: Count = 10
    """Steps between two records of the loss."""
    checkpoint_steps: Count = 100
    """Most steps between two checkpoints; more where minutes are given and checkpoints would take a twentieth of
    them."""
    checkpoint_seconds: Annotated[float, Bounds(at_least=0)] = 30.0
    """Most seconds between two checkpoints."""
    prompt: str = "The "
    """Beginning of the samples."""
    sample_tokens: Size = 100
    """Tokens of the sample at each evaluation; 0 for no samples. The one at the end is four times as long."""
    report_to: str = "none"
    """Trackers to report to, such as tensorboard or wandb; commas between several."""

    @property
    def final_sample_tokens(self) -> int:
        """Tokens of the sample at the end."""
        return 4 * self.sample_tokens

    def __post_init__(self) -> None:
        """Refuse what cannot be a run."""
        super().__post_init__()
        if not self.prompt:
            raise InputError("--prompt is empty: give the samples some text to begin with")
