"""The public operations on JAX arrays, each as a function of arrays: for what must not change any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import tmm_core
from tmm_adapters import jax as model
from tmm_core import TMMConfig, lm

__all__ = ["ARRAYS", "CALLS", "CONFIG", "SERVED_BY_ENGINES"]

CONFIG = TMMConfig(vocab_size=7, max_len=16, d_model=4, n_layers=1, n_heads=2)
_rng = np.random.default_rng(0)
_x = _rng.standard_normal((2, 5, 4))

ARRAYS: dict[str, Any] = {
    "w": _rng.standard_normal((2, 3)),
    "x": _x,
    "g": _rng.standard_normal((2, 5, 4)),
    "bias": _rng.standard_normal((2, 12)),
    "short bias": _rng.standard_normal((2, 4)),
    "ids": np.asarray([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]),
    "long w": _rng.standard_normal((2, 150)),
    "long x": _rng.standard_normal((1, 150, 4)),
    "complex w": _rng.standard_normal((2, 3)) * 1j,
    "halves": _x.astype("float16"),
    "row": _rng.standard_normal((2, 5)),
    "prompt": _x[:, :3],
    "token": _x[:, 3],
    "padding": np.asarray([0, 1]),
    "order": np.asarray([1, 0]),
    "tokens": _rng.integers(0, 7, (2, 5)),
    "mask": np.asarray([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]),
    "params": lm.init_params(CONFIG, np.random.default_rng(0)),
}
"""What the operations are given, in NumPy; they compute nothing else, which could be what a mode forbids."""

matmul, correlate = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_correlate


def _stream(a: Any) -> Any:
    plan = tmm_core.stream_plan(a["w"], 12, bias=a["bias"], mean=True)
    state = tmm_core.stream_init(plan, (2,), 4)
    first, state = tmm_core.stream_prefill(plan, state, a["prompt"], padding=a["padding"])
    state = tmm_core.stream_reorder(tmm_core.stream_copy(state), a["order"])
    second, state = tmm_core.stream_step(plan, state, a["token"])
    third, state = tmm_core.stream_prefill(plan, state, a["x"])
    return first, second, third


def _trained(a: Any) -> Any:
    adamw = model.optimizer(CONFIG, learning_rate=0.1)
    params = model.from_params(ARRAYS["params"], CONFIG)  # which the step consumes
    batch = {"input_ids": a["tokens"], "attention_mask": a["mask"]}
    return model.train_step(params, adamw.init(params), batch, CONFIG, adamw)[::2]


SERVED_BY_ENGINES: dict[str, Callable[[Any], Any]] = {
    "product": lambda a: matmul(a["w"], a["x"]),
    "adjoint": lambda a: matmul(a["w"], a["x"], adjoint=True, segment_ids=a["ids"]),
    "correlation": lambda a: correlate(a["x"], a["g"], lags=3, heads=2, segment_ids=a["ids"]),
    "mixing": lambda a: tmm_core.mix_tokens(a["w"], a["x"], a["bias"], softplus=True, mean=True),
    "gradients": lambda a: jax.vjp(matmul, a["w"], a["x"])[1](a["g"]),
    "batched": lambda a: jax.vmap(lambda x: matmul(a["w"], x, method="direct"))(a["x"]),
}
CALLS: dict[str, Callable[[Any], Any]] = {
    **SERVED_BY_ENGINES,
    "mixing of documents": lambda a: tmm_core.mix_tokens(a["w"], a["x"], a["short bias"], segment_ids=a["ids"]),
    "long product": lambda a: matmul(a["long w"], a["long x"]),
    "complex product": lambda a: matmul(a["complex w"], a["halves"]),
    "general product": lambda a: tmm_core.toeplitz_matmul(a["w"], a["row"], a["x"]),
    "solution": lambda a: tmm_core.causal_toeplitz_solve(a["w"], a["x"]),
    "inverse": lambda a: tmm_core.causal_toeplitz_inverse(a["w"], 5),
    "positions": lambda a: tmm_core.document_positions(a["ids"]),
    "stream": _stream,
    "the core's logits": lambda a: lm.forward(a["params"], a["tokens"], CONFIG, attention_mask=a["mask"]),
    "the core's loss": lambda a: lm.loss(a["params"], a["tokens"], CONFIG, segment_ids=a["ids"]),
    "logits": lambda a: model.apply(a["params"], a["tokens"], CONFIG, attention_mask=a["mask"]),
    "loss": lambda a: model.loss(a["params"], a["tokens"], CONFIG, segment_ids=a["ids"]),
    "step of training": _trained,
}
