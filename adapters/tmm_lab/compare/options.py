"""What a comparison is of: models of several architectures, what is held equal, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tmm_adapters.architecture import ModelConfig, get_architecture
from tmm_core.fields import Bounds, Configuration, Count

__all__ = ["Arm", "ComparisonOptions", "Equal", "width_of"]

Equal = Literal["parameters", "flops", "width", "seconds", "memory"]


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Configuration):
    """Describe how models are compared; the fields are options of `tmm compare`."""

    equal: Equal = "flops"
    """What is held equal: the FLOPs or the seconds of training a token, the parameters, the memory of a training step,
    or the width."""
    seeds: Count = 3
    """Runs of each model, with the seeds 0, 1, and so on."""
    minutes: Annotated[float, Bounds(above=0)] = 20.0
    """Duration of the whole comparison, where --steps is not given."""
    steps: Annotated[int, Bounds(at_least=20)] | None = None
    """Steps of each run; by default as many as fit into --minutes."""
    batch: Count = 4
    """Sequences in a batch."""
    max_len: Annotated[int, Bounds(at_least=2)] = 256
    """Tokens of the training context."""
    d_model: Count = 128
    """Width of the first model, the reference, to which the others are made equal."""
    n_layers: Count = 4
    """Blocks of each model."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train."""
    backend: str | None = None
    """Backend of the Toeplitz products."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the models that are compared."""

    label: str
    """Its name in the comparison, unique in it."""
    architecture: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the default preset."""
    solved: bool = True
    """Whether its width is found; else it is the one in `fields`."""
    decides: bool = True
    """Whether the verdict depends on it."""

    def config(self, options: ComparisonOptions, vocab_size: int) -> ModelConfig:
        """Return the model with the width of the reference.

        Raises
        ------
        LookupError
            If the architecture is unknown.
        TypeError, ValueError
            If a field is unknown or cannot be.
        """
        config_class = get_architecture(self.architecture).config_class
        size = {"d_model": options.d_model, "n_layers": options.n_layers, "max_len": options.max_len}
        config: ModelConfig = config_class.preset("default", **{**size, "vocab_size": vocab_size, **self.fields})
        return config


def width_of(config: ModelConfig) -> int:
    """Return the channels of a model's residual stream."""
    width: int = config.d_model  # type: ignore[attr-defined]  # every model that can be made wider has it
    return width
