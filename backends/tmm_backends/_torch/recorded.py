"""Products as operations that whatever traces records as one node: the compiler, export, counters, checkpoints.

Concrete tensors go straight to the engine.

Compiled code is differentiated once: to differentiate twice, put both differentiations into the compiled function, by
`torch.func`, or compile none of it. A second one around compiled code raises where it passes through the compiled
backward. PyTorch (2.13) takes `torch.autograd.grad(..., create_graph=True)` there without an error and drops terms
where it saved no input of the compiled function itself, but values computed inside: of `T(2 w) x`, and of `(2 * w) @ x`
as well. No operation can notice, for PyTorch runs the compiled backward as if nothing were differentiated.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.flop_counter import register_flop_formula

from tmm_core.backend import (
    Engine,
    Method,
    UnsupportedError,
    get_backend,
    plain_memory,
    result_dtype_name,
    run_correlate,
    run_matmul,
)

__all__ = ["correlation", "product"]


def product(w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: Engine, adjoint: bool, method: Method) -> Tensor:
    """Return the product that `engine` computes, not differentiable."""
    if _is_plain(w, x, segment_ids):
        return _product(w, x, segment_ids, engine, adjoint, method)
    y: Tensor = matmul_op(w, x, segment_ids, engine.name, adjoint, method)
    return y


def correlation(
    x: Tensor,
    g: Tensor,
    segment_ids: Tensor | None,
    engine: Engine,
    lags: int,
    heads: int,
    kernel_size: int,
    method: Method,
) -> Tensor:
    """Return the correlation that `engine` computes, not differentiable."""
    if _is_plain(x, g, segment_ids):
        return _correlation(x, g, segment_ids, engine, lags, heads, kernel_size, method)
    c: Tensor = correlate_op(x, g, segment_ids, engine.name, lags, heads, kernel_size, method)
    return c


def _is_plain(*tensors: Tensor | None) -> bool:
    return not is_in_torch_dispatch_mode(include_infra_modes=True) and all(
        t is None or (type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta and not is_legacy_batchedtensor(t))
        for t in tensors
    )


def _product(w: Tensor, x: Tensor, ids: Tensor | None, engine: Engine, adjoint: bool, method: Method) -> Tensor:
    """Let the engine compute, at full precision whatever autocast says."""
    w, x, ids = _in_memory(w, x, ids)
    with torch.autocast(x.device.type, enabled=False):
        y: Tensor = run_matmul(engine, w, x, adjoint=adjoint, method=method, segment_ids=ids)
    return y


def _correlation(
    x: Tensor, g: Tensor, ids: Tensor | None, engine: Engine, lags: int, heads: int, kernel_size: int, method: Method
) -> Tensor:
    shape: Any = {"lags": lags, "heads": heads, "kernel_size": kernel_size}
    x, g, ids = _in_memory(x, g, ids)
    with torch.autocast(x.device.type, enabled=False):
        c: Tensor = run_correlate(engine, x, g, **shape, method=method, segment_ids=ids)
    return c


def _in_memory(first: Tensor, second: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return tensors that any engine may read by address."""
    return plain_memory(first), plain_memory(second), None if ids is None else plain_memory(ids)


def _engine(name: str) -> Engine:
    """Return the engine of a recorded operation, which has no tangents and says so in place of dropping them.

    Inside a `Function`, which computes them itself, forward mode is off.
    """
    if forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
        raise UnsupportedError(
            "compiled code has no forward mode: expected no active torch.autograd.forward_ad.dual_level around it; "
            "call torch.func.jvp inside the compiled function, or the uncompiled one"
        )
    return get_backend(name).engine


# The schema of an operation knows no Literal, so its `method` is a str.


@torch.library.custom_op("tmm_core::matmul", mutates_args=())
def matmul_op(w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: str, adjoint: bool, method: str) -> Tensor:
    """Compute a product that was recorded; the engine stays the one of the recording."""
    return _product(w, x, segment_ids, _engine(engine), adjoint, cast(Method, method))


@matmul_op.register_fake
def _(w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: str, adjoint: bool, method: str) -> Tensor:
    return x.new_empty(x.shape, dtype=_dtype(w, x))


@torch.library.custom_op("tmm_core::correlate", mutates_args=())
def correlate_op(
    x: Tensor, g: Tensor, segment_ids: Tensor | None, engine: str, lags: int, heads: int, kernel_size: int, method: str
) -> Tensor:
    """Compute a correlation that was recorded."""
    return _correlation(x, g, segment_ids, _engine(engine), lags, heads, kernel_size, cast(Method, method))


@correlate_op.register_fake
def _(
    x: Tensor, g: Tensor, segment_ids: Tensor | None, engine: str, lags: int, heads: int, kernel_size: int, method: str
) -> Tensor:
    return x.new_empty((heads, kernel_size, lags), dtype=_dtype(x, g))


def _dtype(*tensors: Tensor) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, result_dtype_name(*tensors))
    return dtype


# Shapes stand for tensors here, and what is counted are the transforms of right-angle convolution.


@register_flop_formula(torch.ops.tmm_core.matmul)
def _matmul_flops(w: torch.Size, x: torch.Size, *_: object, **__: object) -> int:
    """Count the transforms of lags (h, m, k), of signals (..., n, d), and of results."""
    n = x[-2]
    return round(5 * math.log2(max(n, 1)) * (2 * math.prod(x) + n * w[0] * w[1]))


@register_flop_formula(torch.ops.tmm_core.correlate)
def _correlate_flops(x: torch.Size, g: torch.Size, *_: object, out_shape: torch.Size, **__: object) -> int:
    """Count the transforms of two signals, and of lags (h, m, k)."""
    return _matmul_flops(out_shape, x)
