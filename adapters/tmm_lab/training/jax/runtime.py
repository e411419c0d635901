"""The devices that JAX trains on: all that it finds, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import jax

from tmm_adapters.devices import jax_devices
from tmm_core.errors import InputError

from ..environment import launched, without_variables
from ..job import Job
from ..options import TrainingOptions
from ..resources import engine_name
from .trainer import JaxTrainer

__all__ = ["JaxRuntime", "fast_at_bfloat16", "make_runtime", "settings"]

T = TypeVar("T")


def fast_at_bfloat16(device: str) -> bool:
    """Return whether `--device` is an accelerator: on CPUs, XLA multiplies bfloat16 as float32."""
    return bool(jax_devices(device)[0].platform != "cpu")


@contextmanager
def settings(options: TrainingOptions) -> Iterator[None]:
    """Keep what JAX was told by the environment of precision, compiling and random numbers from a run."""
    with (
        without_variables("NVIDIA_TF32_OVERRIDE"),
        jax.default_matmul_precision(None),
        jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True),
        jax.enable_x64(False),
        jax.disable_jit(False),
    ):
        yield


def make_runtime(options: TrainingOptions) -> JaxRuntime:
    """Return the runtime of a run with `options`.

    Raises
    ------
    ValueError
        If the device is not available, or an option is one of PyTorch's.
    """
    if options.compile:
        raise InputError("--compile is PyTorch's, and JAX always compiles: leave it out, or undo it by --no-compile")
    if launched() and os.environ["WORLD_SIZE"] != "1":
        raise InputError("torchrun is for PyTorch: one process of JAX trains on all devices, so start tmm without it")
    return JaxRuntime(jax_devices(options.device), options.precision)


class JaxRuntime:
    """Devices of one kind, each of which computes a batch of every step."""

    processes = 1
    rank = 0
    first = True

    def __init__(self, devices: list[jax.Device], precision: str) -> None:
        """Compute on `devices`."""
        self._devices = devices
        self._precision = precision
        self.local_devices = len(devices)

    def device_name(self) -> str:
        """Return the device, and how many share the work."""
        kind: str = self._devices[0].device_kind
        return kind + (f", {self.local_devices} devices" if self.local_devices > 1 else "")

    def device_memory(self) -> str:
        """Return the most memory held on an accelerator."""
        device = self._devices[0]
        stats = None if device.platform == "cpu" else device.memory_stats()
        return "" if stats is None else f", and {stats['peak_bytes_in_use'] / 2**20:,.0f} MiB on the {device.platform}"

    def engine_name(self) -> str:
        """Return the engine that Toeplitz products will be computed by."""
        platform = self._devices[0].platform
        return engine_name("jax", "cuda" if platform == "gpu" else platform, self._precision)

    def in_first_process(self, function: Callable[[], T]) -> T:
        """Return what `function` returns: there is one process."""
        return function()

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the numbers of the only process."""
        return [float(number) for number in numbers]

    def trainer(self, job: Job) -> JaxTrainer:
        """Return the model of `job`."""
        return JaxTrainer(job, self._devices)

    def end(self) -> None:
        """Do nothing: there is one process."""
