"""Where JAX trains: the devices that it finds, all in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import jax

from tmm_core.errors import InputError

from ..learner import Work
from ..machine import engine_name
from ..options import TrainingOptions
from .devices import devices_of
from .trainer import JaxTrainer

__all__ = ["JaxPlace", "fast_at_bfloat16", "place"]

T = TypeVar("T")


def fast_at_bfloat16(device: str) -> bool:
    """Return whether `--device` is an accelerator: on CPUs, XLA multiplies bfloat16 as float32."""
    return bool(devices_of(device)[0].platform != "cpu")


def place(options: TrainingOptions) -> JaxPlace:
    """Return where a run with `options` is computed.

    Raises
    ------
    ValueError
        If the device is not available, or an option is one of PyTorch's.
    """
    if options.compile:
        raise InputError("--compile is PyTorch's, and JAX always compiles: leave it out, or undo it by --no-compile")
    if options.report_to.strip() not in ("", "none"):
        raise InputError(
            f"--report-to {options.report_to} is for PyTorch, whose Trainer knows services: take --report-to none, "
            "and read metrics.jsonl of the run"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("torchrun is for PyTorch: one process of JAX trains on all devices, so start tmm without it")
    return JaxPlace(devices_of(options.device), options.precision)


class JaxPlace:
    """Devices of one kind, each of which computes a batch of every step."""

    processes = 1
    first = True

    def __init__(self, devices: list[jax.Device], precision: str) -> None:
        """Compute on `devices`."""
        self._devices = devices
        self._precision = precision
        self.batches = len(devices)

    def device_name(self) -> str:
        """Return the device, and how many share the work."""
        kind: str = self._devices[0].device_kind
        return kind + (f", {self.batches} devices" if self.batches > 1 else "")

    def device_memory(self) -> str:
        """Return the most memory held on an accelerator."""
        device = self._devices[0]
        figures = None if device.platform == "cpu" else device.memory_stats()
        return (
            "" if figures is None else f", and {figures['peak_bytes_in_use'] / 2**20:,.0f} MiB on the {device.platform}"
        )

    def engine_name(self) -> str:
        """Return the engine that the Toeplitz products will be computed by."""
        platform = self._devices[0].platform
        return engine_name("jax", "cuda" if platform == "gpu" else platform, self._precision)

    def in_first_process(self, function: Callable[[], T]) -> T:
        """Return what `function` returns: there is one process."""
        return function()

    def total(self, number: float) -> float:
        """Return the number of the only process."""
        return float(number)

    def part(self) -> None:
        """Do nothing: there is one process."""

    def learner(self, work: Work) -> JaxTrainer:
        """Return the model of `work`."""
        return JaxTrainer(work, self._devices)
