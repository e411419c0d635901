"""The devices of PyTorch and of JAX, by name; `auto` is an accelerator where there is one, else the CPU."""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tmm_core.errors import InputError, NotFoundError

from .extras import how_to_install

if TYPE_CHECKING:
    import jax
    import torch

__all__ = ["jax_devices", "torch_device"]


def torch_device(name: str) -> torch.device:
    """Return the device that PyTorch has under `name`: `auto`, `cpu`, `cuda`, `mps`, or another of PyTorch's names.

    Raises
    ------
    LookupError
        If PyTorch is not installed.
    ValueError
        If there is no such device.
    """
    try:
        import torch
    except ImportError as error:
        raise NotFoundError(
            f"PyTorch is not installed: {how_to_install('torch')}, or compute in JAX, where load_params and "
            "tmm_adapters.jax.from_params give a model"
        ) from error
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind, there in available.items() if there), "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name!r} is not a device of PyTorch: choose auto, cpu, cuda or mps") from error
    if not available.get(device.type, True):
        raise InputError(f"device {name!r} is not available to PyTorch on this machine: choose auto or cpu")
    return device


def jax_devices(name: str) -> list[jax.Device]:
    """Return the devices that JAX has under `name`: `auto`, `cpu`, `cuda`, or another of JAX's platforms.

    Raises
    ------
    ValueError
        If there are none.
    """
    import jax

    try:
        return list(jax.local_devices(backend=None if name == "auto" else name))
    except (RuntimeError, AssertionError) as error:  # JAX asserts that there are some on the platforms it may use
        allowed = os.environ.get("JAX_PLATFORMS")
        remedy = f"JAX_PLATFORMS={allowed} keeps it from looking: unset it" if allowed else "choose auto or cpu"
        raise InputError(f"device {name!r} is not available to JAX on this machine: {remedy}") from error
