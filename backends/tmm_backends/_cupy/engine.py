"""The engine: right-angle convolution by cuFFT, scaled by exact powers of two, without a look at values."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import cupy

from tmm_core.backend import (
    Array,
    LayerStream,
    Method,
    Request,
    StreamLayer,
    by_segments,
    correlate_by_segments,
    definition_correlate,
    definition_matmul,
    error_factor,
    fast_length,
    is_real,
    nan_mask_of_lags,
    nan_mask_up_to,
    positions,
    result_dtype,
    share,
)

from . import gpu
from .operations import ZERO, Operations, Survey
from .pieces import Window, pieces, row_groups

__all__ = ["CupyEngine"]


class CupyEngine:
    """Products of CuPy arrays of any floating or complex dtype, with any strides, queued on the current stream.

    Nobody looks at values, which would make the program wait for the GPU: all columns are scaled, and what is not
    finite is found by kernels that read those columns again that have such entries.
    """

    name = "cupy"

    @property
    def devices(self) -> tuple[str, ...]:
        """Kinds of device that CuPy finds here."""
        return () if gpu.missing() else ("cuda",)

    def __init__(self, operations: Operations) -> None:
        """Compute by the operations of a device."""
        self._operations = operations

    def owns(self, array: Any) -> bool:
        """Return whether `array` is CuPy's."""
        return isinstance(array, self._operations.xp.ndarray)

    def receive(self, array: Any) -> Array:
        """Return `array` as one of CuPy's, on the same memory."""
        return share(array, cupy)

    def on_stream_of(self, array: Any) -> AbstractContextManager[Any]:
        """Return a block in which work is queued on the device of `array`, and on its library's stream."""
        return gpu.on_stream_of(array)

    def unsupported(self, request: Request) -> str | None:
        """Return why a device or a dtype is not served."""
        reason = gpu.missing()
        if reason is not None:
            return reason
        if request.device == "traced":
            return "the arrays are being traced and have no values that CuPy could compute on"
        if request.device != "cuda":
            return (
                f"CuPy computes on a GPU, and the arrays are on {request.device!r}: move them there, for example by "
                "cupy.asarray or by their own library"
            )
        if request.dtype == "bfloat16" and int(cupy.__version__.split(".")[0]) < 14:
            return f"CuPy {cupy.__version__} has no bfloat16: install CuPy 14 or later"
        return None

    def stream(self, layer: StreamLayer) -> LayerStream:
        """Return the streams of a layer, by the definition on CuPy's arrays."""
        return LayerStream(layer)

    def matmul(self, w: Array, x: Array, /, *, adjoint: bool, method: Method, segment_ids: Array | None) -> Array:
        """Return the product; see `tmm_core.causal_toeplitz_matmul`."""
        xp, dtype, computed = self._operations.xp, *self._dtypes(w, x)
        if 0 in x.shape:
            return xp.zeros(x.shape, dtype)
        if method == "direct":
            options: dict[str, Any] = {"adjoint": adjoint, "method": "direct", "segment_ids": segment_ids}
            return definition_matmul(_doubled(w), _doubled(x), **options).astype(dtype)
        w, out = w[..., : x.shape[-2]], xp.empty(x.shape, dtype)
        heads, kernel_size, lags = w.shape
        signals, results = _time_first(x, heads), _time_first(out, heads)
        filters, survey = self._filters(w, computed), self._surveyed(signals, computed, last=not adjoint)
        if segment_ids is None:
            self._product(filters, signals, survey, results, computed, adjoint)
            reach = None
        else:
            self._product_by_segments(w, x, out, computed, adjoint, segment_ids)
            reach = self._reach(x, segment_ids, adjoint)
        self._operations.write_nan(results, signals, survey, filters.first, reach, lags, kernel_size, adjoint=adjoint)
        return out

    def correlate(
        self,
        x: Array,
        g: Array,
        /,
        *,
        lags: int,
        heads: int,
        kernel_size: int,
        method: Method,
        segment_ids: Array | None,
    ) -> Array:
        """Return the correlation; see `tmm_core.causal_toeplitz_correlate`."""
        xp, dtype, computed = self._operations.xp, *self._dtypes(x, g)
        shape = {"heads": heads, "kernel_size": kernel_size}
        if method == "direct":
            options: dict[str, Any] = {"lags": lags, "method": "direct", "segment_ids": segment_ids, **shape}
            return definition_correlate(_doubled(x), _doubled(g), **options).astype(dtype)
        result = xp.zeros((heads, kernel_size, lags), dtype)
        if 0 in x.shape:
            return result
        used = min(lags, x.shape[-2])
        if segment_ids is None:
            sources, targets = _time_first(x, heads), _time_first(g, heads)
            surveys = self._surveyed(sources, computed, last=False), self._surveyed(targets, computed, last=True)
            c = self._correlation(sources, targets, *surveys, computed, kernel_size, used)
            ends = x.shape[-2] - 1 - surveys[0].nearest, surveys[1].nearest
            nan_mask = nan_mask_up_to(*(end.max(0) for end in ends), lags=used, kernel_size=kernel_size)
        else:
            c = self._correlation_by_segments(x, g, computed, segment_ids, lags=used, **shape)
            bad = (~xp.isfinite(a.astype(computed, copy=False)) for a in (x, g))
            nan_mask = nan_mask_of_lags(x, g, *bad, lags=used, segment_ids=segment_ids, **shape)
        result[..., :used] = xp.where(nan_mask, xp.full((), math.nan, computed), c)
        return result

    def _surveyed(self, signals: Array, computed: Any, *, last: bool) -> Survey:
        return self._operations.survey(signals, computed.type(0).real.dtype, last=last)

    def _filters(self, w: Array, computed: Any) -> Filters:
        """Return what is known of lags `(heads, kernel_size, lags)`."""
        signals = w.transpose(2, 0, 1)[:, None]
        survey = self._surveyed(signals, computed, last=False)
        return Filters(signals, survey.exponents, survey.norms, survey.nearest.min((0, 2)))

    def _spectra(
        self, filters: Filters, heads: slice, length: int, buffer: Any, modulate: bool, adjoint: bool
    ) -> Array:
        """Return the spectra of some heads' filters, `(N, 1, heads, kernel_size)`, conjugate for the adjoint."""
        exponents = filters.exponents[:, heads]
        spectra = self._operations.load(filters.signals[:, :, heads], exponents, length, buffer, modulate=modulate)
        self._operations.transform(spectra, inverse=False)
        return spectra.conj() if adjoint else spectra

    def _product(self, filters: Filters, x: Array, survey: Survey, out: Array, computed: Any, adjoint: bool) -> None:
        """Write the product of signals into signals, as if what is not finite were zero."""
        xp, do = self._operations.xp, self._operations
        n, rows, heads, width = x.shape
        lags, kernel_size = filters.signals.shape[0], filters.signals.shape[-1]
        modulate, buffer = computed.kind == "f", xp.result_type(computed, xp.complex64)
        length = fast_length(n if modulate else n + lags - 1)
        for some, group in pieces(length, rows, heads, width, kernel_size):
            spectra = self._spectra(filters, some, length, buffer, modulate, adjoint)
            scales, norms = filters.exponents[:, some], filters.norms[:, some]
            for piece in group:
                window = Window(piece.channels, kernel_size, width, adjoint)
                read = piece.rows, piece.heads, window.read
                exponents = survey.exponents[read]
                X = do.load(x[:, *read], exponents, length, buffer, modulate=modulate)
                do.transform(X, inverse=False)
                if kernel_size == 1:
                    X *= spectra
                    sizes, norm_products = exponents + scales, survey.norms[read] * norms
                else:
                    rows_read = xp.stack(window.rows(exponents, ZERO), -1) + scales[:, :, None]
                    sizes = rows_read.max(-1)
                    relative_scales = rows_read - sizes[..., None]
                    X = do.apply_filters(X, spectra, relative_scales, window.count, window.missing, adjoint=adjoint)
                    read_norms = xp.stack(window.rows(survey.norms[read], 0), -1)
                    norm_products = (xp.ldexp(read_norms, relative_scales) * norms[:, :, None]).sum(-1)
                do.transform(X, inverse=True)
                do.store(X, out[:, *piece], sizes, norm_products * error_factor(n, computed.name), modulate=modulate)

    def _correlation(
        self, x: Array, g: Array, seen_x: Survey, seen_g: Survey, computed: Any, kernel_size: int, lags: int
    ) -> Array:
        """Return the correlation of signals, as if what is not finite were zero."""
        xp, do = self._operations.xp, self._operations
        n, rows, heads, width = x.shape
        modulate, buffer = computed.kind == "f", xp.result_type(computed, xp.complex64)
        length = fast_length(n if modulate else n + lags - 1)
        whole = Window(slice(0, width), kernel_size, width, False)
        sizes = xp.stack(whole.rows(seen_x.exponents, ZERO), -1) + seen_g.exponents[..., None]
        largest = sizes.max((0, 2))  # (heads, kernel)
        relative_scales = sizes - largest[:, None]
        norm_products = xp.stack(whole.rows(seen_x.norms, 0), -1) * seen_g.norms[..., None]
        noise = xp.ldexp(norm_products, relative_scales).sum((0, 2)) * error_factor(n, computed.name)
        out = xp.empty((heads, kernel_size, lags), computed)
        for some, group in pieces(length, rows, heads, width, kernel_size):
            total = xp.zeros((length, 1, some.stop - some.start, kernel_size), buffer)
            for piece in group:
                window = Window(piece.channels, kernel_size, width, False)
                read = piece.rows, piece.heads, window.read
                X = do.load(x[:, *read], seen_x.exponents[read], length, buffer, modulate=modulate)
                G = do.load(g[:, *piece], seen_g.exponents[piece], length, buffer, modulate=modulate)
                do.transform(X, inverse=False)
                do.transform(G, inverse=False)
                for i in range(kernel_size):
                    sources, targets = window.pairs(i)
                    scales = relative_scales[*piece, i][..., targets]
                    total[:, 0, :, i] += do.cross_spectrum(X[..., sources], G[..., targets], scales)
            do.transform(total, inverse=True)
            view = out[some].transpose(2, 0, 1)[:, None]
            do.store(total, view, largest[None, some], noise[None, some], modulate=modulate)
        return out

    def _product_by_segments(
        self, w: Array, x: Array, out: Array, computed: Any, adjoint: bool, segment_ids: Array
    ) -> None:
        """Write the product within documents, some rows at a time, as if what is not finite were zero."""

        def product(w: Array, x: Array) -> Array:
            part, w = self._operations.xp.empty(x.shape, computed), w[..., : x.shape[-2]]
            signals, results = (_time_first(a, w.shape[0]) for a in (x, part))
            survey = self._surveyed(signals, computed, last=True)
            self._product(self._filters(w, computed), signals, survey, results, computed, adjoint)
            return part

        for ids, some, target in row_groups(segment_ids, x, out):
            wide = some.astype(computed, copy=False)
            target[...] = by_segments(product, w, wide, ids, adjoint=adjoint)

    def _correlation_by_segments(
        self, x: Array, g: Array, computed: Any, segment_ids: Array, *, lags: int, heads: int, kernel_size: int
    ) -> Array:
        """Return the correlation within documents, some rows at a time."""

        def correlate(x: Array, g: Array, lags: int) -> Array:
            sources, targets = _time_first(x, heads), _time_first(g, heads)
            seen_x, seen_g = (self._surveyed(signals, computed, last=True) for signals in (sources, targets))
            return self._correlation(sources, targets, seen_x, seen_g, computed, kernel_size, min(lags, x.shape[-2]))

        total = self._operations.xp.zeros((heads, kernel_size, lags), computed)
        for ids, *pair in row_groups(segment_ids, x, g):
            x, g = (a.astype(computed, copy=False) for a in pair)
            total += correlate_by_segments(correlate, x, g, ids, lags=lags)
        return total

    def _reach(self, x: Array, segment_ids: Array, adjoint: bool) -> Array:
        """Return how far back (or ahead) each time reads, `(rows, n)`."""
        xp, reach = self._operations.xp, positions(x, segment_ids, from_end=adjoint)[..., 0]
        return xp.ascontiguousarray(reach.reshape(-1, reach.shape[-1]))

    def _dtypes(self, *arrays: Array) -> tuple[Any, Any]:
        """Return the dtype of the result and the one that it is computed in: float32 for halves."""
        result = self._operations.xp.dtype(result_dtype(*arrays))
        return result, self._operations.xp.dtype("float32") if result.itemsize == 2 else result


@dataclass(frozen=True)
class Filters:
    """What is known of lags; each row of a kernel is scaled by itself, for it may be read alone."""

    signals: Array
    """The lags, `(lags, 1, heads, kernel_size)`."""
    exponents: Array
    """`(1, heads, kernel_size)`."""
    norms: Array
    """Of the scaled lags, `(1, heads, kernel_size)`."""
    first: Array
    """Each head's first lag that is not finite, or `FAR`, `(heads,)`."""


def _time_first(a: Array, heads: int) -> Array:
    """Return `(..., n, d)` as `(n, rows, heads, channels)`."""
    n, d = a.shape[-2:]
    return a.reshape(-1, n, heads, d // heads).transpose(1, 0, 2, 3)


def _doubled(a: Array) -> Array:
    return a.astype("float64" if is_real(a) else "complex128")
