"""Training speed of a whole model, against the same with its token mixing done otherwise or left out, and in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import tmm_core
from tmm_core import TMMConfig

from .measure import agree
from .process import wanted
from .rivals import MOST_DENSE
from .turns import Pace, Ratio, compare

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from tmm_adapters.torch import TokenMixing

__all__ = [
    "CONTEXTS",
    "OTHERS",
    "TRAINING",
    "compare_training",
    "dense_mixing",
    "jax_training_step",
    "no_mixing",
    "training_step",
]

Mixing = Callable[["Tensor", "Tensor", "Tensor | None"], "Tensor"]

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384)
TRAINING = Pace(seconds=20.0, turns=3)
RATE = 1e-5
"""Of learning: so little that losses stay comparable."""


def no_mixing(w: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Mix nothing."""
    return x


def dense_mixing(w: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply by the dense matrix: a view of the lags holds it upside down, against the time-reversed signal."""
    import torch

    heads, n = w.shape[0], x.shape[-2]
    lags = torch.cat([w.new_zeros(heads, n - 1), w[:, :n]], dim=1)
    matrices = lags.unfold(1, n, 1)  # (h, n, n)
    parts = x.flip(-2).reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)  # (b, h, n, d/h)
    y: Tensor = (matrices @ parts).transpose(-3, -2).flatten(-2)  # (b, n, d)
    return y if bias is None else y + bias[:, :n].T.repeat_interleave(x.shape[-1] // heads, dim=-1)


def training_step(config: TMMConfig, mixing: Mixing | None = None, tokens_a_step: int = 8192) -> Callable[[], float]:
    """Return one step of training with AdamW as a callable without arguments, which returns the loss.

    Parameters
    ----------
    config : TMMConfig
        The model.
    mixing : callable, optional
        Replaces what is between the projections of each layer: from lags, signals and position bias to mixed signals.
    tokens_a_step : int
        Tokens of a step, in sequences of `config.max_len`; one sequence at least.

    Raises
    ------
    NotImplementedError
        If Torch is missing.
    """
    with wanted("torch"):
        import torch

    from tmm_adapters.torch import LanguageModel, TokenMixing

    model = LanguageModel(config)
    if mixing is not None:
        for layer in model.modules():
            if isinstance(layer, TokenMixing):
                layer.forward = partial(_replaced, layer, mixing)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    tokens = torch.from_numpy(_tokens(config, tokens_a_step))

    def step() -> float:
        loss = model(tokens, labels=tokens)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def jax_training_step(config: TMMConfig, tokens_a_step: int = 8192) -> Callable[[], float]:
    """Return the same step of the same model in JAX.

    Raises
    ------
    NotImplementedError
        If JAX or optax is missing.
    """
    with wanted("jax"):
        from tmm_adapters import jax as in_jax

    params = in_jax.init(config)
    adamw = in_jax.optimizer(config, learning_rate=RATE, weight_decay=0.01, beta1=0.9, beta2=0.999, clip=0)  # Torch's
    state, batch = adamw.init(params), {"input_ids": _tokens(config, tokens_a_step)}

    def step() -> float:
        nonlocal params, state
        params, state, loss = in_jax.train_step(params, state, batch, config, adamw)
        return float(loss)

    return step


OTHERS: dict[str, Callable[[TMMConfig, int], Callable[[], float]]] = {
    "no mixing": lambda config, tokens: training_step(config, no_mixing, tokens),
    "dense T @ x": lambda config, tokens: training_step(config, dense_mixing, tokens),
    "in JAX": jax_training_step,
}
"""What training is compared with, by the name that tables print."""


def _tokens(config: TMMConfig, tokens_a_step: int) -> NDArray[np.int64]:
    shape = (max(1, tokens_a_step // config.max_len), config.max_len)
    return np.random.default_rng(0).integers(config.vocab_size, size=shape)


def compare_training(
    context: int, n_heads: int, other: str, backend: str, pace: Pace = TRAINING, tokens_a_step: int = 8192
) -> Ratio:
    """Return the speed of training over that of another one, at d 512, 4 layers and a vocabulary of 8000.

    Parameters
    ----------
    context : int
        Positions.
    n_heads : int
        Filters a layer between two projections; 0 is one filter without projections.
    other : str
        A name in `OTHERS`.
    backend : str
        Who computes the products of ours, and of those in JAX.
    pace : Pace
        How long they take turns.
    tokens_a_step : int
        Tokens of a step.

    Raises
    ------
    NotImplementedError
        If a library is missing, or a dense matrix of that size would take minutes a step.
    RuntimeError
        If the dense matrix or JAX comes to another loss.
    """
    if other == "dense T @ x" and context > MOST_DENSE:
        raise NotImplementedError(f"a step with dense matrices of {context} rows takes minutes")
    config = TMMConfig(d_model=512, n_layers=4, n_heads=n_heads, vocab_size=8000, max_len=context)
    ours, theirs = training_step(config, tokens_a_step=tokens_a_step), OTHERS[other](config, tokens_a_step)
    check = None if other == "no mixing" else partial(agree, other)
    with tmm_core.use_backend(backend):
        return compare(ours, theirs, pace, check=check)


def _replaced(layer: TokenMixing, mixing: Mixing, x: Tensor, *_: None) -> Tensor:
    """Return what the layer would, were its product `mixing`, which knows of no documents."""
    y: Tensor = layer.out_proj(mixing(layer.lags, layer.in_proj(x), layer.bias))
    return y
