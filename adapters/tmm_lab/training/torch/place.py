"""Where PyTorch trains: the device, the processes of `torchrun`, and the options as the Trainer's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations

from tmm_core.errors import InputError

from ..display import counted
from ..learner import Work
from ..machine import engine_name
from ..options import MANY_STEPS, TrainingOptions
from .trainer import LanguageModelTrainer

__all__ = ["TorchPlace", "fast_at_bfloat16", "place", "training_arguments"]

T = TypeVar("T")


def fast_at_bfloat16(device: str) -> bool:
    """Return whether `--device` has instructions for bfloat16."""
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        return False
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def place(options: TrainingOptions) -> TorchPlace:
    """Return where a run with `options` is computed.

    Raises
    ------
    ValueError
        If the device, or a service to report to, is not available.
    """
    return TorchPlace(training_arguments(options), options.precision)


class TorchPlace:
    """One device in each of the processes that `torchrun` began, or in this one alone."""

    def __init__(self, arguments: TrainingArguments, precision: str) -> None:
        """Look at what `training_arguments` has found."""
        self._arguments = arguments
        self._precision = precision
        self.batches = self.processes = arguments.world_size
        self.first = arguments.process_index == 0

    def device_name(self) -> str:
        """Return the device, and how many processes share the work."""
        device = self._arguments.device
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
        else:
            name = (
                f"{device.type}, {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else device.type
            )
        return name + (f", {self.processes} processes" if self.processes > 1 else "")

    def device_memory(self) -> str:
        """Return the most memory held on a GPU."""
        device = self._arguments.device
        if device.type != "cuda":
            return ""
        return f", and {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB on the GPU"

    def engine_name(self) -> str:
        """Return the engine that the Toeplitz products will be computed by."""
        return engine_name("torch", self._arguments.device.type, self._precision)

    def in_first_process(self, function: Callable[[], T]) -> T:
        """Return what `function` returns in the first process, in every process; the others wait for it.

        Where it raises, the first process tells why, and the others end in silence.
        """
        if self.processes == 1:
            return function()
        box: list[Any] = [None, False]
        failure: Exception | None = None
        if self.first:
            try:
                box = [function(), False]
            except Exception as error:
                failure, box = error, [None, True]
        torch.distributed.broadcast_object_list(box, src=0)
        if failure is not None:
            raise failure
        if box[1]:
            raise SystemExit(2)
        result: T = box[0]
        return result

    def total(self, number: float) -> float:
        """Return the sum of the processes' numbers."""
        if self.processes == 1:
            return float(number)
        # Held-out costs are sums of millions: float32, the accelerators' widest in places, has seven digits.
        tensor = torch.tensor(float(number), device=self._arguments.device)
        torch.distributed.all_reduce(tensor)
        return float(tensor)

    def part(self) -> None:
        """Let the processes end together: one that leaves while another still talks to it is aborted."""
        if self.processes > 1:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()

    def learner(self, work: Work) -> LanguageModelTrainer:
        """Return the model of `work` in the Trainer."""
        return LanguageModelTrainer(work, self._arguments)


def training_arguments(options: TrainingOptions) -> TrainingArguments:
    """Return the Trainer's arguments; the processes of `torchrun`, if any, have found each other afterwards.

    Raises
    ------
    ValueError
        If the device, or a service to report to, is not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    on_cpu = options.device == "cpu" or (options.device == "auto" and not any(available.values()))
    if not available.get(options.device, True):
        raise InputError(f"--device {options.device} is not available on this machine: leave it out, or take cpu")
    arguments = TrainingArguments(
        output_dir="",  # the run's, as soon as there is one
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        max_steps=options.steps or MANY_STEPS,
        learning_rate=options.learning_rate or 0.0,
        weight_decay=options.weight_decay,
        adam_beta1=options.beta1,
        adam_beta2=options.beta2,
        max_grad_norm=options.clip,
        bf16=options.precision == "bfloat16",
        use_cpu=on_cpu,
        torch_compile=options.compile,
        seed=options.seed,
        report_to=_services(options.report_to),
        # The course of the run decides when to do these.
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        ddp_find_unused_parameters=False,  # every parameter takes part in every step
        ignore_data_skip=True,  # the samples begin where the run left off
        logging_nan_inf_filter=False,  # it would wait for the device at every step
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
    )
    _ = arguments.device  # looking at it starts the communication between processes
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs are torchrun's business, not DataParallel's
    return arguments


def _services(report_to: str) -> list[str] | str:
    """Return the services to report to, all known to the Trainer and installed."""
    names = [name.strip() for name in report_to.split(",") if name.strip() not in ("", "none")]
    known: list[str] = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    for name in names:
        if name not in known:
            raise InputError(
                f"--report-to {name} is not available: install its library, or choose of {', '.join(known) or 'none'}"
            )
    return names or "none"
