"""The operations on a GPU: cuFFT, and kernels of our own that save passes over memory.

All work is queued on the current stream. Nothing waits for the device, except the first plan of a size and the end of a
plan that is dropped from the cache.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from tmm_core.backend import Array, cuda_stream_of

from . import sources
from .operations import BLOCK, Survey
from .plans import CufftPlan, PlanKey, Plans

__all__ = ["Gpu", "missing", "on_stream_of"]

SHARE_OF_MEMORY = 8
"""Plans may hold one eighth of a device's memory."""
THREAD_STREAM = 2
"""The number of the per-thread default stream."""
FORWARD, INVERSE = -1, 1


@functools.cache
def missing() -> str | None:
    """Return why the engine cannot run on this machine, or None if it can."""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # any error of the driver or the runtime: no GPU can be used
        return f"there is no GPU here that CuPy could use ({error})"
    if count == 0:
        return "there is no GPU here that CuPy could use"
    try:
        cupy.cuda.cufft  # noqa: B018  (CuPy loads it now)
    except ImportError as error:
        return f"cuFFT cannot be loaded ({error}): pip install 'cupy-cuda13x[ctk]'"
    return None


@contextmanager
def on_stream_of(array: Array) -> Iterator[None]:
    """Queue work on the device of `array`, of any library, and on its library's stream where that is known.

    On one stream, memory that one library frees is not reused before the other has read it.
    """
    stream = None if isinstance(array, cupy.ndarray) else cuda_stream_of(array)
    with cupy.cuda.Device(array.__dlpack_device__()[1]):
        if stream is None:
            yield
        else:
            with cupy.cuda.ExternalStream(stream) if stream else cupy.cuda.Stream.null:
                yield


def _kernel(name: str, source: tuple[str, ...]) -> Any:
    kind = cupy.ElementwiseKernel if len(source) == 3 else cupy.ReductionKernel
    return kind(*source, name=f"tmm_{name}", preamble=sources.PREAMBLE)


class Gpu:
    """`Operations` on CuPy arrays."""

    def __init__(self) -> None:
        """Define the kernels; CuPy compiles them at their first call for each set of dtypes."""
        self.xp: Any = cupy
        self._survey = _kernel("survey", sources.SURVEY)
        self._column = _kernel("column", sources.COLUMN)
        self._load = _kernel("load", sources.LOAD)
        self._apply_filters = _kernel("apply_filters", sources.APPLY_FILTERS)
        self._cross_spectrum = _kernel("cross_spectrum", sources.CROSS_SPECTRUM)
        self._store = _kernel("store", sources.STORE)
        self._write_nan = _kernel("write_nan", sources.WRITE_NAN)

    def survey(self, signals: Array, real: Any, *, last: bool) -> Survey:
        """Return statistics of each column of signals; norms have the real dtype `real`."""
        n, *column = signals.shape
        shape = (-(-n // BLOCK), *column)
        peaks, squares = cupy.empty(shape, real), cupy.empty(shape, real)
        marks = cupy.empty(shape, cupy.int32)
        self._survey(signals, BLOCK, last, peaks, squares, marks)
        exponents, nearest = cupy.empty(column, cupy.int32), cupy.empty(column, cupy.int32)
        norms = cupy.empty(column, real)
        self._column(peaks, squares, marks, shape[0], norms.size, last, exponents, norms, nearest)
        return Survey(exponents, norms, nearest, marks)

    def load(self, signals: Array, exponents: Array, length: int, dtype: Any, *, modulate: bool) -> Array:
        """Return a buffer of the scaled and modulated signals."""
        n, *column = signals.shape
        buffer = cupy.empty((length, *column), dtype)
        self._load(signals, exponents, buffer[0].size, length, modulate, buffer[:n])
        buffer[n:].fill(0)
        return buffer

    def transform(self, buffer: Array, *, inverse: bool) -> None:
        """Transform along the first axis, in place.

        It uses cuFFT's advanced data layout: the stride of a transform is the number of columns, and columns lie side
        by side, so that neighbouring threads read neighbouring numbers and nothing is transposed.
        """
        length, columns = buffer.shape[0], buffer[0].size
        if length == 1 or columns == 0:
            return
        device, stream = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
        thread = threading.get_ident() if stream == THREAD_STREAM else 0
        key = PlanKey(stream, thread, length, columns, buffer.dtype.name)
        with _plans(device).borrowed(key, functools.partial(_plan, key)) as plan:
            plan.fft(buffer, buffer, INVERSE if inverse else FORWARD)

    def apply_filters(
        self, spectra: Array, filters: Array, relative_scales: Array, width: int, missing: int, *, adjoint: bool
    ) -> Array:
        """Return the sum over kernel rows of the filtered spectra of neighbouring channels."""
        length, rows, heads, block = spectra.shape
        out = cupy.empty((length, rows, heads, width), spectra.dtype)
        sizes = (rows, heads, width, block, missing, filters.shape[-1])
        self._apply_filters(spectra, cupy.ascontiguousarray(filters), relative_scales, *sizes, adjoint, out)
        return out

    def cross_spectrum(self, x: Array, g: Array, relative_scales: Array) -> Array:
        """Return `conj(X) * G`, scaled, summed over rows and channels."""
        return self._cross_spectrum(x, g, relative_scales, axis=(1, 3))

    def store(self, buffer: Array, out: Array, exponents: Array, noise: Array, *, modulate: bool) -> None:
        """Write the signals of a buffer, demodulated and scaled."""
        length, columns = buffer.shape[0], buffer[0].size
        self._store(buffer[: out.shape[0]], exponents, noise, columns, length, modulate, out)

    def write_nan(
        self,
        out: Array,
        signals: Array,
        survey: Survey,
        first: Array,
        reach: Array | None,
        lags: int,
        kernel_size: int,
        *,
        adjoint: bool,
    ) -> None:
        """Write NaN to outputs that read a non-finite entry."""
        ahead = first if reach is None else reach
        tables = survey.marks, survey.nearest, first, ahead
        self._write_nan(signals, *tables, reach is not None, lags, BLOCK, kernel_size, adjoint, out)


@functools.cache
def _plans(device: int) -> Plans:
    """Return the plans of a device."""
    return Plans(most_bytes=cupy.cuda.Device(device).mem_info[1] // SHARE_OF_MEMORY)


def _plan(key: PlanKey) -> CufftPlan:
    """Make a plan on the current device."""
    cufft = cupy.cuda.cufft
    kind = cufft.CUFFT_C2C if key.dtype == "complex64" else cufft.CUFFT_Z2Z
    layout = ((key.length,), key.columns, 1)  # embedding, stride of time, distance of columns
    plan = cufft.PlanNd((key.length,), *layout, *layout, kind, key.columns, "C", 0, None)
    return CufftPlan(plan, plan.work_area.mem.size)
