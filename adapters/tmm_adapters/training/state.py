"""What training needs to go on, as safetensors: no pickles are written, and none is ever read.

The optimiser's tensors are named by parameter, `<parameter>.<key>`, as in `embed.weight.exp_avg`. The learning rate and
the order of the text follow from the step, so they are not kept. Of the generators of random numbers only Torch's is:
the model and the text draw from no other, and samples draw from their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..folder import read_tensors, write_tensors

__all__ = ["read_optimizer", "read_random", "write_optimizer", "write_random"]

_OPTIMIZER, _RANDOM = "optimizer.safetensors", "random.safetensors"


def write_optimizer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the optimiser's state of every parameter of `model`."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = value
    write_tensors(folder / _OPTIMIZER, tensors)


def read_optimizer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give `optimizer` the state that `write_optimizer` wrote.

    Raises
    ------
    ValueError
        If the file is damaged, or belongs to another model.
    """
    path = folder / _OPTIMIZER
    by_name: dict[str, dict[str, Any]] = {}
    for name, tensor in read_tensors(path, "pt").items():
        parameter, key = name.rsplit(".", 1)
        by_name.setdefault(parameter, {})[key] = tensor
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wrong = set(by_name) ^ set(trained) or {
        name for name in trained if by_name[name]["exp_avg"].shape != trained[name].shape
    }
    if wrong:
        raise ValueError(f"{path} is of another model: {min(wrong)} does not fit; resume from another checkpoint")
    names = {id(parameter): name for name, parameter in trained.items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {index: by_name[names[id(parameter)]] for index, parameter in enumerate(parameters)}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def write_random(folder: Path) -> None:
    """Write the state of Torch's generators."""
    states: dict[str, Tensor] = {"cpu": torch.get_rng_state()}
    for index in range(torch.cuda.device_count()):
        states[f"cuda.{index}"] = torch.cuda.get_rng_state(index)
    write_tensors(folder / _RANDOM, states)


def read_random(folder: Path) -> None:
    """Put Torch's generators into the state that `write_random` wrote; those of absent devices are passed over."""
    for name, state in read_tensors(folder / _RANDOM, "pt").items():
        if name == "cpu":
            torch.set_rng_state(state)
        elif int(name.removeprefix("cuda.")) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(name.removeprefix("cuda.")))
