"""What computes: the device, the engine of the Toeplitz products, and how much memory it took."""

from __future__ import annotations

import platform
import sys

import torch
from transformers import TrainingArguments

from tmm_core._protocols import Request
from tmm_core._registry import choose_engine

__all__ = ["device_name", "engine_name", "peak_memory"]


def device_name(arguments: TrainingArguments) -> str:
    """Return the device, and how many processes share the work."""
    device = arguments.device
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{device.type}, {torch.get_num_threads()} threads" if device.type == "cpu" else device.type
    return name + (f", {arguments.world_size} processes" if arguments.world_size > 1 else "")


def engine_name(device: torch.device, dtype: str) -> str:
    """Return the engine that the Toeplitz products of a model will be computed by.

    Raises
    ------
    LookupError, ValueError
        If the engine that the user chose is unknown, is not installed, or cannot serve the device.
    """
    return choose_engine(None, "torch", Request("matmul", dtype, device.type, exact=False, segments=False)).name


def peak_memory(device: torch.device) -> str:
    """Return the most memory that this process has held, and the most on its device."""
    if sys.platform == "win32":
        text = "unknown on Windows"
    else:
        import resource

        unit = 1 if platform.system() == "Darwin" else 1024  # Linux counts in KiB
        text = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20:,.0f} MiB"
    if device.type == "cuda":
        text += f", and {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB on the GPU"
    return text
