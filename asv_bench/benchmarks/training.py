"""Training of a whole model (d 512, 4 layers, vocabulary 8000), and against it with another token mixing, or in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tmm_core
from tmm_core import TMMConfig
from tmm_lab.bench import Schedule, compare, take_turns

from . import BACKEND, RATIO, check_same, lengths, measures, ready, require, samples
from ._baselines import MOST_DENSE

Step = Callable[[], float]
"""Takes a step of AdamW, and returns the loss."""
Mixing = Callable[[Any, Any, Any], Any]
"""Of lags, signals and bias."""

CONTEXTS = lengths(512, 1024, 2048, 4096, 8192, 16384)
HEADS: tuple[int, ...] = (0, 4)
"""The paper's flat layer, without projections, and four heads between two projections."""
SCHEDULE = Schedule(seconds=20.0, turns=3)
TOKENS = 8192
"""Tokens of a step, in as many sequences; one sequence at least."""
RATE = 1e-5
"""Of learning: so little that losses stay comparable."""


def no_mixing(w: Any, x: Any, bias: Any) -> Any:
    """Mix nothing."""
    return x


def dense_mixing(w: Any, x: Any, bias: Any) -> Any:
    """Multiply by the dense matrix: a view of the lags holds it upside down, against the time-reversed signal."""
    torch = require("torch")
    heads, n = w.shape[0], x.shape[-2]
    lags = torch.cat([w.new_zeros(heads, n - 1), w[:, :n]], dim=1)
    matrices = lags.unfold(1, n, 1)  # (h, n, n)
    parts = x.flip(-2).reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)  # (b, h, n, d/h)
    y = (matrices @ parts).transpose(-3, -2).flatten(-2)  # (b, n, d)
    return y if bias is None else y + bias[:, :n].T.repeat_interleave(x.shape[-1] // heads, dim=-1)


def torch_step(config: TMMConfig, tokens: int, mixing: Mixing | None = None, segment_ids: Any = None) -> Step:
    """Return a step in PyTorch; `mixing` replaces what is between the projections of each layer."""
    torch, models = require("torch"), require("tmm_adapters.torch")
    model = models.LanguageModel(config)
    for layer in model.modules():
        if mixing is not None and isinstance(layer, models.TokenMixing):
            layer.forward = partial(_mixed_by, layer, mixing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    ids = torch.from_numpy(token_ids(config, tokens))

    def step() -> float:
        loss = model(ids, labels=ids, segment_ids=segment_ids)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _mixed_by(layer: Any, mixing: Mixing, x: Any, *_: None) -> Any:
    return layer.out_proj(mixing(layer.lags, layer.in_proj(x), layer.bias))


def jax_step(config: TMMConfig, tokens: int) -> Step:
    """Return the same step of the same model in JAX."""
    jax = require("tmm_adapters.jax")
    params = jax.init(config)
    adamw = jax.optimizer(config, learning_rate=RATE, weight_decay=0.01, beta1=0.9, beta2=0.999, clip=0)  # Torch's
    state, batch = adamw.init(params), {"input_ids": token_ids(config, tokens)}

    def step() -> float:
        nonlocal params, state
        params, state, loss = jax.train_step(params, state, batch, config, adamw)
        return float(loss)

    return step


def dense_step(config: TMMConfig, tokens: int) -> Step:
    """Return the same step with dense matrices."""
    if config.max_len > MOST_DENSE:
        raise NotImplementedError(f"a step with dense matrices of {config.max_len} rows takes minutes")
    return torch_step(config, tokens, dense_mixing)


BASELINES: dict[str, Callable[[TMMConfig, int], Step]] = {
    "no mixing": partial(torch_step, mixing=no_mixing),
    "dense T @ x": dense_step,
    "in JAX": jax_step,
}
"""By the name that tables print; with no mixing it is another model, which bounds what mixing may cost."""


def token_ids(config: TMMConfig, tokens: int) -> Any:
    """Return random tokens in sequences of the model's length."""
    shape = (max(1, tokens // config.max_len), config.max_len)
    return np.random.default_rng(0).integers(config.vocab_size, size=shape)


def model_config(context: int, n_heads: int) -> TMMConfig:
    """Return the model that is trained."""
    return TMMConfig(d_model=512, n_layers=4, n_heads=n_heads, vocab_size=8000, max_len=context)


class Training:
    """A step of training."""

    params = (CONTEXTS, HEADS)
    param_names = ("context", "heads")

    def setup(self, context: int, heads: int) -> None:
        """Take the first step, which compiles."""
        ready()
        self.step = torch_step(model_config(context, heads), TOKENS)
        with tmm_core.use_backend(BACKEND):
            self.step()

    @measures("training", "us a token")
    def track_token(self, context: int, heads: int) -> dict[str, Any]:
        """Train."""
        with tmm_core.use_backend(BACKEND):
            (seconds,) = take_turns([self.step], Schedule(seconds=5.0, turns=3))
        return samples(1e6 * s / max(context, TOKENS) for s in seconds)


class TrainingAgainst:
    """A step of training, in turns with the same done otherwise."""

    params = (CONTEXTS, HEADS, tuple(BASELINES))
    param_names = ("context", "heads", "baseline")
    schedule, tokens = SCHEDULE, TOKENS

    def setup(self, context: int, heads: int, baseline: str) -> None:
        """Make both."""
        ready()
        config = model_config(context, heads)
        self.ours, self.theirs = torch_step(config, self.tokens), BASELINES[baseline](config, self.tokens)

    @measures("training, against others", RATIO)
    def track_step(self, context: int, heads: int, baseline: str) -> dict[str, Any]:
        """Train in turns."""
        check = None if baseline == "no mixing" else partial(check_same, baseline)
        with tmm_core.use_backend(BACKEND):
            return samples(compare(self.ours, self.theirs, self.schedule, check=check))
