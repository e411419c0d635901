"""Floating-point operations counted as PyTorch dispatches them, those included that its own counter does not know."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tmm_core import get_backend

__all__ = ["flops_of"]

Shape = Sequence[int]


def flops_of(work: Callable[[], object]) -> float:
    """Return the operations of matrix products, convolutions, attention and transforms that `work` computes."""
    get_backend("torch").bridge  # noqa: B018  # which tells PyTorch of its operations
    with FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
        work()
    count: float = counter.get_total_flops()
    return count


def _transform(x: Shape, dims: Sequence[int], *_: Any, out_shape: Shape, **__: Any) -> float:
    """Count complex transforms over some dimensions."""
    length = math.prod(x[dim] for dim in dims)
    return 5 * math.prod(x) * math.log2(length)


def _to_complex(x: Shape, dims: Sequence[int], *_: Any, out_shape: Shape, **__: Any) -> float:
    """Count transforms of real numbers: half of the complex ones of their size."""
    return _transform(x, dims, out_shape=out_shape) / 2


def _to_real(x: Shape, dims: Sequence[int], *_: Any, out_shape: Shape, **__: Any) -> float:
    """Count transforms to real numbers."""
    return _transform(out_shape, dims, out_shape=out_shape) / 2


def _attention(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> float:
    """Count the product of scores and that with the values."""
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention_backward(grad: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> float:
    """Count the scores again, and two products for each of the forward ones."""
    return 2 * math.prod(q[:-1]) * k[-2] * (3 * q[-1] + 2 * v[-1])


def _convolution_backward(grad: Shape, x: Shape, w: Shape, *options: Any, **__: Any) -> float:
    """Count a product for each gradient; FlopCounterMode takes no account of groups here."""
    wanted = options[-1]
    return 2 * math.prod((grad[0], *grad[2:])) * math.prod(w) * int(wanted[0] + wanted[1])


_FORMULAS = {
    torch.ops.aten._fft_c2c: _transform,
    torch.ops.aten._fft_r2c: _to_complex,
    torch.ops.aten._fft_c2r: _to_real,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten.convolution_backward: _convolution_backward,
}
