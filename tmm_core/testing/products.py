"""The laws of products, whichever backend computes them and whichever library the arrays are of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tmm_core

from .._arrays.exchange import Array, dtype_name
from ..backend import Method
from ..errors import InputError
from ._calls import N_LONG, N_SHORT, Law, correlate_of, matmul_of
from .libraries import Library
from .oracles import (
    EPS,
    Numbers,
    check_close,
    check_equal,
    correlation_bound,
    dense_correlation,
    dense_product,
    error_bound,
    lag_matrix,
    normal,
)

__all__ = ["PRODUCT_LAWS", "check_gradients"]


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
                y = library.to_numpy(matmul_of(library, backend, adjoint, method)(*arrays))
                check_close(
                    y,
                    dense_product(w, x, adjoint=adjoint),
                    error_bound(w, x, dtype, adjoint=adjoint),
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
            found = correlate_of(library, backend, lags, 2, kernel_size, method)(
                library.asarray(x, dtype), library.asarray(g, dtype)
            )
            expected = dense_correlation(x, g, lags, 2, kernel_size)
            bound = correlation_bound(x, g, dtype, 2, kernel_size)
            c = library.to_numpy(found).reshape(expected.shape)
            check_close(c, expected, bound, f"correlation of {dtype}, {n=} {lags=}")


def check_identities(library: Library, backend: str) -> None:
    """Linear in both factors; `<g, T x> = <T^H g, x> = <correlate(x, g), w>`."""
    rng = np.random.default_rng(2)
    n, dtype = N_LONG, library.dtypes[-1]
    w, v = normal(rng, 2, 3, n, dtype=dtype), normal(rng, 2, 3, n, dtype=dtype)
    x, g = normal(rng, 2, n, 6, dtype=dtype), normal(rng, 2, n, 6, dtype=dtype)

    def run(w: Numbers, x: Numbers, adjoint: bool = False) -> Numbers:
        product = matmul_of(library, backend, adjoint)
        return library.to_numpy(product(library.asarray(w, dtype), library.asarray(x, dtype)))

    y = run(w, x)
    bound = 8 * (error_bound(w, x, dtype) + error_bound(v, x, dtype) + error_bound(w, g, dtype))
    check_close(run(w, x + 2 * g), y + 2 * run(w, g), bound, "linearity in x")
    check_close(run(w + 2 * v, x), y + 2 * run(v, x), bound, "linearity in w")
    correlate = correlate_of(library, backend, n, 2, 3)
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
            run = matmul_of(library, backend, False, method)
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
        run = matmul_of(library, backend, adjoint)
        y = library.to_numpy(run(library.asarray(w, "float32"), library.asarray(x, "float32"), packed))
        expected = dense_product(w, x, adjoint=adjoint, ids=ids)
        check_close(y, expected, 4 * error_bound(w, x, "float32", adjoint=adjoint), f"documents, {adjoint=}")
        for change in (7.0, 3e38, math.inf, math.nan):
            other = np.where(second, x, change)
            z = library.to_numpy(run(library.asarray(w, "float32"), library.asarray(other, "float32"), packed))
            check_equal(np.where(second, z, 0), np.where(second, y, 0), f"isolation from {change}, {adjoint=}")
    g = normal(rng, 2, n, 6, dtype="float32")
    correlate = correlate_of(library, backend, n, 2, 3)
    c = library.to_numpy(correlate(library.asarray(x, "float32"), library.asarray(g, "float32"), packed))
    bound = correlation_bound(x, g, "float32", 2, 3)
    check_close(c, dense_correlation(x, g, n, 2, 3, ids), bound, "correlation within documents")


def check_decreasing_segments(library: Library, backend: str) -> None:
    """Documents out of order are refused; in traced code, their rows are NaN."""
    ids = library.asarray(np.asarray([[0] * 10 + [1] * 10, [1] * 10 + [0] * 10]), "int32")
    w, x = library.asarray(np.ones((1, 1, 20)), "float32"), library.asarray(np.ones((2, 20, 2)), "float32")
    try:
        y = library.to_numpy(matmul_of(library, backend)(w, x, ids))
    except ValueError:
        if library.traced:
            raise
        return
    if not library.traced or not np.all(np.isnan(y[1])) or np.any(np.isnan(y[0])):
        raise AssertionError("decreasing segment_ids were not refused")


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
        y = matmul_of(library, backend)(*arrays)
        name = dtype_name(y.dtype)
        if name != expected:
            raise AssertionError(f"{first} and {second} must give {expected}, not {name}")
        if type(y) is not type(arrays[1]) and not library.traced:
            raise AssertionError(f"expected an array of {type(arrays[1])}, got {type(y)}")
        bound = error_bound(w, x, expected) + EPS[expected] * np.abs(dense_product(w, x))
        check_close(library.to_numpy(y), dense_product(w, x), bound, f"product of {first} and {second}")


def check_shapes(library: Library, backend: str) -> None:
    """Any length, batch and strides are served, one-dimensional arrays too, and inputs are left as they were."""
    rng = np.random.default_rng(11)
    for shape in ((1, 1), (0, 2), (0, N_SHORT, 2), (2, 0, N_SHORT, 2), (2, 1, 3, 4)):
        x = normal(rng, *shape, dtype="float32")
        w = normal(rng, 1, 1, 5, dtype="float32")
        y = library.to_numpy(matmul_of(library, backend)(library.asarray(w, "float32"), library.asarray(x, "float32")))
        check_close(y, dense_product(w, x), error_bound(w, x, "float32"), f"shape {shape}")
        run = correlate_of(library, backend, 5)
        c = library.to_numpy(run(library.asarray(x, "float32"), library.asarray(x, "float32")))
        bound = correlation_bound(x, x, "float32", 1, 1)[0]
        check_close(c, dense_correlation(x, x, 5, 1, 1)[0], bound, f"correlation of shape {shape}")
    w, x = normal(rng, N_LONG, dtype="float32"), normal(rng, N_LONG, dtype="float32")
    arrays = library.asarray(w, "float32"), library.asarray(x, "float32")
    y = library.to_numpy(matmul_of(library, backend)(*arrays))
    expected = dense_product(w[None, None], x[:, None])[:, 0]
    check_close(y, expected, error_bound(w[None, None], x[:, None], "float32")[0], "one-dimensional arrays")
    check_equal(library.to_numpy(arrays[0]), w, "the filter after the call")
    check_equal(library.to_numpy(arrays[1]), x, "the signal after the call")
    turned = np.asarray(normal(rng, 6, 2 * N_LONG, 2, dtype="float32"), np.float32).transpose(2, 1, 0)[:, ::-2]
    w = normal(rng, 2, 3, N_LONG, dtype="float32")
    y = library.to_numpy(matmul_of(library, backend)(library.asarray(w, "float32"), library.asarray(turned, "float32")))
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
        run = matmul_of(library, backend, adjoint)
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
    got = library.vjp(correlate_of(library, backend, n, 2, 3), (arrays[1], arrays[2]), arrays[3])
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
    condition = max(np.linalg.cond(lag_matrix(row, n)) for row in w)
    check_close(solved, x, 100 * condition * EPS[dtype] * np.max(np.abs(x)), "solution")
    unit = np.zeros(n)
    unit[0] = 1
    product = np.stack([np.convolve(a, b)[:n] for a, b in zip(w, lags, strict=True)])
    check_close(product, np.tile(unit, (2, 1)), 100 * condition * EPS[dtype], "inverse")


PRODUCT_LAWS: tuple[Law, ...] = (
    check_products,
    check_correlations,
    check_identities,
    check_causality,
    check_segments,
    check_decreasing_segments,
    check_dtypes,
    check_shapes,
    check_solve,
)
