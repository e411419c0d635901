"""The laws of numbers: errors, range, and what is not finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._calls import N_LONG, SMALLEST, Law, correlate_of, matmul_of
from .libraries import Library
from .oracles import (
    check_close,
    check_equal,
    correlation_bound,
    dense_correlation,
    dense_product,
    error_bound,
    nan_outputs,
    normal,
)

__all__ = ["ACCURACY_LAWS"]


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
            y = library.to_numpy(matmul_of(library, backend, adjoint)(*arrays, *extra))
            nans = nan_outputs(bad_w, bad_x, adjoint=adjoint, ids=rows)
            expected = np.where(
                nans,
                math.nan,
                dense_product(clean_w, clean_x, adjoint=adjoint, ids=rows),
            )
            what = f"non-finite w{at_w} x{at_x}, {adjoint=} {segments=}"
            check_equal(np.isnan(y), nans, what)
            bound = np.broadcast_to(4 * error_bound(clean_w, clean_x, "float32", adjoint=adjoint), y.shape)
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
            correlate_of(library, backend, n, 2, 3)(
                library.asarray(x, "float32"), library.asarray(g, "float32"), *extra
            )
        )
        check_equal(np.isnan(c), nans, f"non-finite {name}{at}, {segments=}")
        bound = correlation_bound(clean_x, clean_g, "float32", 2, 3)
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
            y = library.to_numpy(matmul_of(library, backend, adjoint, method)(*arrays)).astype(float)
            check_close(
                y, dense_product(w, x, adjoint=adjoint), error_bound(w, x, "float32") + n * SMALLEST, f"range: {what}"
            )
        if what.startswith("large where"):
            continue
        pair = w[0, 0][:, None], x[0][:, :1]
        c = library.to_numpy(correlate_of(library, backend, n)(*(library.asarray(a, "float32") for a in pair)))
        expected = dense_correlation(*pair, n, 1, 1)[0]
        bound = correlation_bound(*pair, "float32", 1, 1)[0] + n * SMALLEST
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
                run = matmul_of(library, backend, adjoint, method)
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
            y = library.to_numpy(matmul_of(library, backend, adjoint)(*arrays))
            bound = error_bound(filters, signals, "float32", adjoint=adjoint) + n * SMALLEST
            check_close(y, dense_product(filters, signals, adjoint=adjoint), bound, "independence of channels and rows")


ACCURACY_LAWS: tuple[Law, ...] = (
    check_non_finite,
    check_non_finite_correlation,
    check_range,
    check_errors,
    check_independence,
)
