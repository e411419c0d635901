"""The language model in each framework behind one interface, told and asked in NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.model_variants import VARIANTS, random_params

from tmm_core import TMMConfig, lm

FRAMEWORKS = ("numpy", "torch", "jax")
QUICK_IN_JAX = ("later", "kernel_heads")
"""Variants that JAX compiles in an ordinary run: between them they have every kind of layer."""


def variants(*frameworks: str, only: Any = None) -> list[Any]:
    """Return every framework with every variant; those that take JAX long to compile are slow."""
    return [
        pytest.param(framework, name, id=f"{framework}-{name}", marks=[pytest.mark.slow] if slow else [])
        for framework in frameworks
        for name in (only or sorted(VARIANTS))
        for slow in [framework == "jax" and name not in QUICK_IN_JAX]
    ]


class NumpyModel:
    """`tmm_core.lm` of NumPy arrays."""

    def __init__(self, config: TMMConfig, params: Any = None) -> None:
        self.config = config
        self.params = self.taken(random_params(config) if params is None else params)

    def taken(self, params: Any) -> Any:
        return params

    def given(self, array: Any) -> Any:
        """Return an argument in the framework's arrays."""
        return array

    def logits(self, ids: Any, **masks: Any) -> Any:
        return lm.forward(self.params, ids, self.config, **masks)

    def loss(self, ids: Any, **options: Any) -> float:
        return float(lm.loss(self.params, ids, self.config, **options))

    def plan(self, capacity: int, **options: Any) -> Any:
        return lm.stream_plan(self.params, self.config, capacity, **{"backend": "array_api", **options})

    def init(self, plan: Any, batch_size: int) -> Any:
        return lm.stream_init(plan, batch_size)

    def prefill(self, plan: Any, state: Any, ids: Any, mask: Any = None) -> tuple[Any, Any]:
        logits, state = lm.stream_prefill(plan, state, self.given(ids), self.given(mask))
        return np.asarray(logits), state

    def step(self, plan: Any, state: Any, tokens: Any) -> tuple[Any, Any]:
        logits, state = lm.stream_step(plan, state, self.given(tokens))
        return np.asarray(logits), state

    def steps(self, plan: Any, state: Any, ids: Any) -> tuple[Any, Any]:
        """Return the logits after each of the tokens (b, n), one at a time, and the state."""
        found = []
        for t in range(ids.shape[1]):
            logits, state = self.step(plan, state, ids[:, t])
            found.append(logits)
        return np.stack(found, axis=1), state

    def reorder(self, state: Any, indices: Any) -> Any:
        return lm.stream_reorder(state, self.given(indices))


class TorchModel(NumpyModel):
    """The modules of PyTorch."""

    def taken(self, params: Any) -> Any:
        from tmm_adapters.torch import LanguageModel

        self.module = LanguageModel.from_params(params, self.config)
        return params

    def given(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(array) if isinstance(array, np.ndarray) else array

    def logits(self, ids: Any, **masks: Any) -> Any:
        out = self.module(self.given(ids), **{name: self.given(mask) for name, mask in masks.items()})
        return out["logits"].detach().numpy()

    def loss(self, ids: Any, **options: Any) -> float:
        options = {"labels": ids, **options} if "targets" not in options else options
        out = self.module(self.given(ids), **{name: self.given(array) for name, array in options.items()})
        return float(out["loss"])

    def plan(self, capacity: int, **options: Any) -> Any:
        return self.module.stream_plan(capacity, **options)

    def init(self, plan: Any, batch_size: int) -> Any:
        return self.module.stream_init(plan, batch_size)

    def prefill(self, plan: Any, state: Any, ids: Any, mask: Any = None) -> tuple[Any, Any]:
        logits, state = self.module.stream_prefill(plan, state, self.given(ids), self.given(mask))
        return logits.numpy(), state

    def step(self, plan: Any, state: Any, tokens: Any) -> tuple[Any, Any]:
        logits, state = self.module.stream_step(plan, state, self.given(tokens))
        return logits.numpy(), state

    def _options(self, mask: Any, seed: int, options: Any) -> Any:
        import torch

        return {"attention_mask": self.given(mask), "generator": torch.Generator().manual_seed(seed), **options}

    def generate(self, ids: Any, n: int, mask: Any = None, seed: int = 0, **options: Any) -> Any:
        return self.module.generate(self.given(ids), n, **self._options(mask, seed, options)).numpy()

    def new_tokens(self, ids: Any, n: int, *sampling: Any, mask: Any = None, seed: int = 0, **options: Any) -> Any:
        """Yield new tokens (b, m), m at a time."""
        for tokens in self.module.new_tokens(self.given(ids), n, *sampling, **self._options(mask, seed, options)):
            yield tokens.numpy()[:, None]


class JaxModel(NumpyModel):
    """The functions of JAX."""

    def taken(self, params: Any) -> Any:
        from tmm_adapters import jax as model

        self.functions = model
        return model.from_params(params, self.config)

    def logits(self, ids: Any, **masks: Any) -> Any:
        return np.asarray(self.functions.apply(self.params, ids, self.config, **masks))

    def loss(self, ids: Any, **options: Any) -> float:
        return float(self.functions.loss(self.params, ids, self.config, **options))

    def plan(self, capacity: int, **options: Any) -> Any:
        return self.functions.stream_plan(self.params, self.config, capacity, **options)

    def generate(self, ids: Any, n: int, mask: Any = None, seed: int = 0, **options: Any) -> Any:
        options = {"attention_mask": mask, "seed": seed, **options}
        return np.asarray(self.functions.generate(self.params, ids, self.config, n, **options))

    def new_tokens(self, ids: Any, n: int, *sampling: Any, mask: Any = None, seed: int = 0, **options: Any) -> Any:
        """Yield new tokens (b, m), m at a time."""
        from tmm_adapters.jax.generation import new_tokens

        options = {"attention_mask": mask, "seed": seed, "at_a_time": 8, **options}
        return new_tokens(self.params, ids, self.config, n, *sampling, **options)


MODELS: dict[str, Any] = {"numpy": NumpyModel, "torch": TorchModel, "jax": JaxModel}
