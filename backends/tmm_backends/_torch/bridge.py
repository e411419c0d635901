"""The bridge: differentiation, batching and compilation of the products, whichever engine computes them.

Product, adjoint and correlation are closed under differentiation. For y = T(w) x and a cotangent g, the cotangent of x
is T(w)^H g and that of w is correlate(x, g); for the adjoint the two factors change places; for c = correlate(x, g) and
a cotangent v, the cotangent of g is T(v) x and that of x is T(v)^H g. All are bilinear up to conjugation, so tangents
are the operation itself, once for each factor.

Compiled code is differentiated once: to differentiate twice, put both differentiations into the compiled function, by
`torch.func`, or compile none of it. A second one around compiled code raises where it passes through the compiled
backward. PyTorch (2.13) takes `torch.autograd.grad(..., create_graph=True)` there without an error and drops terms
where it saved no input of the compiled function itself, but values computed inside: of `T(2 w) x`, and of `(2 * w) @ x`
as well. No operation can notice, for PyTorch runs the compiled backward as if nothing were differentiated.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from tmm_core import _arrays, _masks, _registry
from tmm_core._protocols import Engine

__all__ = ["TorchBridge"]


class TorchBridge:
    """What Torch tensors need around any engine."""

    def matmul(
        self, engine: Engine, w: Tensor, x: Tensor, /, *, adjoint: bool, exact: bool, segment_ids: Tensor | None
    ) -> Tensor:
        """Return the product as a differentiable operation."""
        return _apply(Product, w, x, segment_ids, engine, adjoint, exact)

    def correlate(
        self,
        engine: Engine,
        x: Tensor,
        g: Tensor,
        /,
        *,
        lags: int,
        heads: int,
        kernel: int,
        exact: bool,
        segment_ids: Tensor | None,
    ) -> Tensor:
        """Return the correlation as a differentiable operation."""
        return _apply(Correlation, x, g, segment_ids, engine, lags, heads, kernel, exact)


def _apply(operation: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = operation.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _as(gradient: Tensor, like: Tensor) -> Tensor:
    """Return a gradient in the dtype of what it belongs to: real for real."""
    if gradient.is_complex() and not like.is_complex():
        gradient = gradient.real
    return gradient.to(like.dtype)


class Product(torch.autograd.Function):
    """`T(w) x` or `T(w)^H x`."""

    @staticmethod
    def forward(w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: Engine, adjoint: bool, exact: bool) -> Tensor:
        """Compute with `engine`."""
        if _is_plain(w, x, segment_ids):
            return _run_product(w, x, segment_ids, engine, adjoint, exact)
        y: Tensor = matmul_op(w, x, segment_ids, _remembered(engine), adjoint, exact)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factors, and nothing else of their size."""
        w, x, segment_ids, *ctx.options = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(w, x, segment_ids)
        ctx.save_for_forward(w, x, segment_ids)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the cotangents of both factors."""
        w, x, ids = ctx.saved_tensors
        engine, adjoint, exact = ctx.options
        grad_w = grad_x = None
        if g is not None and ctx.needs_input_grad[0]:
            heads, kernel, lags = w.shape
            pair = (g, x) if adjoint else (x, g)
            grad_w = _as(_apply(Correlation, *pair, ids, engine, lags, heads, kernel, exact), w)
        if g is not None and ctx.needs_input_grad[1]:
            grad_x = _as(_apply(Product, w, g, ids, engine, not adjoint, exact), x)
        return grad_w, grad_x, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, w_t: Tensor | None, x_t: Tensor | None, *_: None) -> Tensor | None:
        """Return the tangent of the product."""
        w, x, ids = ctx.saved_tensors
        parts = [
            _apply(Product, a, b, ids, *ctx.options) for a, b in ((w_t, x), (w, x_t)) if a is not None and b is not None
        ]
        return _sum(parts)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        w: Tensor,
        x: Tensor,
        segment_ids: Tensor | None,
        engine: Engine,
        adjoint: bool,
        exact: bool,
    ) -> tuple[Tensor, int]:
        """Batch over `x` as more rows, over `w` as more heads."""
        size, (w_dim, x_dim, ids_dim, *_) = info.batch_size, in_dims
        x = _front(x, x_dim, size)
        if segment_ids is not None:
            segment_ids = _front(segment_ids, ids_dim, size)
        if w_dim is None:
            return _apply(Product, w, x, segment_ids, engine, adjoint, exact), 0
        w = w.movedim(w_dim, 0)
        if ids_dim is not None:  # heads share their documents: one by one
            assert segment_ids is not None
            each = [_apply(Product, w[i], x[i], segment_ids[i], engine, adjoint, exact) for i in range(size)]
            return torch.stack(each), 0
        ids = None if segment_ids is None else segment_ids[0]
        y = _apply(Product, w.flatten(0, 1), _beside(x), ids, engine, adjoint, exact)
        return y.reshape(*y.shape[:-1], size, -1), y.ndim - 1


class Correlation(torch.autograd.Function):
    """The gradient of `<g, T(w) x>` for `w`."""

    @staticmethod
    def forward(
        x: Tensor,
        g: Tensor,
        segment_ids: Tensor | None,
        engine: Engine,
        lags: int,
        heads: int,
        kernel: int,
        exact: bool,
    ) -> Tensor:
        """Compute with `engine`."""
        if _is_plain(x, g, segment_ids):
            return _run_correlation(x, g, segment_ids, engine, lags, heads, kernel, exact)
        c: Tensor = correlate_op(x, g, segment_ids, _remembered(engine), lags, heads, kernel, exact)
        return c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factors."""
        x, g, segment_ids, *ctx.options = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, g, segment_ids)
        ctx.save_for_forward(x, g, segment_ids)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the cotangents of both factors."""
        x, g, ids = ctx.saved_tensors
        engine, *_, exact = ctx.options
        grad_x = grad_g = None
        if v is not None and ctx.needs_input_grad[0]:
            grad_x = _as(_apply(Product, v, g, ids, engine, True, exact), x)
        if v is not None and ctx.needs_input_grad[1]:
            grad_g = _as(_apply(Product, v, x, ids, engine, False, exact), g)
        return grad_x, grad_g, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor | None, g_t: Tensor | None, *_: None) -> Tensor | None:
        """Return the tangent of the correlation."""
        x, g, ids = ctx.saved_tensors
        parts = [
            _apply(Correlation, a, b, ids, *ctx.options)
            for a, b in ((x_t, g), (x, g_t))
            if a is not None and b is not None
        ]
        return _sum(parts)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        g: Tensor,
        segment_ids: Tensor | None,
        engine: Engine,
        lags: int,
        heads: int,
        kernel: int,
        exact: bool,
    ) -> tuple[Tensor, int]:
        """Batch as more heads."""
        size, (x_dim, g_dim, ids_dim, *_) = info.batch_size, in_dims
        x, g = _front(x, x_dim, size), _front(g, g_dim, size)
        if ids_dim is not None:  # heads share their documents: one by one
            assert segment_ids is not None
            ids = segment_ids.movedim(ids_dim, 0)
            options = (engine, lags, heads, kernel, exact)
            return torch.stack([_apply(Correlation, x[i], g[i], ids[i], *options) for i in range(size)]), 0
        c = _apply(Correlation, _beside(x), _beside(g), segment_ids, engine, lags, size * heads, kernel, exact)
        return c.reshape(size, heads, *c.shape[1:]), 0


def _front(a: Tensor, dim: int | None, size: int) -> Tensor:
    """Return `a` with the batch in front, repeated where it has none."""
    return a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0)


def _beside(a: Tensor) -> Tensor:
    """Return a batch of signals `(batch, ..., n, d)` side by side, `(..., n, batch * d)`."""
    return a.movedim(0, -2).flatten(-2)


def _sum(parts: list[Tensor]) -> Tensor | None:
    return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]


# Concrete tensors go straight to the engine. Others (compiled, exported, counted, checkpointed selectively) pass
# through registered operations, which every tracer records as one node.


def _is_plain(*tensors: Tensor | None) -> bool:
    return not is_in_torch_dispatch_mode(include_infra_modes=True) and all(
        t is None or (type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta and not is_legacy_batchedtensor(t))
        for t in tensors
    )


def _run(engine: Engine, operation: Any, *arrays: Tensor, segment_ids: Tensor | None, **options: Any) -> Tensor:
    """Let the engine compute, at full precision whatever autocast says."""
    with torch.autocast(arrays[0].device.type, enabled=False):
        detached = (array.detach() for array in arrays)
        result: Tensor = _registry.run(engine, operation, *detached, segment_ids=segment_ids, **options)
    if segment_ids is not None:
        # Decreasing numbers come here from code that may not look at them; elsewhere they were refused.
        wrong = _masks.unsorted(segment_ids)
        if not _arrays.values_known(wrong) or bool(wrong.any()):
            result = result.masked_fill(wrong[..., None, None] if operation == "matmul" else wrong.any(), math.nan)
    return result


def _run_product(
    w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: Engine, adjoint: bool, exact: bool
) -> Tensor:
    return _run(engine, "matmul", w, x, segment_ids=segment_ids, adjoint=adjoint, exact=exact)


def _run_correlation(
    x: Tensor, g: Tensor, segment_ids: Tensor | None, engine: Engine, lags: int, heads: int, kernel: int, exact: bool
) -> Tensor:
    shape = {"lags": lags, "heads": heads, "kernel": kernel}
    return _run(engine, "correlate", x, g, segment_ids=segment_ids, exact=exact, **shape)


_engines: dict[str, Engine] = {}


def _remembered(engine: Engine) -> str:
    """Return the name under which a recorded operation finds its engine again."""
    _engines[engine.name] = engine
    return engine.name


def _engine(name: str) -> Engine:
    """Return the engine of a recorded operation, which has no tangents and says so in place of dropping them."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            "compiled code has no forward mode: expected no active torch.autograd.forward_ad.dual_level around it; "
            "call torch.func.jvp inside the compiled function, or the uncompiled one"
        )
    return _engines.get(name) or _registry.get_backend(name).engine


@torch.library.custom_op("tmm_core::matmul", mutates_args=())
def matmul_op(w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: str, adjoint: bool, exact: bool) -> Tensor:
    """Compute a product that was recorded; the engine stays the one of the recording."""
    return _run_product(w, x, segment_ids, _engine(engine), adjoint, exact)


@matmul_op.register_fake
def _(w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: str, adjoint: bool, exact: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=_dtype(w, x))


@torch.library.custom_op("tmm_core::correlate", mutates_args=())
def correlate_op(
    x: Tensor, g: Tensor, segment_ids: Tensor | None, engine: str, lags: int, heads: int, kernel: int, exact: bool
) -> Tensor:
    """Compute a correlation that was recorded."""
    return _run_correlation(x, g, segment_ids, _engine(engine), lags, heads, kernel, exact)


@correlate_op.register_fake
def _(
    x: Tensor, g: Tensor, segment_ids: Tensor | None, engine: str, lags: int, heads: int, kernel: int, exact: bool
) -> Tensor:
    return x.new_empty((heads, kernel, lags), dtype=_dtype(x, g))


def _dtype(*tensors: Tensor) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, _arrays.result_dtype_name(*tensors))
    return dtype
