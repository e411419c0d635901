"""Training of the paper's model in NumPy, with gradients written out: what those of the frameworks are held against.

A second way to the same numbers that shares no code with autodiff: each layer returns its output and how a cotangent
of the output goes back, to its input and into the gradients of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmm_core import TMMConfig, causal_toeplitz_correlate, causal_toeplitz_matmul, lm, mix_tokens

from .inputs import Training

__all__ = ["loss_and_gradients", "loss_curve"]

Numbers = NDArray[Any]
Params = dict[str, Numbers]
Back = Callable[[Numbers], Numbers]


def loss_curve(training: Training, dtype: str) -> Numbers:
    """Return the loss before each step of AdamW, (steps,)."""
    t, p = training, training.params(dtype)
    mu, nu = ({name: np.zeros_like(a) for name, a in p.items()} for _ in range(2))
    losses, decayed = [], lm.decayed_names(t.config)
    for step, ids in enumerate(training.batches(), start=1):
        loss, grads = loss_and_gradients(p, ids, t.config)
        losses.append(loss)
        norm = np.sqrt(sum(np.sum(g * g) for g in grads.values()))
        scale = min(1.0, t.clip / (norm + 1e-6))
        for name, a in p.items():
            g = grads[name] * scale
            mu[name] = t.beta1 * mu[name] + (1 - t.beta1) * g
            nu[name] = t.beta2 * nu[name] + (1 - t.beta2) * g * g
            mean, square = mu[name] / (1 - t.beta1**step), nu[name] / (1 - t.beta2**step)
            decay = t.weight_decay * a if name in decayed else 0
            p[name] = (a - t.learning_rate * (mean / (np.sqrt(square) + t.eps) + decay)).astype(dtype)
    return np.asarray(losses)


def loss_and_gradients(p: Params, ids: Numbers, config: TMMConfig) -> tuple[float, Params]:
    """Return the loss of the paper's block with heads, and its gradient for every parameter."""
    grads: Params = {}
    x, backs = p["embed.weight"][ids], []
    for i in range(config.n_layers):
        for half in (_mlp, _mix):
            y, back = half(p, grads, f"blocks.{i}.", x)
            x = x + y
            backs.append(back)
    logits, to_x = _linear(p, grads, "unembed", x)
    loss, dlogits = _cross_entropy(logits, ids)
    dx = to_x(dlogits)
    for back in reversed(backs):
        dx = dx + back(dx)
    grads["embed.weight"] = np.zeros_like(p["embed.weight"])
    np.add.at(grads["embed.weight"], ids, dx)
    return loss, grads


def _mlp(p: Params, grads: Params, block: str, x: Numbers) -> tuple[Numbers, Back]:
    x, norm_back = _norm(p, grads, block + "mlp_norm", x)
    x, up_back = _linear(p, grads, block + "mlp.up", x)
    half = 0.5 * (1 + np.tanh(0.5 * x))  # the logistic function
    y, down_back = _linear(p, grads, block + "mlp.down", x * half)
    return y, lambda dy: norm_back(up_back(down_back(dy) * half * (1 + x * (1 - half))))


def _mix(p: Params, grads: Params, block: str, x: Numbers) -> tuple[Numbers, Back]:
    x, norm_back = _norm(p, grads, block + "mix_norm", x)
    z, in_back = _linear(p, grads, block + "mix.in_proj", x)
    w, bias = p[block + "mix.lags"], p[block + "mix.bias"]
    y, out_back = _linear(p, grads, block + "mix.out_proj", mix_tokens(w, z, bias))
    heads, n = w.shape[0], z.shape[1]

    def back(dy: Numbers) -> Numbers:
        dm = out_back(dy)
        grads[block + "mix.lags"] = causal_toeplitz_correlate(z, dm, lags=w.shape[-1], heads=heads)
        at_positions = dm.reshape(-1, n, heads, dm.shape[-1] // heads).sum(axis=(0, 3)).T  # (h, n)
        grads[block + "mix.bias"] = np.pad(at_positions, [(0, 0), (0, bias.shape[1] - n)])
        return norm_back(in_back(causal_toeplitz_matmul(w, dm, adjoint=True)))

    return y, back


def _linear(p: Params, grads: Params, name: str, x: Numbers) -> tuple[Numbers, Back]:
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")

    def back(dy: Numbers) -> Numbers:
        flat = dy.reshape(-1, dy.shape[-1])
        grads[f"{name}.weight"] = flat.T @ x.reshape(-1, x.shape[-1])
        if bias is not None:
            grads[f"{name}.bias"] = flat.sum(0)
        return np.asarray(dy @ weight)

    y = x @ weight.T
    return y if bias is None else y + bias, back


def _norm(p: Params, grads: Params, name: str, x: Numbers) -> tuple[Numbers, Back]:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    unit, weight = centred / deviation, p[f"{name}.weight"]

    def back(dy: Numbers) -> Numbers:
        grads[f"{name}.weight"], grads[f"{name}.bias"] = (dy * unit).sum((0, 1)), dy.sum((0, 1))
        du = dy * weight
        mean = du.mean(-1, keepdims=True)
        return np.asarray((du - mean - unit * (du * unit).mean(-1, keepdims=True)) / deviation)

    return unit * weight + p[f"{name}.bias"], back


def _cross_entropy(logits: Numbers, ids: Numbers) -> tuple[float, Numbers]:
    """Return the mean loss of each token given those before it, and its gradient for the logits."""
    top = logits[:, :-1].max(-1, keepdims=True)
    exp = np.exp(logits[:, :-1] - top)
    total = exp.sum(-1, keepdims=True)
    hit = np.eye(logits.shape[-1], dtype=logits.dtype)[ids[:, 1:]]
    nats = (np.log(total) + top)[..., 0] - (logits[:, :-1] * hit).sum(-1)
    dlogits = np.zeros_like(logits)
    dlogits[:, :-1] = (exp / total - hit) / nats.size
    return float(nats.mean()), dlogits
