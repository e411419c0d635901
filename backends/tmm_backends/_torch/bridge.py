"""The bridge: differentiation and batching of the products, whichever engine computes them.

Product, adjoint and correlation are closed under differentiation. For y = T(w) x and a cotangent g, the cotangent of x
is T(w)^H g and that of w is correlate(x, g); for the adjoint the two factors change places; for c = correlate(x, g) and
a cotangent v, the cotangent of g is T(v) x and that of x is T(v)^H g. All are bilinear up to conjugation, so tangents
are the operation itself, once for each factor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tmm_core.backend import Engine, Method, Streamer

from . import recorded, streaming

__all__ = ["TorchBridge"]


class TorchBridge:
    """What Torch tensors need around any engine."""

    def matmul(
        self, engine: Engine, w: Tensor, x: Tensor, /, *, adjoint: bool, method: Method, segment_ids: Tensor | None
    ) -> Tensor:
        """Return the product as a differentiable operation."""
        return _apply(Product, w, x, segment_ids, engine, adjoint, method)

    def correlate(
        self,
        engine: Engine,
        x: Tensor,
        g: Tensor,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Tensor | None,
    ) -> Tensor:
        """Return the correlation as a differentiable operation."""
        return _apply(Correlation, x, g, segment_ids, engine, lags, heads, kernel_size, method)

    def streams(self, engine: Engine) -> bool:
        """Return whether the engine streams layers of tensors: one that streams any does."""
        return isinstance(engine, Streamer)

    stream = staticmethod(streaming.stream_by)

    recording = staticmethod(streaming.recording)
    handle_of = staticmethod(streaming.handle_of)
    record_step = staticmethod(streaming.record_step)


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
    def forward(
        w: Tensor, x: Tensor, segment_ids: Tensor | None, engine: Engine, adjoint: bool, method: Method
    ) -> Tensor:
        """Compute with `engine`."""
        return recorded.product(w, x, segment_ids, engine, adjoint, method)

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
        engine, adjoint, method = ctx.options
        grad_w = grad_x = None
        if g is not None and ctx.needs_input_grad[0]:
            heads, kernel_size, lags = w.shape
            pair = (g, x) if adjoint else (x, g)
            grad_w = _as(_apply(Correlation, *pair, ids, engine, lags, heads, kernel_size, method), w)
        if g is not None and ctx.needs_input_grad[1]:
            grad_x = _as(_apply(Product, w, g, ids, engine, not adjoint, method), x)
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
        method: Method,
    ) -> tuple[Tensor, int]:
        """Batch over `x` as more rows, over `w` as more heads."""
        size, (w_dim, x_dim, ids_dim, *_) = info.batch_size, in_dims
        if size == 0:
            return _none_of(Product, in_dims, w, x, segment_ids, engine, adjoint, method), 0
        x = _front(x, x_dim, size)
        if segment_ids is not None:
            segment_ids = _front(segment_ids, ids_dim, size)
        if w_dim is None:
            return _apply(Product, w, x, segment_ids, engine, adjoint, method), 0
        w = w.movedim(w_dim, 0)
        if ids_dim is not None:  # heads share their documents: one by one
            assert segment_ids is not None
            each = [_apply(Product, w[i], x[i], segment_ids[i], engine, adjoint, method) for i in range(size)]
            return torch.stack(each), 0
        ids = None if segment_ids is None else segment_ids[0]
        y = _apply(Product, w.flatten(0, 1), _as_channels(x), ids, engine, adjoint, method)
        return y.reshape(*y.shape[:-1], size, x.shape[-1]), y.ndim - 1


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
        kernel_size: int,
        method: Method,
    ) -> Tensor:
        """Compute with `engine`."""
        return recorded.correlation(x, g, segment_ids, engine, lags, heads, kernel_size, method)

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
        engine, *_, method = ctx.options
        grad_x = grad_g = None
        if v is not None and ctx.needs_input_grad[0]:
            grad_x = _as(_apply(Product, v, g, ids, engine, True, method), x)
        if v is not None and ctx.needs_input_grad[1]:
            grad_g = _as(_apply(Product, v, x, ids, engine, False, method), g)
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
        kernel_size: int,
        method: Method,
    ) -> tuple[Tensor, int]:
        """Batch as more heads."""
        size, (x_dim, g_dim, ids_dim, *_) = info.batch_size, in_dims
        if size == 0:
            arguments = (x, g, segment_ids, engine, lags, heads, kernel_size, method)
            return _none_of(Correlation, in_dims, *arguments), 0
        x, g = _front(x, x_dim, size), _front(g, g_dim, size)
        if ids_dim is not None:  # heads share their documents: one by one
            assert segment_ids is not None
            ids = segment_ids.movedim(ids_dim, 0)
            options = (engine, lags, heads, kernel_size, method)
            return torch.stack([_apply(Correlation, x[i], g[i], ids[i], *options) for i in range(size)]), 0
        c = _apply(
            Correlation, _as_channels(x), _as_channels(g), segment_ids, engine, lags, size * heads, kernel_size, method
        )
        return c.reshape(size, heads, *c.shape[1:]), 0


def _front(a: Tensor, dim: int | None, size: int) -> Tensor:
    """Return `a` with the batch in front, repeated where it has none."""
    return a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0)


def _none_of(operation: type[torch.autograd.Function], in_dims: tuple[int | None, ...], *arguments: Any) -> Tensor:
    """Return a batch of no results, of the shape that they would have: none of a result for sums over no arguments."""
    sums = [a if dim is None else a.sum(dim, dtype=a.dtype) for a, dim in zip(arguments, in_dims, strict=True)]
    return _apply(operation, *sums)[None][:0]


def _as_channels(a: Tensor) -> Tensor:
    """Return a batch of signals `(batch, ..., n, d)` side by side, `(..., n, batch * d)`."""
    return a.movedim(0, -2).flatten(-2)


def _sum(parts: list[Tensor]) -> Tensor | None:
    return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]
