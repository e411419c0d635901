"""One call of a kernel: its arguments, its threads and their memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import correlations, neighbours, products
from .lanes import KINDS
from .passes import TILE
from .plans import plan
from .threads import share_out, thread_count
from .work import Filters, Groups, Kind, Signals, aligned

__all__ = ["Correlation", "Product"]

Array = NDArray[Any]

SMALL = 1 << 15
"""Calls of fewer entries are left to one thread: another one takes some 50 us to wake up."""

CHUNKS, CHUNK = 16, 64
"""Correlations are added up in so many chunks or more, where there are as many jobs, and of so many jobs at most."""


def _threads(entries: int) -> int:
    return 1 if entries < SMALL else thread_count()


def _buffers(kind: Kind, length: int, count: int) -> tuple[Array, ...]:
    """Return memory for `count` transforms at a time, and for the notes of a thread."""
    return (
        *(aligned((2 * kind.lanes * length,), kind.computed) for _ in range(count)),
        aligned((kind.lanes,), kind.computed),
    )


def spectra_of(filters: Filters, kind: Kind, length: int, sign: int) -> Array:
    """Return the spectra of all filters, `(h * m, 2 length)`, divided by the length; conjugates for a sign of -1."""
    steps = plan(length, kind.computed.__name__)
    out = np.empty((len(filters.unit), 2 * length), kind.computed)
    lags = min(filters.lags, length)

    def worker() -> Callable[[int, int], None]:
        buffer, _ = _buffers(kind, length, 1)

        def work(first: int, last: int) -> None:
            products.spectra(
                (kind.computed(0),), filters.unit.ctypes.data, filters.lags, lags, len(out), first, last, sign,
                steps.constants, steps.steps, buffer, out,
            )  # fmt: skip

        return work

    share_out(-(-len(out) // kind.lanes), worker, threads=_threads(len(out) * length))
    return out


@dataclass(frozen=True)
class Product:
    """The product or the adjoint of some signals; each method returns which `(signal, head)` it left undone."""

    kind: Kind
    x: Array
    y: Array
    signals: Signals
    filters: Filters
    adjoint: bool

    @property
    def marks(self) -> tuple[Any, Any]:
        """What tells a kernel the dtypes of the arrays."""
        return KINDS[self.x.dtype.name], KINDS[self.y.dtype.name]

    @functools.cached_property
    def groups(self) -> Groups:
        """The registers of channels."""
        packed = self.x.strides[-1] == self.x.itemsize
        return Groups.of(self.x.shape[-1], self.filters.heads, self.kind.lanes, packed=packed)

    def _over_groups(
        self, run: Callable[..., None], memory: Callable[[], tuple[Array, ...]], length: int, by_group: bool
    ) -> Array:
        """Let threads run a kernel over all signals and groups: group by group, or signal by signal."""
        groups = self.groups
        jobs = len(self.signals) * len(groups.channels)
        unsafe = np.zeros(jobs, bool)
        arguments = (
            self.marks, self.x.ctypes.data, self.x.strides[-2], self.x.strides[-1], self.y.ctypes.data,
            self.y.strides[-2], self.signals.rows(self.x, self.y), groups.rows(self.x.strides[-1], self.y.itemsize),
            groups.heads, by_group,
        )  # fmt: skip

        def worker() -> Callable[[int, int], None]:
            buffers = memory()

            def work(first: int, last: int) -> None:
                run(*arguments, first, last, *buffers, unsafe)

            return work

        share_out(jobs, worker, threads=_threads(jobs * self.kind.lanes * length))
        undone = np.zeros((len(self.signals), self.filters.heads), bool)
        for job in np.flatnonzero(unsafe):
            count = len(self.signals) if by_group else len(groups.channels)
            signal, group = (job % count, job // count) if by_group else (job // count, job % count)
            undone[signal, groups.heads[group]] = True
        return undone

    def by_transforms(self, length: int) -> Array:
        """Multiply in the frequency domain, by transforms of a length."""
        steps = plan(length, self.kind.computed.__name__)
        spectra = spectra_of(self.filters, self.kind, length, -1 if self.adjoint else 1)

        def memory() -> tuple[Array, ...]:
            buffer, notes = _buffers(self.kind, length, 1)
            return buffer, aligned((TILE, 2 * self.kind.lanes), self.kind.computed), notes

        def run(*arguments: Any) -> None:
            *most, buffer, tile, notes, unsafe = arguments
            products.product(
                *most, spectra, self.filters.scales, steps.constants, steps.steps, self.kind.lowest, self.kind.highest,
                buffer, tile, notes, unsafe,
            )  # fmt: skip

        return self._over_groups(run, memory, length, by_group=False)

    def directly(self, length: int) -> Array:
        """Multiply by direct sums, for signals up to a length."""
        lags = min(self.filters.lags, length)
        rows = products.BEFORE + lags + products.AFTER
        padded = np.zeros((self.filters.heads, rows), self.kind.computed)
        padded[:, products.BEFORE : products.BEFORE + lags] = self.filters.unit[:, :lags]

        def memory() -> tuple[Array, ...]:
            buffer = aligned(((length + products.OUTPUTS) * self.kind.lanes,), self.kind.computed)
            own = aligned((rows if self.groups.mixed else 0, self.kind.lanes), self.kind.computed)
            return buffer, own, aligned((self.kind.lanes,), self.kind.computed)

        def run(*arguments: Any) -> None:
            *most, buffer, own, notes, unsafe = arguments
            products.product_directly(
                *most, padded, lags, self.filters.scales, self.adjoint, self.kind.lowest, self.kind.highest,
                buffer, own, notes, unsafe,
            )  # fmt: skip

        return self._over_groups(run, memory, length, by_group=self.groups.mixed)

    def over_neighbours(self, length: int) -> Array:
        """Multiply by filters that read neighbouring channels."""
        steps = plan(length, self.kind.computed.__name__)
        spectra = spectra_of(self.filters, self.kind, length, -1 if self.adjoint else 1)
        heads = self.filters.heads
        channels = self.x.shape[-1] // heads
        unsafe = np.zeros((len(self.signals), heads), bool)
        signals, packed = self.signals.rows(self.x, self.y), self.x.strides[-1] == self.x.itemsize

        def worker() -> Callable[[int, int], None]:
            buffer, notes = _buffers(self.kind, length, 1)
            window = window_of(self.kind, length, self.filters.kernel)

            def work(first: int, last: int) -> None:
                neighbours.product_of_neighbours(
                    self.marks, self.x.ctypes.data, self.x.strides[-2], self.x.strides[-1], self.y.ctypes.data,
                    self.y.strides[-2], self.y.itemsize, signals, heads, channels, first, last,
                    spectra, self.filters.kernel, self.filters.scales, self.adjoint, packed, steps.constants,
                    steps.steps, self.kind.lowest, self.kind.highest, buffer, window, notes, unsafe.reshape(-1),
                )  # fmt: skip

            return work

        share_out(unsafe.size, worker, threads=_threads(unsafe.size * channels * length))
        return unsafe


def window_of(kind: Kind, length: int, kernel: int) -> Array:
    """Return memory for the spectra of a register of channels and of the neighbours that a kernel reads with it."""
    registers = 1 + -(-(kernel - 1) // kind.lanes)
    return aligned((length, 2, registers * kind.lanes), kind.computed)


def _cuts(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut a range into so many parts, or as many as it has members."""
    parts = min(parts, count)
    return [(i * count // parts, (i + 1) * count // parts) for i in range(parts)]


@dataclass(frozen=True)
class Correlation:
    """The correlation of some signals, as spectra that are added up and transformed back once."""

    kind: Kind
    x: Array
    g: Array
    signals: Signals
    heads: int
    kernel: int
    lags: int

    @property
    def marks(self) -> tuple[Any, Any]:
        """What tells a kernel the dtypes of the arrays."""
        return KINDS[self.x.dtype.name], KINDS[self.g.dtype.name]

    def compute(self, length: int) -> tuple[Array, Array]:
        """Return the lags, `(h, m, k)`, by transforms of a length, and for each head what tells whether they are good.

        That is the sum over signals and channels of the products of their largest magnitudes, or NaN where one might
        leave the range of transforms, or is not finite, and was left out.
        """
        partial, owners, peaks = self._over_groups(length) if self.kernel == 1 else self._over_heads(length)
        steps = plan(length, self.kind.computed.__name__)
        sums = np.zeros((self.heads * self.kernel, 2 * length))
        for row, owner in zip(partial, owners, strict=True):  # in their order: the same for any number of threads
            sums[owner] += row
        # By powers of two, so that what is transformed is near one, and may be added up `length` times.
        exponents = np.frexp(np.max(np.abs(sums), axis=1, initial=0))[1]
        spectra = np.ldexp(sums, -exponents[:, None]).astype(self.kind.computed)
        out = np.empty((min(self.lags, length), len(spectra)), self.kind.computed)

        def worker() -> Callable[[int, int], None]:
            buffer, notes = _buffers(self.kind, length, 1)

            def work(first: int, last: int) -> None:
                correlations.lags(
                    (self.kind.computed(0),), spectra, first, last, steps.constants, steps.steps, buffer, notes, out
                )

            return work

        share_out(-(-len(spectra) // self.kind.lanes), worker, threads=_threads(len(spectra) * length))
        c = np.ldexp(out.T.astype(float) / length, exponents[:, None])
        return c.reshape(self.heads, self.kernel, -1), peaks

    def _chunks(self, owners: list[tuple[int, ...]]) -> tuple[Array, list[int]]:
        """Return the chunks as kernels read them, and the filter of each row that they write.

        Rows are (first signal, last signal, first group, last group, first row of the result). `owners` names the
        filters of each group; neighbouring groups of one filter are added up together.
        """
        chunks: list[tuple[int, ...]] = []
        rows: list[int] = []
        runs = [list(run) for _, run in itertools.groupby(range(len(owners)), key=owners.__getitem__)]
        needed, count = -(-CHUNKS // len(runs)), len(self.signals)
        for run in runs:
            parts = min(count, max(needed, count * len(run) // CHUNK))
            for first, last in _cuts(count, parts):
                for left, right in _cuts(len(run), -(-needed // parts)):
                    chunks.append((first, last, run[left], run[right - 1] + 1, len(rows)))
                    rows.extend(owners[run[0]])
        return np.asarray(chunks), rows

    def _over_groups(self, length: int) -> tuple[Array, list[int], Array]:
        """Add up spectra: return rows of partial sums, the filter of each, and the sums of products of peaks."""
        x, g, kind = self.x, self.g, self.kind
        packed = x.strides[-1] == x.itemsize and g.strides[-1] == g.itemsize
        groups = Groups.of(x.shape[-1], self.heads, kind.lanes, packed=packed)
        chunks, owners = self._chunks([tuple(range(lane[0], lane[-1] + 1)) for lane in groups.heads.tolist()])
        out = np.zeros((len(owners), 2 * length), kind.computed)
        peaks = np.zeros((len(chunks), kind.lanes))
        signals, rows = self.signals.rows(x, g), groups.rows(x.strides[-1], g.strides[-1])
        steps = plan(length, kind.computed.__name__)

        def worker() -> Callable[[int, int], None]:
            *buffers, _ = _buffers(kind, length, 3)
            notes = aligned((2 * kind.lanes,), kind.computed)

            def work(first: int, last: int) -> None:
                correlations.correlate(
                    self.marks, x.ctypes.data, x.strides[-2], x.strides[-1], g.ctypes.data, g.strides[-2],
                    g.strides[-1], signals, rows, groups.heads, chunks, first, last,
                    steps.constants, steps.steps, kind.lowest, kind.highest, *buffers, notes, peaks, out,
                )  # fmt: skip

            return work

        share_out(len(chunks), worker, threads=_threads(len(self.signals) * x.shape[-1] * length))
        totals = np.zeros(self.heads)
        np.add.at(totals, groups.heads[chunks[:, 2]], peaks)
        return out, owners, totals

    def _over_heads(self, length: int) -> tuple[Array, list[int], Array]:
        """Do the same for filters that read neighbouring channels."""
        x, g, kind, kernel = self.x, self.g, self.kind, self.kernel
        channels = x.shape[-1] // self.heads
        chunks, owners = self._chunks([tuple(range(i * kernel, (i + 1) * kernel)) for i in range(self.heads)])
        out = np.zeros((len(owners), 2 * length), kind.computed)
        peaks = np.zeros(len(chunks))
        signals = self.signals.rows(x, g)
        steps = plan(length, kind.computed.__name__)

        def worker() -> Callable[[int, int], None]:
            x_buffer, g_buffer, notes = _buffers(kind, length, 2)
            window = window_of(kind, length, kernel)
            totals = aligned((kernel, 2 * kind.lanes * length), kind.computed)

            def work(first: int, last: int) -> None:
                neighbours.correlate_neighbours(
                    self.marks, x.ctypes.data, x.strides[-2], x.strides[-1], g.ctypes.data, g.strides[-2],
                    g.strides[-1], signals, self.heads, channels, kernel, chunks, first, last,
                    x.strides[-1] == x.itemsize, g.strides[-1] == g.itemsize, steps.constants, steps.steps,
                    kind.lowest, kind.highest, x_buffer, g_buffer, window, totals, notes, peaks, out,
                )  # fmt: skip

            return work

        share_out(len(chunks), worker, threads=_threads(len(self.signals) * x.shape[-1] * length))
        totals = np.zeros(self.heads)
        np.add.at(totals, chunks[:, 2], peaks)
        return out, owners, totals
