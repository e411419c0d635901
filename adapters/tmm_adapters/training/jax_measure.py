"""A model in JAX, to be measured and to write."""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from tmm_core import TMMConfig
from tmm_core._registry import chosen_backend
from tmm_core.lm import IGNORED

from ..folder import load_params
from ..jax import Precision, apply, from_params, loss
from ..tokenizers import Tokenizer
from .jax_devices import devices_of
from .measure import Batch

__all__ = ["JaxModel", "open_model"]

_TOKENS = 64  # what sequences are padded to a multiple of, times a power of two: a program is compiled for each length


class JaxModel:
    """Parameters in JAX.

    Parameters
    ----------
    params : mapping of names to arrays
        On one device, or shared by those of `mesh`.
    config : TMMConfig
        The model.
    rows : int
        Of a batch; smaller ones are filled up to it, so that a program is compiled for one shape only.
    precision : {"float32", "bfloat16"}
        As in `tmm_adapters.jax.apply`.
    mesh : jax.sharding.Mesh, optional
        Devices that share batches.
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        config: TMMConfig,
        *,
        rows: int = 1,
        precision: Precision = "float32",
        mesh: Mesh | None = None,
    ) -> None:
        """Measure `params`."""
        self.params = params
        self.config = config
        self._rows = rows
        self._precision = precision
        self._mesh = mesh

    def nats(self, batch: Batch) -> float:
        """Return the summed cross-entropy (nats) of the targets of a batch."""
        lacking = max(0, self._rows - len(batch["targets"]))
        filled = {name: np.pad(array, ((0, lacking), (0, 0)), mode="edge") for name, array in batch.items()}
        filled["targets"][len(batch["targets"]) :] = IGNORED
        mean = _mean_nats(
            self.params,
            filled.pop("input_ids"),
            config=self.config,
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
        *,
        stop_token: int,
        seed: int,
        temperature: float,
        top_k: int | None,
        top_p: float,
    ) -> Generator[list[int]]:
        """Yield up to `n_tokens` times the next token of each prompt; see `measure.Model`."""
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        seeds = np.random.SeedSequence(seed).spawn(len(prompts))
        rows = [
            self._continued(ids, n_tokens, stop_token, each, options) for ids, each in zip(prompts, seeds, strict=True)
        ]
        while True:
            tokens = [next(row, None) for row in rows]
            if all(token is None for token in tokens):
                return
            yield [stop_token if token is None else token for token in tokens]

    def _continued(
        self, ids: Sequence[int], n_tokens: int, stop_token: int, seed: Any, options: dict[str, Any]
    ) -> Generator[int]:
        """Yield the tokens of one row, as they are drawn."""
        rng = np.random.default_rng(seed)
        # What devices share whole is on the first of them, and one sequence is not worth sharing.
        params = {name: p.addressable_data(0) for name, p in self.params.items()}
        tokens = np.zeros((1, _padded(len(ids) + n_tokens, self.config)), np.int32)
        tokens[0, : len(ids)] = ids
        for n in range(len(ids), len(ids) + n_tokens):
            if n > tokens.shape[1]:
                return
            logits = _last_logits(
                params, tokens, n - 1, config=self.config, precision=self._precision, backend=chosen_backend()
            )
            token = draw(np.asarray(logits, np.float32), rng=rng, **options)
            yield token
            if token == stop_token:
                return
            if n < tokens.shape[1]:
                tokens[0, n] = token


def open_model(folder: Path, *, device: str) -> tuple[JaxModel, Tokenizer]:
    """Return the model in a model folder, ready to use, and its tokenizer.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is damaged, the weights are not those of the configuration, the tokenizer does not fit, or the device
        is not there.
    """
    params, config, tokenizer = load_params(folder)
    where = devices_of(device)[0]
    return JaxModel(jax.device_put(from_params(params, config), where), config, rows=8), tokenizer


def draw(
    logits: NDArray[np.float32], temperature: float, top_p: float, rng: np.random.Generator, top_k: int | None = None
) -> int:
    """Return one token, drawn from the likeliest: from the fewest that have the probability `top_p` among the `top_k`.

    Raises
    ------
    ValueError
        If the logits are not finite.
    """
    if not np.isfinite(logits.max()):
        raise ValueError("the model's logits are not finite: its weights are damaged, or too large for their dtype")
    if temperature == 0:
        return int(logits.argmax())
    scaled = (logits - logits.max()).astype(np.float64) / max(temperature, 1e-38)
    order = np.argsort(-scaled, kind="stable")[:top_k]
    p = np.exp(scaled[order])
    p /= p.sum()
    p[1:] = np.where(np.cumsum(p) - p < top_p, p, 0)[1:]  # the first is always in
    return int(rng.choice(order, p=p / p.sum()))


@functools.partial(jax.jit, static_argnames=("config", "precision", "mesh", "backend"))
def _mean_nats(params: Any, input_ids: Any, *, config: TMMConfig, batch: Any, **how: Any) -> Array:
    return loss(params, input_ids, config, **batch, **how)


@functools.partial(jax.jit, static_argnames=("config", "precision", "backend"))
def _last_logits(params: Any, tokens: Any, last: Any, *, config: TMMConfig, **how: Any) -> Array:
    """Return the logits at the position `last` of one row; what follows it is padding, and no past looks ahead."""
    logits: Array = jax.lax.dynamic_index_in_dim(apply(params, tokens, config, **how)[0], last, keepdims=False)
    return logits.astype(jnp.float32)


def _padded(n: int, config: TMMConfig) -> int:
    """Return the length of the array that holds `n` tokens, or as many as the position bias has places for."""
    length = _TOKENS
    while length < n:
        length *= 2
    return min(length, config.max_len) if config.position_bias and config.n_layers else length
