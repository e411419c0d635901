"""Models of several architectures, made equal in one account of what they cost."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence

import torch

from tmm_adapters.architecture import ModelConfig, get_architecture
from tmm_core.errors import InputError

from ..bench.turns import Schedule
from ..bench.turns import compare as paired
from ..evaluation.accounts import TrainingStep, peak_bytes
from ..progress import waiting
from .options import Arm, ComparisonOptions, Equal
from .widths import at_cost

__all__ = ["TOLERANCES", "build_model", "equal_models"]

TOLERANCES: dict[Equal, float] = {"parameters": 0.02, "flops": 0.02, "memory": 0.02, "seconds": 0.1}
"""The largest deviation from equal cost, as a share of it; seconds are as exact as they can be measured."""


def equal_models(
    arms: Sequence[Arm], options: ComparisonOptions, vocab_size: int, device: str
) -> dict[str, ModelConfig]:
    """Return the models by label, each as expensive as the first.

    Parameters
    ----------
    arms : sequence of Arm
        The first is the reference.
    options : ComparisonOptions
        What is held equal.
    vocab_size : int
        Number of token ids.
    device : str
        Where seconds and memory are measured.

    Raises
    ------
    ValueError
        If an architecture has no model of that cost, or no PyTorch model.
    """
    reference = arms[0].config(options, vocab_size)
    found = {arms[0].label: reference}
    with waiting(f"finding widths of equal {options.equal}", len(arms)) as advance:
        for arm in arms[1:]:
            advance(1)
            config = _smallest(arm, options, vocab_size) if arm.solved else arm.config(options, vocab_size)
            if arm.solved and options.equal != "width":
                cost = _cost(reference, options, device)
                try:
                    config = at_cost(config, cost, cost(reference), tolerance=TOLERANCES[options.equal])
                except InputError as error:
                    raise InputError(f"{arm.label} at equal {options.equal}: {error}") from error
            found[arm.label] = config
    return found


def _smallest(arm: Arm, options: ComparisonOptions, vocab_size: int) -> ModelConfig:
    """Return the arm's model at the reference's width, or, where its heads forbid that, at the next one they allow."""
    try:
        return arm.config(options, vocab_size)
    except InputError as error:
        if options.equal != "width":
            for width in range(options.d_model + 1, 2 * options.d_model + 1):
                with contextlib.suppress(InputError):
                    return arm.config(dataclasses.replace(options, d_model=width), vocab_size)
        raise InputError(f"{arm.label}: {error}") from error


def _cost(reference: ModelConfig, options: ComparisonOptions, device: str) -> Callable[[ModelConfig], float]:
    """Return the function that is held equal."""
    if options.equal == "parameters":
        return lambda config: get_architecture(config.model_type).n_parameters(config)
    if options.equal == "flops":
        return lambda config: get_architecture(config.model_type).flops_per_token(config)
    shape = {"batch": options.batch, "n": options.max_len}
    if options.equal == "memory":
        return lambda config: peak_bytes(build_model(config, device), config.vocab_size, **shape)
    known: dict[ModelConfig, float] = {reference: 1.0}
    theirs = TrainingStep(build_model(reference, device), reference.vocab_size, **shape)

    def seconds(config: ModelConfig) -> float:
        """Return the seconds of a training step over those of the reference, timed in turns."""
        if config not in known:
            ours = TrainingStep(build_model(config, device), config.vocab_size, **shape)
            known[config] = statistics.median(paired(ours, theirs, Schedule(seconds=0.5, turns=9)))
        return known[config]

    return seconds


def build_model(config: ModelConfig, device: str) -> torch.nn.Module:
    """Return the model of a configuration with initial parameters."""
    return get_architecture(config.model_type).torch_model(config, seed=0).to(device)
