"""Where the same things are computed: on NumPy arrays or another library's, and in PyTorch, with gradients.

JAX's side is `tmm_lab.agree.jax_side`, which is the one that imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tmm_core
from tmm_core import lm, streaming
from tmm_core.backend import Array
from tmm_core.errors import UnsupportedError

from .by_hand import loss_curve
from .inputs import ModelCase, Product, Stream, Training

__all__ = ["ArraySide", "Side", "TorchSide"]

Numbers = NDArray[Any]


class Side:
    """A library whose arrays the operations are called with; NumPy, unless a subclass says otherwise."""

    def computing(self) -> AbstractContextManager[None]:
        """Return the context in which everything is computed."""
        return nullcontext()

    def array(self, values: Numbers, dtype: str) -> Array:
        """Return numbers as an array of the library."""
        return values.astype(dtype)

    def numpy(self, array: Array) -> Numbers:
        """Return an array's numbers."""
        return np.asarray(array)

    def pull_back(
        self, function: Callable[..., Array], inputs: tuple[Array, ...], cotangent: Array
    ) -> tuple[Array, ...]:
        """Return the cotangents of a function's inputs."""
        raise UnsupportedError("the library does not differentiate")

    def product(self, case: Product, dtype: str, *, adjoint: bool = False) -> dict[str, Numbers]:
        """Return the product, or its adjoint's."""
        w, x = self.array(case.w, dtype), self.array(case.x, dtype)
        return {"": self.numpy(tmm_core.causal_toeplitz_matmul(w, x, adjoint=adjoint))}

    def correlate(self, case: Product, dtype: str) -> dict[str, Numbers]:
        """Return the correlation, (h, m, k)."""
        x, g = self.array(case.x, dtype), self.array(case.g, dtype)
        heads, kernel_size, lags = case.w.shape
        c = tmm_core.causal_toeplitz_correlate(x, g, lags=lags, heads=heads, kernel_size=kernel_size)
        return {"": self.numpy(c).reshape(case.w.shape)}

    def gradients(self, case: Product, dtype: str) -> dict[str, Numbers]:
        """Return the gradients of the product for x and for w."""
        w, x, g = (self.array(values, dtype) for values in (case.w, case.x, case.g))
        for_w, for_x = self.pull_back(tmm_core.causal_toeplitz_matmul, (w, x), g)
        return {"w": self.numpy(for_w), "x": self.numpy(for_x)}

    def stream(self, case: Stream, dtype: str) -> dict[str, Numbers]:
        """Return the outputs of a prompt and of single tokens, (b, n, d)."""
        w, x = self.array(case.product.w, dtype), self.array(case.product.x, dtype)
        plan = streaming.stream_plan(w, x.shape[1])
        state = streaming.stream_init(plan, (x.shape[0],), x.shape[2])
        y, state = streaming.stream_prefill(plan, state, x[:, : case.prompt, :])
        outputs = [self.numpy(y)]
        for t in range(case.prompt, x.shape[1]):
            y, state = streaming.stream_step(plan, state, x[:, t, :])
            outputs.append(self.numpy(y)[:, None, :])
        return {"": np.concatenate(outputs, axis=1)}

    def model(self, case: ModelCase, dtype: str) -> dict[str, Numbers]:
        """Return `logits`, and where there are gradients that of the loss by name for every parameter that is trained.

        The loss is the cross-entropy of the next token.
        """
        params = {name: self.array(p, dtype) for name, p in case.params.items()}
        return {"logits": self.numpy(lm.forward(params, self.integers(case.ids), case.config))}

    def integers(self, ids: Numbers) -> Array:
        """Return tokens as an array of the library."""
        return self.array(ids, "int64")

    def train(self, training: Training, dtype: str) -> dict[str, Numbers]:
        """Return the loss before each step."""
        return {"": loss_curve(training, dtype)}


class ArraySide(Side):
    """A library of arrays that are NumPy's but for where they lie, such as CuPy."""

    def __init__(self, library: str) -> None:
        """Import the library."""
        self.library = import_module(library)

    def array(self, values: Numbers, dtype: str) -> Array:
        """Return numbers as an array of the library."""
        return self.library.asarray(values.astype(dtype))

    def numpy(self, array: Array) -> Numbers:
        """Return an array's numbers."""
        return np.asarray(self.library.asnumpy(array))


class TorchSide(Side):
    """PyTorch: tensors, the model and its training."""

    def __init__(self) -> None:
        """Import PyTorch."""
        import torch

        from tmm_adapters.torch import LanguageModel

        self.torch, self.model_class = torch, LanguageModel

    def array(self, values: Numbers, dtype: str) -> Array:
        """Return numbers as a tensor."""
        return self.torch.asarray(np.array(values)).to(getattr(self.torch, dtype))

    def numpy(self, array: Array) -> Numbers:
        """Return a tensor's numbers."""
        return np.asarray(array.detach().numpy())

    def pull_back(
        self, function: Callable[..., Array], inputs: tuple[Array, ...], cotangent: Array
    ) -> tuple[Array, ...]:
        """Return what autograd returns."""
        inputs = tuple(tensor.requires_grad_() for tensor in inputs)
        return self.torch.autograd.grad(function(*inputs), inputs, cotangent)

    def stream(self, case: Stream, dtype: str) -> dict[str, Numbers]:
        """Return the outputs of a prompt and of single tokens, without gradients."""
        with self.torch.no_grad():
            return super().stream(case, dtype)

    def model(self, case: ModelCase, dtype: str) -> dict[str, Numbers]:
        """Return what `LanguageModel` computes."""
        model, ids = self._model(case.params, case.config, dtype), self.array(case.ids, "int64")
        out = model(ids, labels=ids)
        out["loss"].backward()
        grads = {name: self.numpy(p.grad) for name, p in model.named_parameters() if p.requires_grad}
        return {"logits": self.numpy(out["logits"]), **grads}

    def train(self, training: Training, dtype: str) -> dict[str, Numbers]:
        """Return the curve of `torch.optim.AdamW`."""
        t = training
        model = self._model(t.params(dtype), t.config, dtype)
        decayed = lm.decayed_names(t.config)
        groups = [
            {"params": p, "weight_decay": t.weight_decay if name in decayed else 0.0}
            for name, p in model.named_parameters()
        ]
        optimizer = self.torch.optim.AdamW(groups, lr=t.learning_rate, betas=(t.beta1, t.beta2), eps=t.eps)
        losses = []
        for ids in self.array(t.batches(), "int64"):
            loss = model(ids, labels=ids)["loss"]
            optimizer.zero_grad()
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(model.parameters(), t.clip)
            optimizer.step()
            losses.append(loss.item())
        return {"": np.asarray(losses)}

    def _model(self, params: Mapping[str, Numbers], config: Any, dtype: str) -> Any:
        return self.model_class.from_params({name: p.astype(dtype) for name, p in params.items()}, config)
