"""The laws of the products as checks that any backend and any array library can be put through.

A stranger's backend passes when every law holds for every library that it serves::

    from tmm_core.testing import LAWS, STREAMING_LAWS, get_library
    for law in (*LAWS, *STREAMING_LAWS):
        law(get_library("numpy"), "mybackend")

and, with a library that differentiates, `check_gradients`. This module needs NumPy, which computes the oracles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tmm_core

from .._arrays.exchange import Array
from ..backend import Method
from ..errors import InputError
from .batches import BATCH_LAWS
from .libraries import Library
from .oracles import (
    EPS,
    ERROR_CONSTANT,
    Numbers,
    channel_norms,
    check_close,
    check_equal,
    dense_correlation,
    dense_product,
    error_bound,
    error_factor,
    lag_matrix,
    nan_outputs,
    normal,
)
from .streaming import STREAMING_ERROR_CONSTANT, STREAMING_LAWS

__all__ = [
    "BATCH_LAWS",
    "ERROR_CONSTANT",
    "LAWS",
    "STREAMING_ERROR_CONSTANT",
    "STREAMING_LAWS",
    "check_gradients",
]

SMALLEST = 2.0**-126
"""The smallest normal float32: XLA reads and writes zero for what is smaller."""

Law = Callable[[Library, str], None]


# Calls ---------------------------------------------------------------------------------------------------------------

N_LONG, N_SHORT = 131, 16
"""Lengths on both sides of where direct sums stop paying, few since JAX compiles every operation for each."""


@functools.cache
def _matmul(library: Library, backend: str, adjoint: bool = False, method: Method = "auto") -> Callable[..., Array]:
    """Return the product as a function of arrays, compiled once for all laws."""

    def matmul(w: Array, x: Array, segment_ids: Array | None = None) -> Array:
        return tmm_core.causal_toeplitz_matmul(
            w, x, adjoint=adjoint, method=method, segment_ids=segment_ids, backend=backend
        )

    return library.transform(matmul)


@functools.cache
def _correlate(
    library: Library, backend: str, lags: int, heads: int = 1, kernel_size: int = 1, method: Method = "auto"
) -> Callable[..., Array]:
    def correlate(x: Array, g: Array, segment_ids: Array | None = None) -> Array:
        return tmm_core.causal_toeplitz_correlate(
            x,
            g,
            lags=lags,
            heads=heads,
            kernel_size=kernel_size,
            method=method,
            segment_ids=segment_ids,
            backend=backend,
        )

    return library.transform(correlate)


# Laws ----------------------------------------------------------------------------------------------------------------


def check_products(library: Library, backend: str) -> None:
    """Product and adjoint are the definition's: whole, banded, with unused lags, heads, kernels, by either method."""
    rng = np.random.default_rng(0)
    for n, lags, kernel_size, method in (
        (N_LONG, N_LONG, 3, "auto"),
        (N_LONG, 9, 1, "auto"),
        (N_SHORT, 25, 3, "auto"),
        (N_LONG, N_LONG, 3, "direct"),
    ):
        for dtype in [name for name in ("float32", "complex128") if name in library.dtypes]:
            w, x = normal(rng, 2, kernel_size, lags, dtype=dtype), normal(rng, 2, n, 6, dtype=dtype)
            arrays = library.asarray(w, dtype), library.asarray(x, dtype)
            for adjoint in (False, True):
                y = library.to_numpy(_matmul(library, backend, adjoint, method)(*arrays))
                check_close(
                    y,
                    dense_product(w, x, adjoint=adjoint),
                    error_bound(w, x, dtype),
                    f"product of {dtype}, {n=} {lags=}",
                )


def check_correlations(library: Library, backend: str) -> None:
    """The correlation is the definition's, and its lags beyond the length are zero."""
    rng = np.random.default_rng(1)
    for n, lags, kernel_size, method in (
        (N_LONG, 135, 3, "auto"),
        (N_LONG, 9, 1, "auto"),
        (N_SHORT, 16, 3, "auto"),
        (N_SHORT, 16, 3, "direct"),
    ):
        for dtype in [name for name in ("float32", "complex128") if name in library.dtypes]:
            x, g = normal(rng, 2, n, 6, dtype=dtype), normal(rng, 2, n, 6, dtype=dtype)
            found = _correlate(library, backend, lags, 2, kernel_size, method)(
                library.asarray(x, dtype), library.asarray(g, dtype)
            )
            expected = dense_correlation(x, g, lags, 2, kernel_size)
            bound = error_factor(n, dtype) * 4 * np.max(channel_norms(x)) * np.max(channel_norms(g)) * 6
            c = library.to_numpy(found).reshape(expected.shape)
            check_close(c, expected, bound, f"correlation of {dtype}, {n=} {lags=}")


