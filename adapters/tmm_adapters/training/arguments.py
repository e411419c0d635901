"""Options of a run as the arguments of Hugging Face's Trainer, and what the processes of `torchrun` do together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations

from tmm_core import TMMConfig

from .options import MANY_STEPS, TrainingOptions

__all__ = ["UNKNOWN_STEPS", "in_first_process", "part", "settled", "training_arguments"]

UNKNOWN_STEPS = MANY_STEPS
"""The Trainer's number of steps while minutes have not become steps yet."""

T = TypeVar("T")


def settled(options: TrainingOptions, config: TMMConfig) -> TrainingOptions:
    """Return `options` with what was left open decided for a model and for this machine.

    Adam's steps do not shrink with the gradients, so a learning rate goes with 1 / width: 0.006 was the best measured
    at 128 channels (0.003 and 0.012 were worse), 0.003 served at 256.
    """
    rate = options.learning_rate or 0.768 / config.d_model
    precision = options.precision
    if precision == "auto":
        precision = "bfloat16" if _fast_at_bfloat16(options.device) else "float32"
    return dataclasses.replace(options, learning_rate=rate, precision=precision)


def _fast_at_bfloat16(device: str) -> bool:
    if device in ("auto", "cuda") and torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        return False
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


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
        raise ValueError(f"--device {options.device} is not available on this machine: leave it out, or take cpu")
    arguments = TrainingArguments(
        output_dir="",  # the run's, as soon as there is one
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        max_steps=options.steps or UNKNOWN_STEPS,
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
        # The callbacks of this package decide when to do these.
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


def in_first_process(arguments: TrainingArguments, function: Callable[[], T]) -> T:
    """Return what `function` returns in the first process, in every process; the others wait for it.

    Where it raises, the first process tells why, and the others end in silence.
    """
    if arguments.world_size == 1:
        return function()
    box: list[Any] = [None, False]
    failure: Exception | None = None
    if arguments.process_index == 0:
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


def part(arguments: TrainingArguments) -> None:
    """Let the processes end together: one that leaves while another still talks to it is aborted."""
    if arguments.world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _services(report_to: str) -> list[str] | str:
    """Return the services to report to, all known to the Trainer and installed."""
    names = [name.strip() for name in report_to.split(",") if name.strip() not in ("", "none")]
    known: list[str] = get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    for name in names:
        if name not in known:
            raise ValueError(
                f"--report-to {name} is not available: install its library, or choose of {', '.join(known) or 'none'}"
            )
    return names or "none"
