"""Models of several architectures at equal cost: the widths at which they have the parameters, operations or memory."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Sequence

from tmm_adapters.architecture import ModelConfig
from tmm_core.errors import InputError

__all__ = ["at_cost"]

WIDEST = 1 << 14
_FINE = ("d_mlp", "state_size")  # what a model's cost is set by where its heads allow few widths


def at_cost(
    config: ModelConfig, cost: Callable[[ModelConfig], float], target: float, *, tolerance: float
) -> ModelConfig:
    """Return `config` with another width, at which it costs `target`.

    Of the widths that the architecture takes, the one whose cost is nearest is chosen. Where it is further from the
    target than `tolerance`, because heads allow every eighth width only, the width of the MLP, or in a Mamba the size
    of the state, makes up for it.

    Parameters
    ----------
    config : ModelConfig
        Everything but the width.
    cost : callable
        Grows with the width; called about ten times.
    target : float
        What the model is to cost.
    tolerance : float
        Largest deviation, as a share of `target`.

    Raises
    ------
    ValueError
        If no width comes near enough; the message has the nearest.

    Examples
    --------
    >>> from tmm_adapters.architecture import get_architecture
    >>> from tmm_core import TMMConfig
    >>> found = at_cost(TMMConfig(n_heads=8), get_architecture("tmm").n_parameters, 1e6, tolerance=0.02)
    >>> found.d_model, found.d_mlp, get_architecture("tmm").n_parameters(found)
    (152, 574, 1000264)
    """
    if target <= 0:
        raise InputError(f"a model cannot cost {target:g}: give a larger reference")
    step = next(width for width in range(1, WIDEST) if _can_be(config, width))  # heads divide its multiples, too
    nearest = _nearest(config, "d_model", range(step, WIDEST, step), cost, target)
    fine = next((name for name in _FINE if hasattr(config, name)), None)
    found = nearest
    if abs(cost(nearest) / target - 1) > tolerance and fine is not None:
        found = _nearest(nearest, fine, range(1, WIDEST), cost, target)
    reached = cost(found)
    if abs(reached / target - 1) > tolerance:
        raise InputError(
            f"no {config.model_type} comes within {tolerance:.0%} of that cost: the nearest, of {found.d_model} "  # type: ignore[attr-defined]
            f"channels, costs {reached / target:.3g} times as much; choose another width for the reference "
            "(--d-model), or leave it out"
        )
    return found


def _nearest(
    config: ModelConfig, field: str, values: Sequence[int], cost: Callable[[ModelConfig], float], target: float
) -> ModelConfig:
    """Return `config` with the one of ascending `values` in `field` whose cost is nearest to the target."""

    def changed_to(value: int) -> ModelConfig:
        changed: ModelConfig = dataclasses.replace(config, **{field: value})  # type: ignore[type-var]
        return changed

    last = len(values) - 1
    # Indices around that of the width it has, which costs about as much; the widest of all would take long to cost.
    high = min(max(1, bisect_left(values, getattr(config, field) or 1)), last)
    low = high // 2
    while low > 0 and cost(changed_to(values[low])) >= target:
        low, high = low // 2, low
    while high < last and cost(changed_to(values[high])) < target:
        low, high = high, min(2 * high, last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(changed_to(values[middle])) < target else (low, middle)
    return min((changed_to(values[low]), changed_to(values[high])), key=lambda found: abs(cost(found) - target))


def _can_be(config: ModelConfig, width: int) -> bool:
    """Return whether the architecture takes a width."""
    try:
        dataclasses.replace(config, d_model=width)  # type: ignore[type-var]
    except InputError:
        return False
    return True
