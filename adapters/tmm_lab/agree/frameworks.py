"""The operations that are compared, called with the arrays of any library, and the models of PyTorch and JAX."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tmm_core
from tmm_core import lm
from tmm_core.testing.libraries import get_library

from .inputs import PROMPT, ModelCase, Product, Training

__all__ = ["Framework", "framework"]

Numbers = NDArray[Any]


def framework(library: str, dtype: str) -> Framework:
    """Return a library's operations, importing it."""
    return {"torch": _Torch, "jax": _Jax}.get(library, Framework)(library, dtype)


class Framework:
    """A library whose arrays the operations are called with, in one dtype; each returns its arrays by name."""

    def __init__(self, library: str, dtype: str) -> None:
        """Import the library."""
        self.library, self.dtype = get_library(library), dtype
        self.device = "cuda" if library == "cupy" else "cpu"

    def computing(self) -> AbstractContextManager[None]:
        """Return the context in which everything is computed."""
        return nullcontext()

    def arrays(self, *values: Numbers) -> tuple[Any, ...]:
        """Return numbers as arrays of the library."""
        return tuple(self.library.asarray(array, self.dtype) for array in values)

    def product(self, case: Product, *, adjoint: bool = False) -> dict[str, Numbers]:
        """Return the product, or its adjoint's."""
        w, x = self.arrays(case.w, case.x)
        return {"": self.library.to_numpy(tmm_core.causal_toeplitz_matmul(w, x, adjoint=adjoint))}

    def correlate(self, case: Product) -> dict[str, Numbers]:
        """Return the correlation, (h, m, k)."""
        heads, kernel_size, lags = case.w.shape
        x, g = self.arrays(case.x, case.g)
        found = tmm_core.causal_toeplitz_correlate(x, g, lags=lags, heads=heads, kernel_size=kernel_size)
        return {"": self.library.to_numpy(found).reshape(case.w.shape)}

    def differentiate(self, case: Product) -> dict[str, Numbers]:
        """Return the gradients of the product for w and for x."""
        w, x, g = self.arrays(case.w, case.x, case.g)
        assert self.library.vjp is not None  # of frameworks
        cotangents = self.library.vjp(tmm_core.causal_toeplitz_matmul, (w, x), g)
        return dict(zip(("w", "x"), map(self.library.to_numpy, cotangents), strict=True))

    def stream(self, case: Product) -> dict[str, Numbers]:
        """Return the outputs of a prompt and of single tokens, (b, n, d)."""
        w, x = self.arrays(case.w, case.x)
        plan = tmm_core.stream_plan(w, x.shape[1])
        state = tmm_core.stream_init(plan, (x.shape[0],), x.shape[2])
        y, state = tmm_core.stream_prefill(plan, state, x[:, :PROMPT, :])
        outputs = [self.library.to_numpy(y)]
        for t in range(PROMPT, x.shape[1]):
            y, state = tmm_core.stream_step(plan, state, x[:, t, :])
            outputs.append(self.library.to_numpy(y)[:, None, :])
        return {"": np.concatenate(outputs, axis=1)}

    def model(self, case: ModelCase) -> dict[str, Numbers]:
        """Return `logits`, and of a framework the gradient of the loss by name for every parameter that is trained.

        The loss is the cross-entropy of the next token.
        """
        params = dict(zip(case.params, self.arrays(*case.params.values()), strict=True))
        ids = self.library.asarray(case.ids, "int64")
        return {"logits": self.library.to_numpy(lm.forward(params, ids, case.config))}

    def train(self, training: Training) -> dict[str, Numbers]:
        """Return the loss before each step, and the first one by itself."""
        raise NotImplementedError  # of frameworks


