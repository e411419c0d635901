"""How the JAX model is trained: AdamW as PyTorch computes it, and a step."""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax import Array, lax
from jax.sharding import Mesh

from tmm_core import TMMConfig, chosen_backend, lm
from tmm_core.backend import with_jax_defaults
from tmm_core.errors import InputTypeError

from .batches import check_batch, check_params, targets_of
from .model import ComputeOptions, Params, Precision, apply, at_least_float32, cross_entropy
from .sharding import constrain, replicate

__all__ = ["optimizer", "train_step"]


@functools.cache
def optimizer(
    config: TMMConfig,
    *,
    learning_rate: float,
    weight_decay: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.95,
    clip: float = 1.0,
) -> optax.GradientTransformation:
    """Return AdamW as `torch.optim.AdamW` computes it, for the parameters that are trained; equal calls return one.

    Parameters
    ----------
    config : TMMConfig
        The model: its frozen parameters have no state, and only the weights of linear maps decay.
    learning_rate : float
        The peak; a step takes the share of it that `train_step` is given.
    weight_decay, beta1, beta2, clip : float
        As in `TrainingOptions`: `clip` is the largest norm of the gradient, and 0 does not clip.

    Returns
    -------
    optax.GradientTransformation
        Its state holds, beside the number of steps, `mu` and `nu` by the names of the parameters that are trained.

    Examples
    --------
    >>> from tmm_adapters.jax import init
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> state = optimizer(config, learning_rate=0.01).init(init(config))
    >>> optax.tree_utils.tree_get(state, "mu")["embed.weight"].shape
    (5, 4)
    """
    frozen, decayed = lm.frozen_names(config), lm.decayed_names(config)
    inner = optax.chain(
        _clipped(clip) if clip > 0 else optax.identity(),
        optax.scale_by_adam(b1=beta1, b2=beta2, eps=1e-8),
        optax.add_decayed_weights(weight_decay, mask=lambda params: {name: name in decayed for name in params}),
        optax.scale_by_learning_rate(learning_rate),
    )

    @with_jax_defaults
    def first_state(params: Any) -> Any:
        return replicate(params, inner.init({name: p for name, p in params.items() if name not in frozen}))

    return optax.GradientTransformation(first_state, with_jax_defaults(inner.update))


@with_jax_defaults
def train_step(
    params: Params,
    opt_state: optax.OptState,
    batch: Mapping[str, Any],
    config: TMMConfig,
    optimizer: optax.GradientTransformation,
    *,
    rate: Any = 1.0,
    precision: Precision = "float32",
    mesh: Mesh | None = None,
    backend: str | None = None,
) -> tuple[dict[str, Array], optax.OptState, Array]:
    """Return the parameters and the optimiser's state after one step, and the loss before it.

    Parameters
    ----------
    params, opt_state
        Of the step before, or `init(config)` and `optimizer.init(params)`; donated: they hold nothing afterwards.
    batch : mapping
        `input_ids`, and `targets` or `labels`, `attention_mask` and `segment_ids` where there are any: the arguments of
        `loss`. With three axes (a, b, n) the gradients of `a` batches are added up: one step of `a * b` rows.
    config, precision, mesh, backend
        As in `apply`.
    optimizer : optax.GradientTransformation
        What `optimizer` returns; a program is compiled for each.
    rate : float or array, ()
        The share of the peak learning rate that this step takes.

    Returns
    -------
    params : dict of arrays
        Frozen ones as they were.
    opt_state
        Of the optimiser, one step on.
    loss : array, ()
        The mean over all targets of the batch that count, before the step; NaN, as the parameters then, if none does.

    Raises
    ------
    TypeError, ValueError
        As `loss`; a batch with anything else in it is refused, too.

    Notes
    -----
    Compiled once for each shape of the batch, `config`, `optimizer`, `precision`, `mesh` and backend. The gradients of
    accumulated batches are summed over all their targets, so `a` batches are one of `a` times the rows, exactly but for
    rounding, in the memory of one. The parameters' dtype is that of gradients and of what AdamW keeps.

    Examples
    --------
    >>> from tmm_adapters.jax import init
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> params, adamw = init(config), optimizer(config, learning_rate=0.01)
    >>> batch = {"input_ids": jnp.asarray([[1, 4, 2]])}
    >>> params, state, loss = train_step(params, adamw.init(params), batch, config, adamw)
    >>> loss.shape
    ()
    """
    options = ComputeOptions(precision, mesh, chosen_backend(backend))
    check_params(params, config)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise InputTypeError(f"optimizer must be what `optimizer` returns, got {type(optimizer).__name__}")
    batch = check_batch(batch, config, mesh, axes=(2, 3))
    stepped: tuple[dict[str, Array], optax.OptState, Array] = _train_step(
        dict(params), opt_state, batch, rate, config=config, optimizer=optimizer, options=options
    )
    return stepped


@functools.partial(jax.jit, static_argnames=("config", "optimizer", "options"), donate_argnums=(0, 1))
def _train_step(
    params: Any, opt_state: Any, batch: Any, rate: Any, *, config: TMMConfig, optimizer: Any, options: ComputeOptions
) -> Any:
    frozen = lm.frozen_names(config)
    trained = {name: p for name, p in params.items() if name not in frozen}
    targets = targets_of(batch)
    count = jnp.sum(targets != lm.IGNORED)

    def share_of_loss(trained: Any, rows: Any) -> Array:
        masks = {name: rows[name] for name in ("attention_mask", "segment_ids") if name in rows}
        logits = apply({**params, **trained}, rows["input_ids"], config, **masks, **options._asdict())
        return cross_entropy(logits, rows["targets"]) / count

    def add(total: Any, rows: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(share_of_loss)(trained, rows)), None

    batch = {**batch, "targets": targets}
    if targets.ndim == 2:
        value, grads = jax.value_and_grad(share_of_loss)(trained, batch)
    else:
        nothing = jnp.zeros((), at_least_float32(params["embed.weight"]).dtype), jax.tree.map(jnp.zeros_like, trained)
        (value, grads), _ = lax.scan(add, nothing, batch)
    updates, opt_state = optimizer.update(grads, opt_state, trained)
    moved = {name: p + (rate * updates[name]).astype(p.dtype) for name, p in trained.items()}
    return *constrain(({**params, **moved}, opt_state), config, options.mesh), value


def _clipped(most: float) -> optax.GradientTransformation:
    """Return Torch's clipping by the norm, whose 1e-6 optax leaves out."""

    def clip(updates: Any, _: Any) -> Any:
        scale = jnp.minimum(1.0, most / (optax.tree_utils.tree_norm(updates) + 1e-6))
        return jax.tree.map(lambda g: g * scale.astype(g.dtype), updates)

    return optax.stateless(clip)