def check_identities(library: Library, backend: str) -> None:
    """Linear in both factors; `<g, T x> = <T^H g, x> = <correlate(x, g), w>`."""
    rng = np.random.default_rng(2)
    n, dtype = N_LONG, library.dtypes[-1]
    w, v = normal(rng, 2, 3, n, dtype=dtype), normal(rng, 2, 3, n, dtype=dtype)
    x, g = normal(rng, 2, n, 6, dtype=dtype), normal(rng, 2, n, 6, dtype=dtype)

    def run(w: Numbers, x: Numbers, adjoint: bool = False) -> Numbers:
        product = _matmul(library, backend, adjoint)
        return library.to_numpy(product(library.asarray(w, dtype), library.asarray(x, dtype)))

    y = run(w, x)
    bound = 8 * (error_bound(w, x, dtype) + error_bound(v, x, dtype) + error_bound(w, g, dtype))
    check_close(run(w, x + 2 * g), y + 2 * run(w, g), bound, "linearity in x")
    check_close(run(w + 2 * v, x), y + 2 * run(v, x), bound, "linearity in w")
    correlate = _correlate(library, backend, n, 2, 3)
    c = library.to_numpy(correlate(library.asarray(x, dtype), library.asarray(g, dtype)))
    inner = np.vdot(y, g)
    scale = np.sum(np.abs(y) * np.abs(g)) * n
    check_close(np.vdot(x, run(w, g, adjoint=True)), inner, 64 * EPS[dtype] * scale, "adjoint identity")
    check_close(np.vdot(w, c), inner, 64 * EPS[dtype] * scale, "correlate identity")


def check_causality(library: Library, backend: str) -> None:
    """Later inputs change no bit of an output by direct sums, and of others no more than rounding."""
    rng = np.random.default_rng(3)
    n, t = N_LONG, 70
    w, x = normal(rng, 2, 3, n, dtype="float32"), normal(rng, 2, n, 6, dtype="float32")
    for change in (1.0, 1e4, 3e38, math.nan):
        other = x.copy()
        other[:, t:] = change
        methods: tuple[Method, ...] = ("direct", "auto")
        for method in methods:
            run = _matmul(library, backend, False, method)
            y, z = (library.to_numpy(run(library.asarray(w, "float32"), library.asarray(a, "float32")))[:, :t]
                    for a in (x, other))  # fmt: skip
            if method == "direct" or math.isnan(change):
                leak = 0.0 if method == "direct" else 2 * error_bound(w, x, "float32")
            else:
                leak = 2 * error_bound(w, other, "float32")
            check_close(z, y, leak, f"causality after a change to {change}, {method=}")