class _Torch(Framework):
    """PyTorch, its model and its training."""

    def _model(self, params: dict[str, Numbers], config: tmm_core.TMMConfig) -> Any:
        from tmm_adapters.torch import LanguageModel

        return LanguageModel.from_params({name: p.astype(self.dtype) for name, p in params.items()}, config)

    def model(self, case: ModelCase) -> dict[str, Numbers]:
        """Return what `LanguageModel` computes."""
        model, ids = self._model(case.params, case.config), self.library.asarray(case.ids, "int64")
        out = model(ids, labels=ids)
        out["loss"].backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        return {name: self.library.to_numpy(a) for name, a in {"logits": out["logits"], **grads}.items()}

    def train(self, training: Training) -> dict[str, Numbers]:
        """Return the curve of `torch.optim.AdamW`."""
        import torch

        t, decayed = training, lm.decayed_names(training.config)
        model = self._model(t.params(), t.config)
        groups = [
            {"params": p, "weight_decay": t.weight_decay if name in decayed else 0.0}
            for name, p in model.named_parameters()
        ]
        adamw = torch.optim.AdamW(groups, lr=t.learning_rate, betas=(t.beta1, t.beta2), eps=t.eps)
        losses = []
        for ids in self.library.asarray(t.batches(), "int64"):
            loss = model(ids, labels=ids)["loss"]
            adamw.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), t.clip)
            adamw.step()
            losses.append(loss.item())
        return {"curve": np.asarray(losses), "first loss": np.asarray(losses[0])}


class _Jax(Framework):
    """JAX, its model and its training; the process has one width of numbers, that of the dtype."""

    def __init__(self, library: str, dtype: str) -> None:
        """Import the library, which is set to 64 bits then."""
        super().__init__(library, dtype)
        import jax

        jax.config.update("jax_enable_x64", dtype == "float64")

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let single operations be compiled quickly, there being hundreds, and once.

        JAX pulls back in the context of a mesh of no devices, and what is compiled in a context is for that alone.
        """
        import jax

        no_mesh = jax.sharding.AbstractMesh((), ())
        with _optimised(False), jax.sharding.use_abstract_mesh(no_mesh):
            yield

    def model(self, case: ModelCase) -> dict[str, Numbers]:
        """Return what `apply` and the gradient of `loss` are: of some models in one program, as in training.

        The others go operation by operation, which variants share: to compile each would take minutes.
        """
        import jax

        from tmm_adapters.jax import apply, from_params, loss

        config, frozen = case.config, lm.frozen_names(case.config)
        params = from_params({name: p.astype(self.dtype) for name, p in case.params.items()}, config)
        trained = {name: p for name, p in params.items() if name not in frozen}

        def both(trained: Any, params: Any, ids: Any) -> Any:
            grads = jax.grad(lambda trained: loss({**params, **trained}, ids, config))(trained)
            return {"logits": apply(params, ids, config), **grads}

        with _optimised(True) if case.whole else nullcontext():
            computed = (jax.jit(both) if case.whole else both)(trained, params, jax.numpy.asarray(case.ids))
        return {name: np.asarray(a) for name, a in computed.items()}

    def train(self, training: Training) -> dict[str, Numbers]:
        """Return the curve of `train_step`."""
        from tmm_adapters.jax import from_params, optimizer, train_step

        t = training
        moments: dict[str, float] = {"beta1": t.beta1, "beta2": t.beta2, "clip": t.clip}
        adamw = optimizer(t.config, learning_rate=t.learning_rate, weight_decay=t.weight_decay, **moments)
        params = from_params({name: p.astype(self.dtype) for name, p in t.params().items()}, t.config)
        state, losses = adamw.init(params), []
        with _optimised(True):
            for ids in t.batches():
                params, state, loss = train_step(params, state, {"input_ids": ids}, t.config, adamw)
                losses.append(float(loss))
        return {"curve": np.asarray(losses), "first loss": np.asarray(losses[0])}


@contextmanager
def _optimised(usual: bool) -> Iterator[None]:
    """Let JAX optimise programs as it does for users, or hardly."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not usual)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
