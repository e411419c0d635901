"""What training in PyTorch needs to go on, as safetensors: no pickles are written, and none is ever read.

The learning rate and the order of the text follow from the step, so they are not kept. Of the generators of random
numbers only Torch's is: the model and the text draw from no other, and samples draw from their own.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tmm_adapters.pretrained import read_tensors, write_tensors

from ..moments import OPTIMIZER, Moments

__all__ = ["read_random", "set_moments", "write_moments", "write_random"]

_RANDOM = "random.safetensors"


def write_moments(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the optimiser's state of every parameter of `model`."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = value
    write_tensors(folder / OPTIMIZER, tensors)


def set_moments(optimizer: torch.optim.Optimizer, model: nn.Module, moments: Moments) -> None:
    """Give `optimizer` the moments of the parameters of `model` that are trained."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {
            "step": torch.tensor(float(moments.steps), dtype=torch.float32),
            "exp_avg": torch.tensor(moments.mu[name]),
            "exp_avg_sq": torch.tensor(moments.nu[name]),
        }
        for index, name in enumerate(order)
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def write_random(folder: Path) -> None:
    """Write the state of Torch's generators."""
    states: dict[str, Tensor] = {"cpu": torch.get_rng_state()}
    for index in range(torch.cuda.device_count()):
        states[f"cuda.{index}"] = torch.cuda.get_rng_state(index)
    write_tensors(folder / _RANDOM, states)


def read_random(folder: Path) -> None:
    """Put Torch's generators into the state that `write_random` wrote; those of absent devices are passed over.

    A checkpoint of another framework has none, and nothing of a run draws from them.
    """
    if not (folder / _RANDOM).is_file():
        return
    for name, state in read_tensors(folder / _RANDOM, "pt").items():
        if name == "cpu":
            torch.set_rng_state(state)
        elif int(name.removeprefix("cuda.")) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(name.removeprefix("cuda.")))
