"""A model in training in JAX: its steps and its state."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from tmm_adapters.pretrained import WEIGHTS, read_tensors, write_model

from ...evaluation.jax_model import JaxModel
from ...evaluation.measure import Batch
from ..checkpoints import check_model
from ..job import Job
from ..moments import read_moments
from .state import moments_of, norm_of, set_moments, with_norm, write_moments

__all__ = ["JaxTrainer"]


class JaxTrainer:
    """Train the parameters of a model in JAX.

    Parameters
    ----------
    job : Job
        What to train, on what, and where it is kept.
    devices : list of jax.Device
        Each computes a batch of every step.
    """

    def __init__(self, job: Job, devices: list[jax.Device]) -> None:
        """Make the initial parameters; nothing is read or written yet."""
        self.job = job
        self._devices = devices
        self._mesh = None if len(devices) == 1 else Mesh(np.reshape(np.asarray(devices), (-1, 1)), ("data", "model"))
        self._functions = job.architecture.jax_functions()
        self._optimizer = make_optimizer(job)
        self._params = self._placed(self._functions.init(job.config, job.options.seed))
        self._state: Any = self._optimizer.init(self._params)

    def step(self, batch: Batch, factor: float) -> tuple[Array, Array]:
        """Train on a batch of (accumulate, rows, context), at this share of the peak learning rate."""
        one = self.job.options.accumulate == 1
        self._params, self._state, loss = self._functions.train_step(
            self._params,
            self._state,
            {name: array[0] if one else array for name, array in batch.items()},
            self.job.config,
            self._optimizer,
            rate=np.float32(factor),
            precision=self.job.options.precision,
            mesh=self._mesh,
        )
        return loss, norm_of(self._state)

    def load(self, checkpoint: Path, *, optimizer: bool) -> None:
        """Take the parameters of a checkpoint, and what AdamW knows."""
        check_model(checkpoint, self.job.config)
        params = read_tensors(checkpoint / WEIGHTS)
        self._params = self._placed(self._functions.from_params(params, self.job.config))
        if optimizer:
            shapes = {name: p.shape for name, p in moments_of(self._state).mu.items()}
            moments = read_moments(checkpoint, shapes)
            placed = moments._replace(mu=self._placed(moments.mu), nu=self._placed(moments.nu))
            self._state = set_moments(self._state, placed)

    def write(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""
        job = self.job
        joined = job.options.join_documents
        write_model(folder, self.parameters(), job.config, job.data.tokenizer, join_documents=joined)
        write_moments(folder, self._params, self._state)

    def parameters(self, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, NDArray[Any]]:
        """Return the parameters whose names are wanted as NumPy arrays."""
        return {name: np.array(p) for name, p in self._params.items() if wanted(name)}

    def model(self) -> JaxModel:
        """Return the model as it is now, to be measured and to write."""
        rows = self.job.options.batch * len(self._devices)
        precision = self.job.options.precision
        return JaxModel(self._params, self.job.config, rows=rows, precision=precision, mesh=self._mesh)

    def _placed(self, params: dict[str, Any]) -> dict[str, Array]:
        """Return parameters, or what is kept for each, on every device."""
        if self._mesh is None:
            return cast("dict[str, Array]", jax.device_put(params, self._devices[0]))
        by_name, _ = self._functions.shardings(self.job.config, self._mesh)
        return {name: jax.device_put(p, by_name[name]) for name, p in params.items()}


def make_optimizer(job: Job) -> Any:
    """Return AdamW of the architecture, with the norm of the last gradient in its state."""
    options = job.options
    return with_norm(
        job.architecture.jax_functions().optimizer(
            job.config,
            learning_rate=job.learning_rate,
            weight_decay=options.weight_decay,
            beta1=options.beta1,
            beta2=options.beta2,
            clip=options.clip,
        )
    )
