"""The device and the processes that PyTorch trains on: those that `torchrun` began, or this one alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-untyped]

from tmm_adapters.devices import torch_device
from tmm_adapters.words import counted
from tmm_core.errors import InputError

from ..environment import LAUNCHER, launched, without_variables
from ..job import Job
from ..options import TrainingOptions
from ..resources import engine_name
from .trainer import TorchTrainer

__all__ = ["TorchRuntime", "fast_at_bfloat16", "make_runtime", "settings"]

T = TypeVar("T")

# Beginnings of the variables by which accelerate is told of precision, gradients, compilation, devices, plugins and
# processes of MPI, and CUDA of its arithmetic. Options say all of it, and torchrun.
_OVERRULED = (
    *("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "FORK_LAUNCHED"),
    *("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "NVIDIA_TF32_OVERRIDE"),
)


def fast_at_bfloat16(device: str) -> bool:
    """Return whether `--device` has instructions for bfloat16."""
    kind = torch_device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def settings(options: TrainingOptions) -> Iterator[None]:
    """Keep what accelerate, its plugins and PyTorch are told by the environment from a run with `options`.

    Raises
    ------
    ValueError
        If the environment forbids what the options ask for.
    """
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        if options.compile and os.environ.get(name, "0") not in ("", "0"):
            raise InputError(f"{name}={os.environ[name]} in the environment keeps --compile from compiling: unset it")
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with without_variables(*_OVERRULED, *(() if launched() else LAUNCHER)):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def make_runtime(options: TrainingOptions) -> TorchRuntime:
    """Return the runtime of a run with `options`; the processes of `torchrun`, if any, have found each other then.

    Raises
    ------
    ValueError
        If the device is not available.
    """
    device = torch_device(options.device)
    # What it remembers of an earlier run in this process, such as its precision, is not that of this one.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="bf16" if options.precision == "bfloat16" else "no",
        gradient_accumulation_steps=options.accumulate,
        dynamo_backend="inductor" if options.compile else "no",
    )
    return TorchRuntime(accelerator)


class TorchRuntime:
    """One device in each process."""

    local_devices = 1

    def __init__(self, accelerator: Accelerator) -> None:
        """Compute where `accelerator` does."""
        self._accelerator = accelerator
        self.processes: int = accelerator.num_processes
        self.rank: int = accelerator.process_index
        self.first = self.rank == 0

    def device_name(self) -> str:
        """Return the device, and how many processes share the work."""
        device = self._accelerator.device
        name = str(device.type)
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
        elif device.type == "cpu":
            name = f"cpu, {counted(torch.get_num_threads(), 'thread')}"
        return name + (f", {self.processes} processes" if self.processes > 1 else "")

    def device_memory(self) -> str:
        """Return the most memory held on a GPU."""
        device = self._accelerator.device
        if device.type != "cuda":
            return ""
        return f", and {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB on the GPU"

    def engine_name(self) -> str:
        """Return the engine that Toeplitz products will be computed by."""
        dtype = "bfloat16" if self._accelerator.mixed_precision == "bf16" else "float32"
        return engine_name("torch", self._accelerator.device.type, dtype)

    def in_first_process(self, function: Callable[[], T]) -> T:
        """Return what `function` returns in the first process, in every process; the others wait for it.

        Where it raises, the first process tells why, and the others end in silence.
        """
        if self.processes == 1:
            return function()
        box: list[Any] = [None, False]
        failure: BaseException | None = None
        if self.first:
            try:
                box = [function(), False]
            except BaseException as error:  # Ctrl-C, too, must not leave the others waiting
                failure, box = error, [None, True]
        torch.distributed.broadcast_object_list(box, src=0)
        if failure is not None:
            raise failure
        if box[1]:
            raise SystemExit(2)
        result: T = box[0]
        return result

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of the processes' numbers, each over the processes."""
        if self.processes == 1:
            return [float(number) for number in numbers]
        tensor = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        tensor = tensor.to(self._accelerator.device)
        torch.distributed.all_reduce(tensor)
        found: list[float] = tensor.tolist()
        return found

    def trainer(self, job: Job) -> TorchTrainer:
        """Return the model of `job`."""
        return TorchTrainer(job, self._accelerator)

    def end(self) -> None:
        """Wait for the other processes."""
        self._accelerator.wait_for_everyone()
