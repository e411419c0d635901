"""The engine that computes with `torch.fft` and `torch.matmul`, on CPU and CUDA, in pieces that fit the cache."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tmm_core.backend import (
    LayerStream,
    Method,
    Request,
    StreamLayer,
    by_segments,
    correlate_by_segments,
    cuda_stream_of,
    definition_correlate,
    definition_matmul,
    nan_mask_of_lags,
    nan_mask_of_outputs,
    result_dtype_name,
    share,
    split_finite,
)

from .pieces import choose_algorithm, pieces, take
from .scales import Scales, rescaled
from .streaming import TensorStream

__all__ = ["TorchEngine"]


class TorchEngine:
    """Products of Torch tensors of any floating or complex dtype, with any strides."""

    name = "torch"

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that PyTorch finds here."""
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

    def owns(self, array: Any) -> bool:
        """Return whether `array` is a tensor."""
        return isinstance(array, Tensor)

    def receive(self, array: Any) -> Tensor:
        """Return `array` as a tensor, on the same memory where that is possible."""
        tensor: Tensor = share(array, torch)
        return tensor

    def on_stream_of(self, array: Any) -> AbstractContextManager[Any]:
        """Return a block in which work on CuPy's arrays is queued on CuPy's stream, as that of tensors is on their own.

        On one stream, memory that one library gives back is not used anew before the other has read it.
        """
        stream = None if isinstance(array, Tensor) else cuda_stream_of(array)
        if stream is None:
            return nullcontext()
        device = array.__dlpack_device__()[1]
        queue: AbstractContextManager[Any] = torch.cuda.stream(
            torch.cuda.ExternalStream(stream, device)  # type: ignore[no-untyped-call]
        )
        return queue

    def unsupported(self, request: Request) -> str | None:
        """Return why a device is not served."""
        if request.device == "traced":
            return "the arrays are being traced and have no values that PyTorch could compute on"
        if request.device not in ("cpu", "cuda", "meta"):
            return f"PyTorch's engine computes on cpu and cuda, and the arrays are on {request.device!r}"
        return None

    def stream(self, layer: StreamLayer) -> LayerStream:
        """Return the streams of a layer, by the definition on tensors."""
        return TensorStream(layer, LayerStream(layer), lambda x: x, lambda y: y)

    @torch.no_grad()
    def matmul(self, w: Tensor, x: Tensor, /, *, adjoint: bool, method: Method, segment_ids: Tensor | None) -> Tensor:
        """Return the product; see `tmm_core.causal_toeplitz_matmul`."""
        dtype, computed = _dtypes(w, x)
        if x.numel() == 0:
            return torch.zeros(x.shape, dtype=dtype, device=x.device)
        w = w[..., : x.shape[-2]].to(computed)
        if method == "direct":
            return _direct_product(w, x, adjoint, segment_ids).to(dtype)
        nan_mask, scales = None, Scales.of_product(w, x)
        if not scales.finite:
            w, bad_w = split_finite(w)
            x, bad_x = split_finite(x)
            nan_mask = nan_mask_of_outputs(w, x, bad_w, bad_x, adjoint=adjoint, segment_ids=segment_ids)
            scales = Scales.of_product(w, x)
        if segment_ids is None:
            y = _product(w, x, dtype, adjoint, scales)
        else:
            y = _product_by_segments(w, x, dtype, adjoint, segment_ids)
        return y if nan_mask is None else y.masked_fill_(nan_mask, math.nan)

    @torch.no_grad()
    def correlate(
        self,
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
        """Return the correlation; see `tmm_core.causal_toeplitz_correlate`."""
        dtype, computed = _dtypes(x, g)
        result = torch.zeros((heads, kernel_size, lags), dtype=dtype, device=x.device)
        if x.numel() == 0:
            return result
        used = min(lags, x.shape[-2])
        shape = {"lags": used, "heads": heads, "kernel_size": kernel_size}
        if method == "direct":
            c = _exact_correlation(x, g, computed, segment_ids, **shape)
            result[..., :used] = c
            return result
        nan_mask, scales = None, Scales.of_correlation(x, g, computed, heads)
        if not scales.finite:
            x, bad_x = split_finite(x)
            g, bad_g = split_finite(g)
            nan_mask = nan_mask_of_lags(x, g, bad_x, bad_g, segment_ids=segment_ids, **shape)
            scales = Scales.of_correlation(x, g, computed, heads)
        if segment_ids is None:
            c = _correlation(x, g, computed, scales, **shape)
        else:
            c = _correlation_by_segments(x, g, computed, segment_ids, **shape)
        if nan_mask is not None:
            c.masked_fill_(nan_mask, math.nan)
        result[..., :used] = c
        return result


def _dtypes(*arrays: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype of the result and the one that it is computed in."""
    result: torch.dtype = getattr(torch, result_dtype_name(*arrays))
    return result, torch.float32 if result in (torch.float16, torch.bfloat16) else result


def _product(w: Tensor, x: Tensor, dtype: torch.dtype, adjoint: bool, scales: Scales) -> Tensor:
    """Return the product of finite arrays in `dtype`, computed in that of `w`."""
    heads, kernel_size, lags = w.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    signals = x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)
    results = out.view(signals.shape)
    algorithm = choose_algorithm(signals.shape, lags, w.dtype, x.device)
    before, after = (0, kernel_size - 1) if adjoint else (kernel_size - 1, 0)
    for some_heads, group in pieces(signals.shape, kernel_size, x.device, algorithm):
        lags_of_some = scales.scaled_filters(w, some_heads)
        filters = algorithm.prepare_filters(lags_of_some, adjoint=adjoint)
        for piece in group:
            block, row_scales, exponents = scales.scaled_signals(signals, piece, before, after, kernel_size, adjoint)
            target = take(results, piece)
            if row_scales is None or exponents is None:
                algorithm.product(filters, block, target, adjoint=adjoint, row_scales=None)
            else:
                unit = torch.empty(target.shape, dtype=w.dtype, device=x.device)
                algorithm.product(filters, block, unit, adjoint=adjoint, row_scales=row_scales)
                target.copy_(rescaled(unit, exponents, scales.noise(lags_of_some, block, row_scales, adjoint)))
    return out


def _correlation(
    x: Tensor, g: Tensor, dtype: torch.dtype, scales: Scales, *, lags: int, heads: int, kernel_size: int
) -> Tensor:
    """Return the correlation of finite arrays, in `dtype`."""
    signals = x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)
    targets = g.reshape(signals.shape)
    algorithm = choose_algorithm(signals.shape, lags, dtype, x.device)
    out = torch.empty((heads, kernel_size, lags), dtype=dtype, device=x.device)
    noise = torch.zeros((heads, kernel_size, 1), dtype=dtype.to_real(), device=x.device)
    largest = scales.largest_pairs(kernel_size)
    for some_heads, group in pieces(signals.shape, kernel_size, x.device, algorithm):
        total = algorithm.new_correlation(some_heads.stop - some_heads.start, kernel_size)
        for piece in group:
            sources, ends, row_scales = scales.scaled_pairs(signals, targets, piece, kernel_size, largest)
            algorithm.add_correlation(total, sources, ends, row_scales=row_scales)
            if row_scales is not None:
                noise[some_heads, :, 0] += scales.noise_of_pairs(sources, ends, row_scales)
        out[some_heads] = algorithm.finish_correlation(total, lags)
    return out if largest is None else rescaled(out, largest[..., None], noise)


def _product_by_segments(w: Tensor, x: Tensor, dtype: torch.dtype, adjoint: bool, segment_ids: Tensor) -> Tensor:
    """Return the product within documents, some rows and channels at a time."""
    heads, kernel_size, _ = w.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    signals = x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)
    results, ids = out.view(signals.shape), segment_ids.expand(x.shape[:-1]).reshape(signals.shape[:2])

    def product(w: Tensor, x: Tensor) -> Tensor:
        w = w[..., : x.shape[-2]]
        return _product(w, x, w.dtype, adjoint, Scales.of_product(w, x))

    for some_heads, group in pieces(signals.shape, kernel_size, x.device, whole_heads=kernel_size > 1):
        for piece in group:
            block = signals[piece.rows, :, piece.heads, piece.channels]
            y = by_segments(product, w[some_heads], block.flatten(2), ids[piece.rows], adjoint=adjoint)
            results[piece.rows, :, piece.heads, piece.channels] = y.view(block.shape)
    return out


def _correlation_by_segments(
    x: Tensor, g: Tensor, dtype: torch.dtype, segment_ids: Tensor, *, lags: int, heads: int, kernel_size: int
) -> Tensor:
    """Return the correlation within documents, some rows and channels at a time."""
    signals = x.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads)
    targets, ids = g.reshape(signals.shape), segment_ids.expand(x.shape[:-1]).reshape(signals.shape[:2])
    out = torch.zeros((heads, kernel_size, lags), dtype=dtype, device=x.device)
    for some_heads, group in pieces(signals.shape, kernel_size, x.device, whole_heads=kernel_size > 1):
        count = some_heads.stop - some_heads.start

        def correlate(x: Tensor, g: Tensor, lags: int, count: int = count) -> Tensor:
            scales = Scales.of_correlation(x, g, dtype, count)
            return _correlation(x, g, dtype, scales, lags=min(lags, x.shape[-2]), heads=count, kernel_size=kernel_size)

        for piece in group:
            at = (piece.rows, slice(None), piece.heads, piece.channels)
            blocks = signals[at].flatten(2).to(dtype), targets[at].flatten(2).to(dtype)
            out[some_heads] += correlate_by_segments(correlate, *blocks, ids[piece.rows], lags=lags)
    return out


def _direct_product(w: Tensor, x: Tensor, adjoint: bool, segment_ids: Tensor | None) -> Tensor:
    """Return the product by direct sums, row by row in float64: no flag for faster float32 products touches those."""
    ids = None if segment_ids is None else segment_ids.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
    rows = x.reshape(-1, *x.shape[-2:])
    out = torch.empty(rows.shape, dtype=w.dtype, device=x.device)
    for i, row in enumerate(rows):
        part = None if ids is None else ids[i]
        wide = definition_matmul(_doubled(w), _doubled(row), adjoint=adjoint, method="direct", segment_ids=part)
        out[i] = wide
    return out.view(x.shape)


def _exact_correlation(
    x: Tensor, g: Tensor, dtype: torch.dtype, segment_ids: Tensor | None, *, lags: int, heads: int, kernel_size: int
) -> Tensor:
    """Return the correlation by direct sums, row by row in float64."""
    ids = None if segment_ids is None else segment_ids.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
    total: Any = 0
    for i, (source, target) in enumerate(zip(x.reshape(-1, *x.shape[-2:]), g.reshape(-1, *g.shape[-2:]), strict=True)):
        part = None if ids is None else ids[i]
        total = total + definition_correlate(
            _doubled(source),
            _doubled(target),
            lags=lags,
            heads=heads,
            kernel_size=kernel_size,
            method="direct",
            segment_ids=part,
        )
    result: Tensor = total.to(dtype)
    return result


def _doubled(a: Tensor) -> Tensor:
    return a.to(torch.complex128 if a.is_complex() else torch.float64)
