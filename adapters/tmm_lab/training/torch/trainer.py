"""A model in training in PyTorch: its steps and its state; devices and precision are accelerate's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from numpy.typing import NDArray

from tmm_adapters.pretrained import WEIGHTS, read_tensors, write_model
from tmm_core.errors import InputError

from ...evaluation.measure import Batch
from ...evaluation.torch_model import TorchModel
from ..checkpoints import check_model
from ..job import Job
from ..moments import read_moments
from .state import read_random, set_moments, write_moments, write_random

__all__ = ["TorchTrainer"]


class TorchTrainer:
    """Train a PyTorch model.

    Parameters
    ----------
    job : Job
        What to train, on what, and where it is kept.
    accelerator : Accelerator
        The devices, processes and precision.
    """

    def __init__(self, job: Job, accelerator: Accelerator) -> None:
        """Make the initial parameters; nothing is read or written yet."""
        self.job = job
        self._accelerator = accelerator
        torch.manual_seed(job.options.seed)
        self._model = job.architecture.torch_model(job.config, seed=job.options.seed).to(accelerator.device)
        self._optimizer = make_optimizer(job, self._model)
        self._prepared = accelerator.prepare(self._model)

    def step(self, batch: Batch, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Train on a batch of (accumulate, rows, context), at this share of the peak learning rate."""
        options, device = self.job.options, self._accelerator.device
        tensors = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in batch.items()}
        losses = []
        self._prepared.train()
        for part in range(options.accumulate):
            with self._accelerator.accumulate(self._prepared):  # which divides by their number
                loss = self._prepared(**{name: tensor[part] for name, tensor in tensors.items()})["loss"]
                self._accelerator.backward(loss)
                losses.append(loss.detach())
        parameters = list(self._model.parameters())
        if options.clip > 0:
            norm = self._accelerator.clip_grad_norm_(parameters, options.clip)
        else:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        for group in self._optimizer.param_groups:
            group["lr"] = self.job.learning_rate * factor
        self._optimizer.step()
        self._optimizer.zero_grad()
        return torch.stack(losses).mean(), norm

    def load(self, checkpoint: Path, *, optimizer: bool) -> None:
        """Take the parameters of a checkpoint, and what AdamW knows."""
        check_model(checkpoint, self.job.config)
        try:
            self._model.load_state_dict(read_tensors(checkpoint / WEIGHTS, "pt"))
        except RuntimeError as error:
            raise InputError(f"{checkpoint / WEIGHTS} does not fit its configuration: {error}") from error
        if optimizer:
            shapes = {name: tuple(p.shape) for name, p in self._model.named_parameters() if p.requires_grad}
            set_moments(self._optimizer, self._model, read_moments(checkpoint, shapes))
            read_random(checkpoint)

    def write(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""
        job = self.job
        joined = job.options.join_documents
        write_model(folder, self._model.state_dict(), job.config, job.data.tokenizer, join_documents=joined)
        write_moments(folder, self._model, self._optimizer)
        write_random(folder)

    def parameters(self, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, NDArray[Any]]:
        """Return the parameters whose names are wanted as NumPy arrays."""
        return {name: p.detach().cpu().numpy() for name, p in self._model.state_dict().items() if wanted(name)}

    def model(self) -> TorchModel:
        """Return the model as it is now, to be measured and to write."""
        return TorchModel(self._model, self.job.config)


def make_optimizer(job: Job, model: torch.nn.Module) -> torch.optim.AdamW:
    """Return AdamW for the parameters that are trained; those that the architecture names decay."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    options, shapes = job.options, {name: tuple(p.shape) for name, p in trained.items()}
    decayed = job.architecture.decayed_names(job.config, shapes)
    groups = [
        {"params": [p for name, p in trained.items() if (name in decayed) == decays], "weight_decay": decay}
        for decays, decay in ((True, options.weight_decay), (False, 0.0))
    ]
    betas = options.beta1, options.beta2
    return torch.optim.AdamW(groups, lr=job.learning_rate, betas=betas, eps=1e-8, fused=True)
