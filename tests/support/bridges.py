"""Libraries that transform functions, behind the names that they share: what a test of any bridge calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from support.requirements import library_or_skip

from tmm_core.testing import Library
from tmm_core.testing.oracles import normal


@dataclass(frozen=True)
class Bridge:
    """A library that has a bridge around engines."""

    library: Library
    xp: ModuleType
    """Where its functions of arrays are."""
    transforms: ModuleType
    """Where `grad`, `hessian`, `jacfwd`, `jacrev`, `jvp` and `vmap` are."""
    compile: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Trace a function once and run what was recorded."""
    check_derivatives: Callable[[Callable[..., Any], Sequence[Any]], None]
    """Compare derivatives of order one and two, forward and reverse, with finite differences."""

    def draw(self, *shape: int, dtype: str = "float64", seed: int = 0) -> Any:
        """Return normal numbers, the same in every library."""
        return self.library.asarray(normal(np.random.default_rng((seed, *shape)), *shape, dtype=dtype), dtype)

    def assert_close(self, found: Any, expected: Any) -> None:
        """Compare arrays, or tuples of them, in values, shapes and dtypes."""
        if isinstance(expected, tuple):
            for pair in zip(found, expected, strict=True):
                self.assert_close(*pair)
            return
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        pair = self.library.to_numpy(found), self.library.to_numpy(expected)
        np.testing.assert_allclose(*pair, rtol=1e-11, atol=1e-11)


def dense(xp: ModuleType, w: Any, x: Any, *, adjoint: bool = False) -> Any:
    """Return the product by plain operations of a library, for `w` of shape (2, k) and `x` of shape (n, 4)."""
    lag = np.subtract.outer(np.arange(x.shape[0]), np.arange(x.shape[0]))
    inside = xp.asarray((lag >= 0) & (lag < w.shape[1]))
    matrices = xp.where(inside, w[:, xp.asarray(lag.clip(0, w.shape[1] - 1))], 0)
    if adjoint:
        matrices = xp.conj(matrices).mT
    return xp.concatenate([matrices[0] @ x[:, :2], matrices[1] @ x[:, 2:]], -1)


def make_bridge(name: str) -> Bridge:
    """Return the bridge of a library."""
    library = library_or_skip(name)
    return {"torch": _torch, "jax": _jax}[name](library)


def _torch(library: Library) -> Bridge:
    import torch

    def compile_whole(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    def check_derivatives(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
        inputs = [tensor.clone().requires_grad_() for tensor in inputs]
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)

    return Bridge(library, torch, torch.func, compile_whole, check_derivatives)


def _jax(library: Library) -> Bridge:
    import jax
    from jax.test_util import check_grads

    def check_derivatives(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
        check_grads(lambda *a: function(*map(jax.numpy.asarray, a)), inputs, order=2)  # NumPy makes the differences

    return Bridge(library, jax.numpy, jax, jax.jit, check_derivatives)
