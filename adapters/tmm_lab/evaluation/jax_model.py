"""A model in JAX, to be measured and to write."""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from tmm_adapters.architecture import JaxFunctions, ModelConfig, get_architecture
from tmm_adapters.devices import jax_devices
from tmm_adapters.generation import Sampling
from tmm_adapters.pretrained import load_params
from tmm_core import chosen_backend
from tmm_core.backend import with_jax_defaults
from tmm_core.lm import IGNORED

from .measure import Batch

__all__ = ["JaxModel", "open_model"]

_AT_A_TIME = 8  # tokens: enough to keep the device busy, few enough to be read as they come


class JaxModel:
    """Parameters in JAX.

    Parameters
    ----------
    params : mapping of names to arrays
        On one device, or shared by those of `mesh`.
    config : ModelConfig
        The model.
    rows : int
        Of a batch; smaller ones are filled up to it, so that a program is compiled for one shape only.
    precision : {"float32", "bfloat16"}
        Of the arithmetic.
    mesh : jax.sharding.Mesh, optional
        Devices that share batches.
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        config: ModelConfig,
        *,
        rows: int = 1,
        precision: str = "float32",
        mesh: Mesh | None = None,
    ) -> None:
        """Measure `params`."""
        architecture = get_architecture(config.model_type)
        self.params = params
        self.max_len = config.max_len
        self.longest_text = architecture.longest_text(config)
        self._config = config
        self._functions = architecture.jax_functions()
        self._rows = rows
        self._precision = precision
        self._mesh = mesh

    @with_jax_defaults
    def nats(self, batch: Batch) -> float:
        """Return the summed cross-entropy (nats) of the targets of a batch."""
        lacking = max(0, self._rows - len(batch["targets"]))
        filled = {name: np.pad(array, ((0, lacking), (0, 0)), mode="edge") for name, array in batch.items()}
        filled["targets"][len(batch["targets"]) :] = IGNORED
        mean = _mean_nats(
            self.params,
            filled.pop("input_ids"),
            config=self._config,
            functions=self._functions,
            batch=filled,
            precision=self._precision,
            mesh=self._mesh,
            backend=chosen_backend(),
        )
        return float(mean) * int((batch["targets"] != IGNORED).sum())

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        n_tokens: int,
        sampling: Sampling,
        *,
        eos_token_id: int,
        seed: int,
    ) -> Generator[list[int]]:
        """Yield up to `n_tokens` times the next token of each prompt; see `measure.Model`."""
        # What devices share whole is on the first of them, and a few sequences are not worth sharing.
        params = {name: p.addressable_data(0) for name, p in self.params.items()}
        longest = max(map(len, prompts))
        ids = np.asarray([[eos_token_id] * (longest - len(row)) + list(row) for row in prompts])
        mask = np.asarray([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        for tokens in self._functions.new_tokens(
            params,
            ids,
            self._config,
            n_tokens,
            sampling=sampling,
            attention_mask=mask,
            seed=seed % (1 << 64),
            eos_token_id=eos_token_id,
            at_a_time=_AT_A_TIME,
            end_where_full=True,
            precision=self._precision,
        ):
            yield from tokens.T.tolist()


def open_model(folder: Path, *, device: str) -> JaxModel:
    """Return the model in a model folder, ready to use.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is damaged, the weights are not those of the configuration, the tokenizer does not fit, or the device
        is not there.
    """
    params, config, _ = load_params(folder)
    where, functions = jax_devices(device)[0], get_architecture(config.model_type).jax_functions()
    return JaxModel(jax.device_put(functions.from_params(params, config), where), config, rows=8)


@functools.partial(jax.jit, static_argnames=("config", "functions", "precision", "mesh", "backend"))
def _mean_nats(
    params: Any, input_ids: Any, *, config: ModelConfig, functions: JaxFunctions, batch: Any, **options: Any
) -> Array:
    loss: Array = functions.loss(params, input_ids, config, **batch, **options)
    return loss