def check_segments(library: Library, backend: str) -> None:
    """Documents give what each gives alone, and no bit of one changes with the others, whatever they hold."""
    rng = np.random.default_rng(4)
    n = library.packed_length
    ids = np.stack([np.repeat([0, 1, 5], [5, n // 2, n - n // 2 - 5]), np.repeat([-2, 3, 4], [1, n - 8, 7])])
    w, x = normal(rng, 2, 3, n, dtype="float32"), normal(rng, 2, n, 6, dtype="float32")
    packed = library.asarray(ids, "int32")
    second = (ids == np.asarray([[1], [3]]))[..., None]
    for adjoint in (False, True):
        run = _matmul(library, backend, adjoint)
        y = library.to_numpy(run(library.asarray(w, "float32"), library.asarray(x, "float32"), packed))
        expected = np.stack([dense_product(w, x[row], adjoint=adjoint, ids=ids[row]) for row in range(2)])
        check_close(y, expected, 4 * error_bound(w, x, "float32"), f"documents, {adjoint=}")
        for change in (7.0, 3e38, math.inf, math.nan):
            other = np.where(second, x, change)
            z = library.to_numpy(run(library.asarray(w, "float32"), library.asarray(other, "float32"), packed))
            check_equal(np.where(second, z, 0), np.where(second, y, 0), f"isolation from {change}, {adjoint=}")
    g = normal(rng, 2, n, 6, dtype="float32")
    correlate = _correlate(library, backend, n, 2, 3)
    c = library.to_numpy(correlate(library.asarray(x, "float32"), library.asarray(g, "float32"), packed))
    alone = np.stack([dense_correlation(x[row], g[row], n, 2, 3, ids[row]) for row in range(2)])
    bound = error_factor(n, "float32") * 16 * np.max(channel_norms(x)) * np.max(channel_norms(g))
    check_close(c, alone.sum(0), bound, "correlation within documents")


def check_unsorted_segments(library: Library, backend: str) -> None:
    """Documents out of order are refused; in traced code, their rows are NaN."""
    ids = library.asarray(np.asarray([[0] * 10 + [1] * 10, [1] * 10 + [0] * 10]), "int32")
    w, x = library.asarray(np.ones((1, 1, 20)), "float32"), library.asarray(np.ones((2, 20, 2)), "float32")
    try:
        y = library.to_numpy(_matmul(library, backend)(w, x, ids))
    except ValueError:
        if library.traced:
            raise
        return
    if not library.traced or not np.all(np.isnan(y[1])) or np.any(np.isnan(y[0])):
        raise AssertionError("decreasing segment_ids were not refused")


def check_non_finite(library: Library, backend: str) -> None:
    """A non-finite entry makes NaN exactly where the law says, and counts as zero elsewhere."""
    rng = np.random.default_rng(5)
    n, lags = library.packed_length, 9
    plain = normal(rng, 2, 3, lags, dtype="float32"), normal(rng, 2, n, 6, dtype="float32")
    ids = np.tile(np.repeat([0, 1], [7, n - 7]), (2, 1))
    entries: tuple[tuple[Any, Any], ...] = ((None, (0, 5, 1)), ((1, 0, 4), None), ((0, 1, 3), (1, n - 1, 5)))
    for at_w, at_x in entries:
        w, x = (a.copy() for a in plain)
        clean_w, clean_x = (a.copy() for a in plain)
        bad_w, bad_x = np.zeros(w.shape), np.zeros(x.shape)
        if at_w is not None:
            w[at_w], clean_w[at_w], bad_w[at_w] = math.inf, 0, 1
        if at_x is not None:
            x[at_x], clean_x[at_x], bad_x[at_x] = math.nan, 0, 1
        for adjoint, segments in ((False, False), (True, False), (False, True), (True, True)):
            rows = ids if segments else None
            extra = (library.asarray(ids, "int32"),) if segments else ()
            arrays = library.asarray(w, "float32"), library.asarray(x, "float32")
            y = library.to_numpy(_matmul(library, backend, adjoint)(*arrays, *extra))
            nans = nan_outputs(bad_w, bad_x, adjoint, ids[0] if segments else None)
            expected = np.where(
                nans,
                math.nan,
                dense_product(clean_w, clean_x, adjoint=adjoint, ids=None if rows is None else rows[0]),
            )
            what = f"non-finite w{at_w} x{at_x}, {adjoint=} {segments=}"
            check_equal(np.isnan(y), nans, what)
            bound = np.broadcast_to(4 * error_bound(clean_w, clean_x, "float32"), y.shape)
            check_close(y[~nans], expected[~nans], bound[~nans], what)


def check_non_finite_correlation(library: Library, backend: str) -> None:
    """A non-finite entry makes NaN of the lags at which it is read."""
    rng = np.random.default_rng(6)
    n = library.packed_length
    ids = np.repeat([0, 1], [7, n - 7])
    for name, at, segments in (("x", (1, n - 10, 1), False), ("g", (0, 7, 4), False), ("x", (0, 5, 0), True),
                               ("g", (0, 12, 4), True)):  # fmt: skip
        x, g = normal(rng, 2, n, 6, dtype="float32"), normal(rng, 2, n, 6, dtype="float32")
        clean_x, clean_g, marks = x.copy(), g.copy(), np.zeros(x.shape)
        dirty, clean = (x, clean_x) if name == "x" else (g, clean_g)
        dirty[at], clean[at], marks[at] = -math.inf, 0, 1
        ones = np.ones(x.shape)
        pair = (marks, ones) if name == "x" else (ones, marks)
        rows = ids if segments else None
        nans = dense_correlation(*pair, n, 2, 3, rows) > 0.5
        expected = dense_correlation(clean_x, clean_g, n, 2, 3, rows)
        extra = (library.asarray(np.tile(ids, (2, 1)), "int32"),) if segments else ()
        c = library.to_numpy(
            _correlate(library, backend, n, 2, 3)(library.asarray(x, "float32"), library.asarray(g, "float32"), *extra)
        )
        check_equal(np.isnan(c), nans, f"non-finite {name}{at}, {segments=}")
        bound = error_factor(n, "float32") * 16 * np.max(channel_norms(clean_x)) * np.max(channel_norms(clean_g))
        check_close(c[~nans], expected[~nans], bound, f"correlation beside a non-finite {name}")


def check_range(library: Library, backend: str) -> None:
    """Finite inputs give finite outputs where the exact result is representable, however large or small they are."""
    rng = np.random.default_rng(7)
    n = N_LONG
    w, x = normal(rng, 1, 1, n, dtype="float32"), normal(rng, 1, n, 4, dtype="float32")
    last_w, last_x = np.zeros_like(w), np.zeros_like(x)
    last_w[..., -1], last_x[:, -1] = 3e38, 3e38
    step = np.zeros_like(w)
    step[..., :3] = -3e38, 3e38, 3e38  # sums of two overflow, those of three do not
    cases = {
        "large terms that cancel": (step, np.ones_like(x)),
        "large signal, small filter": (w * np.float32(1e-30), x * np.float32(1e36)),
        "small signal, large filter": (w * np.float32(1e36), x * np.float32(1e-30)),
        "both small": (w * np.float32(1e-17), x * np.float32(1e-17)),
        "large where they do not meet": (last_w, last_x),
    }
    for what, pair in cases.items():
        w, x = (a.astype(np.float32).astype(float) for a in pair)
        for adjoint, method in ((False, "auto"), (True, "auto"), (False, "direct")):
            if adjoint and what.startswith("large where"):
                continue
            arrays = library.asarray(w, "float32"), library.asarray(x, "float32")
            y = library.to_numpy(_matmul(library, backend, adjoint, method)(*arrays)).astype(float)
            check_close(
                y, dense_product(w, x, adjoint=adjoint), error_bound(w, x, "float32") + n * SMALLEST, f"range: {what}"
            )
        if what.startswith("large where"):
            continue
        run = _correlate(library, backend, n)
        c = library.to_numpy(run(library.asarray(w[0, 0][:, None], "float32"), library.asarray(x[0], "float32")[:, :1]))
        expected = dense_correlation(w[0, 0][:, None], x[0][:, :1], n, 1, 1)[0]
        bound = error_factor(n, "float32") * np.linalg.norm(w) * np.linalg.norm(x[0, :, 0]) + n * SMALLEST
        check_close(c.astype(float), expected, bound, f"range of the correlation: {what}")


def check_errors(library: Library, backend: str) -> None:
    """The error law, on white, alternating, heavy-tailed and badly scaled signals."""
    rng = np.random.default_rng(8)
    n = 1021
    t = np.arange(n)
    signals = np.stack(
        [
            rng.standard_normal(n),
            (-1.0) ** t,
            np.full(n, 0.1),
            rng.standard_cauchy(n) ** 3,
            10.0 ** rng.uniform(-15, 15, n),
            np.exp(-t / 3.0),
        ],
        axis=-1,
    )[None]
    filters = {
        "white": rng.standard_normal(n),
        "ones": np.ones(n),
        "heavy-tailed": rng.standard_cauchy(n) ** 3,
        "decay": np.exp(-t / 50.0),
    }
    for dtype in [name for name in ("float32", "float64") if name in library.dtypes]:
        x = signals.astype(dtype).astype(np.longdouble)
        array = library.asarray(x.astype(dtype), dtype)
        for name, lags in filters.items():
            w = lags.astype(dtype).astype(np.longdouble)[None, None]
            for adjoint, method in ((False, "auto"), (True, "auto"), (False, "direct")):
                run = _matmul(library, backend, adjoint, method)
                y = library.to_numpy(run(library.asarray(w.astype(dtype), dtype), array))
                turn = -1 if adjoint else 1
                expected = np.stack([np.convolve(w[0, 0], a[::turn])[:n][::turn] for a in x[0].T], axis=-1)[None]
                check_close(
                    y, expected, error_bound(w, x, dtype), f"error law of {dtype}, {name} filter, {adjoint=} {method=}"
                )


def check_independence(library: Library, backend: str) -> None:
    """A far larger channel, row or row of a kernel puts no error into another: each has the error of its own."""
    rng = np.random.default_rng(9)
    n = N_LONG
    w, x = normal(rng, 2, 1, n, dtype="float32"), normal(rng, 2, n, 6, dtype="float32")
    x[:, :, 1] *= 1e6
    x[1] *= 1e12
    x = x.astype(np.float32).astype(float)
    kernels, sparse = normal(rng, 2, 3, n, dtype="float32"), x.copy()
    kernels[:, 0], kernels[:, 1:] = kernels[:, 0] * 2.0**-100, kernels[:, 1:] * 2.0**45
    sparse[..., 1::3] = sparse[..., 2::3] = 0  # so that the faint row is heard alone
    for filters, signals in ((w, x), (kernels, sparse)):
        arrays = library.asarray(filters, "float32"), library.asarray(signals, "float32")
        for adjoint in (False, True):
            y = library.to_numpy(_matmul(library, backend, adjoint)(*arrays))
            expected, bound = dense_product(filters, signals, adjoint=adjoint), error_bound(filters, signals, "float32")
            check_close(y, expected, bound + n * SMALLEST, "independence of channels and rows")


def check_dtypes(library: Library, backend: str) -> None:
    """Results have the dtype that the inputs promote to, halves their own, on the inputs' device."""
    rng = np.random.default_rng(10)
    promoted = {
        frozenset(("float16", "bfloat16")): "float32",
        frozenset(("float16", "float32")): "float32",
        frozenset(("bfloat16", "float32")): "float32",
        frozenset(("float32", "float64")): "float64",
        frozenset(("float32", "complex64")): "complex64",
        frozenset(("float64", "complex64")): "complex128",
    }
    promoted |= {frozenset((name,)): name for name in library.dtypes}
    for names, expected in promoted.items():
        if not names <= set(library.dtypes):
            continue
        first, second = sorted(names)[0], sorted(names)[-1]
        w, x = normal(rng, 1, 1, N_SHORT, dtype=first), normal(rng, 1, N_SHORT, 2, dtype=second)
        arrays = library.asarray(w, first), library.asarray(x, second)
        y = _matmul(library, backend)(*arrays)
        name = getattr(y.dtype, "name", None) or str(y.dtype).rsplit(".", 1)[-1]
        if name != expected:
            raise AssertionError(f"{first} and {second} must give {expected}, not {name}")
        if type(y) is not type(arrays[1]) and not library.traced:
            raise AssertionError(f"expected an array of {type(arrays[1])}, got {type(y)}")
        computed = "float32" if expected in ("float16", "bfloat16") else expected
        bound = error_bound(w, x, computed) + EPS[expected] * np.abs(dense_product(w, x))
        check_close(library.to_numpy(y), dense_product(w, x), bound, f"product of {first} and {second}")


def check_shapes(library: Library, backend: str) -> None:
    """Any length, batch and strides are served, one-dimensional arrays too, and inputs are left as they were."""
    rng = np.random.default_rng(11)
    for shape in ((1, 1), (0, 2), (0, N_SHORT, 2), (2, 0, N_SHORT, 2), (2, 1, 3, 4)):
        x = normal(rng, *shape, dtype="float32")
        w = normal(rng, 1, 1, 5, dtype="float32")
        y = library.to_numpy(_matmul(library, backend)(library.asarray(w, "float32"), library.asarray(x, "float32")))
        check_close(y, dense_product(w, x), error_bound(w, x, "float32"), f"shape {shape}")
        run = _correlate(library, backend, 5)
        c = library.to_numpy(run(library.asarray(x, "float32"), library.asarray(x, "float32")))
        bound = error_factor(max(shape[-2], 2), "float32") * 4 * (np.sum(x**2) + 1)
        check_close(c, dense_correlation(x, x, 5, 1, 1)[0], bound, f"correlation of shape {shape}")
    w, x = normal(rng, N_LONG, dtype="float32"), normal(rng, N_LONG, dtype="float32")
    arrays = library.asarray(w, "float32"), library.asarray(x, "float32")
    y = library.to_numpy(_matmul(library, backend)(*arrays))
    expected = dense_product(w[None, None], x[:, None])[:, 0]
    check_close(y, expected, error_bound(w[None, None], x[:, None], "float32")[0], "one-dimensional arrays")
    check_equal(library.to_numpy(arrays[0]), w, "the filter after the call")
    check_equal(library.to_numpy(arrays[1]), x, "the signal after the call")
    turned = np.asarray(normal(rng, 6, 2 * N_LONG, 2, dtype="float32"), np.float32).transpose(2, 1, 0)[:, ::-2]
    w = normal(rng, 2, 3, N_LONG, dtype="float32")
    y = library.to_numpy(_matmul(library, backend)(library.asarray(w, "float32"), library.asarray(turned, "float32")))
    check_close(y, dense_product(w, turned.astype(float)), error_bound(w, turned.astype(float), "float32"), "strides")


def check_gradients(library: Library, backend: str) -> None:
    """Cotangents of product, adjoint and correlation, of order one and two, are those of the definition."""
    if library.vjp is None:
        raise InputError(f"{library.name} has no vjp: this law is for libraries that differentiate")
    rng = np.random.default_rng(12)
    n, dtype = N_SHORT, "float64"
    w, v = normal(rng, 2, 3, n), normal(rng, 2, 3, n)
    x, g, u = (normal(rng, 2, n, 6) for _ in range(3))
    x[0, :, 2] = 0  # a silent channel has derivatives too
    arrays = [library.asarray(a, dtype) for a in (w, x, g, v, u)]
    for adjoint in (False, True):
        run = _matmul(library, backend, adjoint)
        got = library.vjp(run, tuple(arrays[:2]), arrays[2])
        pair = (g, x) if adjoint else (x, g)
        expected = dense_correlation(*pair, n, 2, 3), dense_product(w, g, adjoint=not adjoint)
        for name, found, value in zip(("w", "x"), got, expected, strict=True):
            check_close(
                library.to_numpy(found), value, 1e-9 * np.max(np.abs(value)), f"gradient for {name}, {adjoint=}"
            )
        if library.orders > 1:
            vjp = library.vjp

            def first(w: Array, x: Array, g: Array, run: Any = run, vjp: Any = vjp) -> Array:
                return vjp(run, (w, x), g)[0]

            second = vjp(first, tuple(arrays[:3]), arrays[3])
            # <v, correlate(x, g)> is bilinear in x and g, and does not depend on w.
            by_x = dense_product(v, g, adjoint=not adjoint)
            by_g = dense_product(v, x, adjoint=adjoint)
            for name, found, value in zip(("w", "x", "g"), second, (np.zeros_like(w), by_x, by_g), strict=True):
                if found is not None:
                    what = f"second gradient for {name}, {adjoint=}"
                    check_close(library.to_numpy(found), value, 1e-9 * np.max(np.abs(by_x)), what)
    got = library.vjp(_correlate(library, backend, n, 2, 3), (arrays[1], arrays[2]), arrays[3])
    for name, found, value in zip(
        ("x", "g"), got, (dense_product(v, g, adjoint=True), dense_product(v, x)), strict=True
    ):
        check_close(library.to_numpy(found), value, 1e-9 * np.max(np.abs(value)), f"correlation's gradient for {name}")


def check_solve(library: Library, backend: str) -> None:
    """Solving undoes the product, and the inverse's lags are those of the solution for the unit vector."""
    rng = np.random.default_rng(13)
    n, dtype = 2 * N_SHORT, "float64"
    w, x = normal(rng, 2, n) / 8, normal(rng, 2, n, 4)
    w[:, 0] = [1, -2]
    y = dense_product(w[:, None], x)
    with tmm_core.use_backend(backend):
        solve = library.transform(lambda w, y: tmm_core.causal_toeplitz_solve(w, y))
        inverse = library.transform(lambda w: tmm_core.causal_toeplitz_inverse(w, n))
        solved = library.to_numpy(solve(library.asarray(w, dtype), library.asarray(y, dtype)))
        lags = library.to_numpy(inverse(library.asarray(w, dtype)))
    condition = max(np.linalg.cond(lag_matrix(row, n, None)) for row in w)
    check_close(solved, x, 100 * condition * EPS[dtype] * np.max(np.abs(x)), "solution")
    unit = np.zeros(n)
    unit[0] = 1
    product = np.stack([np.convolve(a, b)[:n] for a, b in zip(w, lags, strict=True)])
    check_close(product, np.tile(unit, (2, 1)), 100 * condition * EPS[dtype], "inverse")


LAWS: tuple[Law, ...] = (
    check_products,
    check_correlations,
    check_identities,
    check_causality,
    check_segments,
    check_unsorted_segments,
    check_non_finite,
    check_non_finite_correlation,
    check_range,
    check_errors,
    check_independence,
    check_dtypes,
    check_shapes,
    check_solve,
    *BATCH_LAWS,
)
"""The laws of products and batches, as functions of a library and the name of a backend; a broken one raises
AssertionError. Those of streams are `STREAMING_LAWS`, and that of derivatives is `check_gradients`."""
