"""Training in JAX: a loop of our own, for there is no well-kept one that asks for no other library of layers."""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from tmm_adapters.jax import from_params, init, optimizer, train_step
from tmm_adapters.jax.model import Precision
from tmm_adapters.jax.sharding import shardings
from tmm_adapters.pretrained import WEIGHTS, read_tensors, write_json, write_model

from ...evaluation.measure import Windows, continuation, held_out_nats
from ..checkpoints import check_model
from ..course import Course
from ..learner import Work
from ..moments import ORBAX, read_moments
from . import state as jax_state
from .measure import JaxModel

__all__ = ["JaxTrainer"]

_TRAINER_STATE = "trainer_state.json"


class JaxTrainer:
    """Train the parameters of a model in the folder of a run.

    Parameters
    ----------
    work : Work
        What to train, on what, and where it is kept.
    devices : list of jax.Device
        Each computes a batch of every step.
    """

    def __init__(self, work: Work, devices: list[jax.Device]) -> None:
        """Make the initial parameters; nothing is read or written yet."""
        options = work.options
        self.work = work
        self.course: Course
        self._devices = devices
        self._mesh = None if len(devices) == 1 else Mesh(np.reshape(np.asarray(devices), (-1, 1)), ("data", "model"))
        self._precision = cast(Precision, options.precision)
        self._optimizer = _telling_norm(
            optimizer(
                work.config,
                learning_rate=options.learning_rate or 0.0,
                weight_decay=options.weight_decay,
                beta1=options.beta1,
                beta2=options.beta2,
                clip=options.clip,
            )
        )
        self._params = self._laid(init(work.config, options.seed))
        self._state: Any = self._optimizer.init(self._params)

    # What a `Learner` does

    def train(self, course: Course, checkpoint: Path | None) -> None:
        """Do the steps from `checkpoint` on."""
        self.course = course
        if checkpoint is not None:
            self.load(checkpoint)
            self._set_moments(checkpoint)
        course.begin()
        step, total, steps = course.first_step, 0.0, 0
        batch = self._batch(step)
        while True:
            factor = course.learning_rate_factor(step)
            self._params, self._state, loss = train_step(
                self._params,
                self._state,
                batch,
                self.work.config,
                self._optimizer,
                rate=np.float32(factor),
                precision=self._precision,
                mesh=self._mesh,
            )
            step += 1
            batch = self._batch(step)  # read while the device computes
            total, steps = total + float(loss), steps + 1
            decision = course.step_done(step)
            if decision.log:
                norm, rate = float(self._state["norm"]), (self.work.options.learning_rate or 0.0) * factor
                course.log({"loss": total / steps, "grad_norm": norm, "learning_rate": rate})
                total, steps = 0.0, 0
            if decision.evaluate:
                course.evaluate()
            if decision.save:
                course.save()
            if decision.stop:
                return

    def load(self, checkpoint: Path) -> None:
        """Take the parameters of a checkpoint."""
        check_model(checkpoint, self.work.config)
        self._params = self._laid(from_params(read_tensors(checkpoint / WEIGHTS), self.work.config))

    def parameters(self, containing: str = "") -> dict[str, NDArray[Any]]:
        """Return the parameters whose names contain a word as NumPy arrays."""
        return {name: np.array(p) for name, p in self._params.items() if containing in name}

    def nats(self, windows: Windows, *, stop: Callable[[], bool] = lambda: False) -> float:
        """Return the cross-entropy of `windows`."""
        rows = self.work.options.batch * len(self._devices)
        return held_out_nats(self._model(rows), windows, batch=rows, stop=stop)

    def text(self, prompt: str, n_tokens: int) -> tuple[str, int]:
        """Return how the model continues `prompt`."""
        return continuation(self._model(), self.work.tokenizer, prompt, n_tokens, seed=self.work.options.seed)

    def write_state(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""
        write_model(folder, self.work.config, self.parameters(), tokenizer=self.work.tokenizer)
        adam = self._adam()
        state = {"params": self._params, "mu": adam.mu, "nu": adam.nu, "step": adam.count}
        jax_state.write_state(folder / ORBAX, state)
        # What Hugging Face's Trainer looks for, should PyTorch go on with the run.
        trainer_state = {"global_step": self.course.step, "train_batch_size": self.work.options.batch}
        write_json(folder / _TRAINER_STATE, trainer_state)

    def report(self, figures: dict[str, float]) -> None:
        """Do nothing: no service follows the run."""

    def _model(self, rows: int = 1) -> JaxModel:
        return JaxModel(self._params, self.work.config, rows=rows, precision=self._precision, mesh=self._mesh)

    # Data

    def _batch(self, step: int) -> dict[str, Any]:
        """Return the samples of the step after `step`, (b, n), or (a, b, n) where gradients are accumulated."""
        context, accumulate = self.work.config.max_len, self.work.options.accumulate
        rows = self.course.tokens_per_step // context
        batch = self.work.samples.__getitems__(range(step * rows, (step + 1) * rows))
        shape = (rows, context) if accumulate == 1 else (accumulate, rows // accumulate, context)
        return {name: array.reshape(shape) for name, array in batch.items()}

    # Arrays on devices

    def _laid(self, params: dict[str, Any]) -> dict[str, Array]:
        """Return parameters, or what is kept for each, on every device."""
        if self._mesh is None:
            return cast("dict[str, Array]", jax.device_put(params, self._devices[0]))
        by_name, _ = shardings(self.work.config, self._mesh)
        return {name: jax.device_put(p, by_name[name]) for name, p in params.items()}

    def _adam(self) -> Any:
        """Return what AdamW keeps, with the fields `count`, `mu` and `nu`."""
        return next(part for part in self._state["inner"] if isinstance(part, optax.ScaleByAdamState))

    def _set_moments(self, checkpoint: Path) -> None:
        """Take what AdamW knows from a checkpoint."""
        moments = read_moments(checkpoint, self.work.config)
        count = jax.device_put(np.asarray(moments.steps, np.int32), self._adam().count.sharding)
        adam = optax.ScaleByAdamState(count, self._laid(moments.mu), self._laid(moments.nu))
        inner = (adam if isinstance(part, optax.ScaleByAdamState) else part for part in self._state["inner"])
        self._state = {**self._state, "inner": tuple(inner)}


@functools.cache  # a program is compiled for each
def _telling_norm(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return `inner` with the norm of the last gradient in its state, for the records."""

    def first_state(params: Any) -> Any:
        state = inner.init(params)
        count = next(part for part in state if isinstance(part, optax.ScaleByAdamState)).count
        return {"norm": jnp.zeros_like(count, jnp.float32), "inner": state}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        changes, kept = inner.update(updates, state["inner"], params)
        return changes, {"norm": optax.tree_utils.tree_norm(updates).astype(jnp.float32), "inner": kept}

    return optax.GradientTransformation(first_state, update)
