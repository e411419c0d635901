"""What a case has to give: the operations as sums over lags, with the error law's bound and where NaN belongs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..oracles import (
    EPS,
    Numbers,
    computed_dtype,
    correlation_bound,
    dense_correlation,
    dense_product,
    document_positions,
    error_bound,
    error_factor,
    nan_outputs,
)
from ..streams import stream_factor
from .cases import Case

__all__ = ["Expected", "expected", "largest", "promoted"]


@dataclass(frozen=True)
class Expected:
    """A result by definition."""

    values: Numbers
    """The values, those of finite entries where NaN belongs."""
    bound: Numbers
    """What the error may be."""
    nans: Any
    """Where NaN belongs."""
    terms: Numbers
    """The largest magnitude that is met on the way."""


def promoted(*dtypes: str) -> str:
    """Return what dtypes promote to; two halves that differ to float32."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    double = any(dtype in ("float64", "complex128") for dtype in dtypes)
    if any(dtype.startswith("complex") for dtype in dtypes):
        return "complex128" if double else "complex64"
    return "float64" if double else "float32"


def largest(dtype: str) -> float:
    """Return the largest number of a dtype, of complex ones that of their parts."""
    exact = {"float16": 65504.0, "bfloat16": 2.0**127 * (2 - 2.0**-7), "float32": 2.0**127 * (2 - 2.0**-23)}
    return exact.get({"complex64": "float32"}.get(dtype, dtype), float(np.finfo(np.float64).max))


def expected(case: Case) -> Expected:
    """Return what the call has to give."""
    return _OPERATIONS[case.operation](case)


def _wide(case: Case, name: str) -> Numbers:
    """Return an argument in a dtype that is more exact than what is computed in."""
    values = case.arrays[name]
    exact = any(dtype in ("float64", "complex128") for dtype in case.dtypes.values())
    if np.iscomplexobj(values):
        return values.astype(np.clongdouble if exact else np.complex128)
    return values.astype(np.longdouble if exact else np.float64)


def _clean(a: Numbers) -> tuple[Numbers, Any]:
    """Return an array with zeros for what is not finite, and where that was."""
    bad = ~np.isfinite(a)
    return np.where(bad, 0, a), bad


def _of_channels(rows: Numbers, d: int) -> Numbers:
    """Return one row a head as one column a channel."""
    return np.repeat(rows, d // len(rows), axis=0).T


def _bounded_product(
    case: Case, w: Numbers, x: Numbers, ids: Numbers | None = None, adjoint: bool = False, computed: str = ""
) -> Expected:
    """Return the product of what may not be finite, in the library's own error."""
    computed = computed or computed_dtype(promoted(*(case.dtypes[name] for name in case.dtypes if name in ("w", "x"))))
    (w, bad_w), (x, bad_x) = _clean(w), _clean(x)
    n = x.shape[-2]
    reach = case.options.get("capacity", n)  # a prompt's product reaches over all tokens to come
    w, bad_w = w[..., :reach], bad_w[..., :reach]
    law = error_bound(w, x, computed, adjoint=adjoint)
    bound = np.broadcast_to(law + n * _smallest(computed), x.shape)
    for pair in _unread(case, w, x):
        bound = bound + dense_product(*pair, adjoint=adjoint, ids=ids)
    bad = bad_w.any() or bad_x.any()
    nans = nan_outputs(bad_w, bad_x, adjoint=adjoint, ids=ids) if bad else np.zeros(x.shape, bool)
    terms = law / error_factor(n, computed)
    return Expected(dense_product(w, x, adjoint=adjoint, ids=ids), bound, nans, terms)


def _unread(case: Case, a: Numbers, b: Numbers) -> list[tuple[Numbers, Numbers]]:
    """Return factors, in magnitude, of products that XLA does not see: it reads zeros for what is subnormal."""
    if "jax" not in (case.library.split("-")[0], case.options.get("backend")):
        return []
    smallest = max(_smallest(computed_dtype(dtype)) for name, dtype in case.dtypes.items() if name != "segment_ids")
    size = np.abs(a), np.abs(b)
    return [(np.where(size[0] < smallest, size[0], 0), size[1]), (size[0], np.where(size[1] < smallest, size[1], 0))]


def _smallest(dtype: str) -> float:
    """Return the smallest normal number: below it, results may be zero."""
    return (
        2.0**-126 if dtype in ("float32", "complex64", "bfloat16") else 2.0**-14 if dtype == "float16" else 2.0**-1022
    )


def _finished(found: Expected, result: str, computed: str) -> Expected:
    """Return what is expected after a rounding to the result's dtype."""
    if result in (computed, ""):
        return found
    rounding = EPS[result] * np.abs(found.values) + _smallest(result)
    return Expected(found.values, found.bound + rounding, found.nans, found.terms)


def _filter(w: Numbers) -> Numbers:
    """Return `(h, m, k)`."""
    return w[None, None] if w.ndim == 1 else w[:, None] if w.ndim == 2 else w


def _signal(x: Numbers) -> Numbers:
    return x[:, None] if x.ndim == 1 else x


def _ids(case: Case, x: Numbers) -> Numbers | None:
    return np.broadcast_to(case.arrays["segment_ids"], x.shape[:-1]) if "segment_ids" in case.arrays else None


def _like(found: Expected, shape: tuple[int, ...]) -> Expected:
    values, bound, nans = (np.reshape(a, shape) for a in (found.values, found.bound, found.nans))
    return Expected(values, bound, nans, found.terms)


def _matmul(case: Case) -> Expected:
    w, x = _filter(_wide(case, "w")), _signal(_wide(case, "x"))
    result = promoted(case.dtypes["w"], case.dtypes["x"])
    found = _bounded_product(case, w, x, _ids(case, x), case.options.get("adjoint", False))
    return _like(_finished(found, result, computed_dtype(result)), case.arrays["x"].shape)


def _correlate(case: Case) -> Expected:
    lags, heads, kernel_size = (case.options.get(name, 1) for name in ("lags", "heads", "kernel_size"))
    result = promoted(case.dtypes["x"], case.dtypes["g"])
    computed = computed_dtype(result)
    (x, bad_x), (g, bad_g) = (_clean(_signal(_wide(case, name))) for name in ("x", "g"))
    ids, n = _ids(case, x), x.shape[-2]
    correlation = functools.partial(dense_correlation, lags=lags, heads=heads, kernel_size=kernel_size, ids=ids)
    law = correlation_bound(x, g, computed, heads, kernel_size)
    bound = law + x.size * _smallest(computed)
    for pair in _unread(case, x, g):
        bound = bound + correlation(*pair)
    values, ones = correlation(x, g), np.ones(x.shape)
    nans = np.zeros(values.shape, bool)
    for marks, pair in ((bad_x, (bad_x.astype(float), ones)), (bad_g, (ones, bad_g.astype(float)))):
        nans |= correlation(*pair) > 0 if marks.any() else False
    found = Expected(values, np.broadcast_to(bound, values.shape), nans, law / error_factor(n, computed))
    kept = (lags,) if case.arrays["x"].ndim == 1 else (heads, lags)
    return _like(_finished(found, result, computed), kept if kernel_size == 1 else values.shape)


def _general(case: Case) -> Expected:
    column, x = _wide(case, "column"), _signal(_wide(case, "x"))
    row = _wide(case, "row") if "row" in case.arrays else column.conj()
    result = promoted(*case.dtypes.values())
    p, q = column.shape[-1], row.shape[-1]
    padded = np.concatenate([x, np.zeros((*x.shape[:-2], max(p - q, 0), x.shape[-1]))], axis=-2)
    above = np.concatenate([np.zeros_like(row[..., :1]), row[..., 1:].conj()], axis=-1)
    computed = computed_dtype(result)
    parts = [
        _bounded_product(case, _filter(column), padded, computed=computed),
        _bounded_product(case, _filter(above), padded, adjoint=True, computed=computed),
    ]
    values, bound = (sum(getattr(part, name) for part in parts)[..., :p, :] for name in ("values", "bound"))
    nans = (parts[0].nans | parts[1].nans)[..., :p, :]
    terms = np.maximum(*(np.broadcast_to(np.max(np.abs(part.values), initial=0), 1) for part in parts))
    shape = (p,) if case.arrays["x"].ndim == 1 else values.shape
    # Each part is rounded to the result's dtype, and their sum.
    size = sum(np.abs(part.values)[..., :p, :] for part in parts)
    bound = bound + EPS[result] * size + 2 * _smallest(result)
    return _like(_finished(Expected(values, bound, nans, terms), result, computed), shape)


def _solve(case: Case) -> Expected:
    w, y = _filter(_wide(case, "w"))[:, 0], _signal(_wide(case, "y"))
    result = promoted(case.dtypes["w"], case.dtypes["y"])
    computed = computed_dtype(result)
    (w, bad_w), (y, bad_y) = _clean(w), _clean(y)
    n, d = y.shape[-2:]
    w, bad_w = w[:, :n], bad_w[:, :n]
    w = np.where(bad_w & (np.arange(w.shape[1]) == 0), 1, w)
    lags = _of_channels(w, d)  # (k, d)

    def substituted(y: Numbers) -> Numbers:
        x = np.zeros(y.shape, np.result_type(w, y))
        for t in range(n):
            used = min(t, lags.shape[0] - 1)
            known = np.einsum("jd,...jd->...d", lags[1 : used + 1], x[..., t - used : t, :][..., ::-1, :])
            x[..., t, :] = (y[..., t, :] - known) / lags[0]
        return x

    x = substituted(y)
    inverse = np.abs(substituted((np.arange(n) == 0)[:, None] * np.ones(d)))
    norms = [
        np.sqrt(np.cumsum(np.abs(a) ** 2, axis=-2)) for a in (np.pad(lags, ((0, max(n - len(lags), 0)), (0, 0))), x)
    ]
    residuals = error_factor(n, computed) * math.log2(max(n, 2)) * (norms[0][:n] * norms[1] + np.abs(y))
    bound = 4 * dense_product(inverse.T[:, None], residuals + n * _smallest(computed))
    bound = bound + n * _smallest(computed)
    reach = np.abs(x.real) + np.abs(x.imag) + bound
    # A filter that loses a lag where the first is divided to one is taken as it is, and so must its products be.
    lost = np.any((lags != 0) & (np.abs(lags) < _smallest(computed) * np.abs(lags[:1])), axis=0)
    terms = np.abs(y) + dense_product(np.abs(w)[:, None], np.abs(x))
    reach = np.maximum.accumulate(np.where(lost, np.maximum(reach, terms), reach), axis=-2)
    bound = np.where(reach < largest(computed), bound, np.inf)  # what depends on an overflow may be anything
    nans = np.logical_or.accumulate(bad_y, axis=-2) if w.shape[1] > 1 else bad_y
    nans |= nan_outputs(bad_w[:, None], np.zeros((n, d)))
    return _like(_finished(Expected(x, bound, nans, np.abs(x)), result, computed), case.arrays["y"].shape)


def _layer(case: Case) -> Expected:
    w, x = _filter(_wide(case, "w")), _signal(_wide(case, "x"))
    heads, (n, d), ids = len(w), x.shape[-2:], _ids(case, x)
    computed = computed_dtype(promoted(case.dtypes["w"], case.dtypes["x"]))
    own = computed_dtype(case.dtypes["w"])  # in which positive lags and their sums are computed
    lags = np.logaddexp(w, 0) if case.options.get("softplus") else w
    found = _bounded_product(case, lags, x, ids, computed=computed)
    y, bound = found.values, found.bound
    if case.operation == "stream":
        bound = bound * stream_factor(case.options["capacity"])
    if case.options.get("softplus"):
        softened = 8 * EPS[own] * np.abs(np.where(np.isfinite(lags), lags, 0))
        bound = bound + dense_product(softened, np.abs(np.where(np.isfinite(x), x, 0)), ids=ids)
    positions = document_positions(x.shape[:-1], ids)
    if case.options.get("mean"):
        rows = np.pad(lags[:, 0], ((0, 0), (0, n)))[:, :n]
        sums = _of_channels(np.cumsum(rows, axis=1), d)[positions]
        y, bound = y / sums, bound / np.abs(sums) + 2 * n * EPS[own] * np.abs(y / sums)
    nans = found.nans
    if "bias" in case.arrays:
        bias, bad = _clean(_wide(case, "bias").reshape(heads, -1))
        y, nans = y + _of_channels(bias, d)[positions], nans | _of_channels(bad, d)[positions]
        # A product of halves is rounded to them before the bias is added.
        bound = bound + max(EPS[computed], EPS[case.dtypes["x"]]) * (np.abs(y) + np.abs(found.values))
    result = case.dtypes["x"]
    return _like(_finished(Expected(y, bound, nans, found.terms), result, computed), case.arrays["x"].shape)


_OPERATIONS = {
    "causal_toeplitz_matmul": _matmul,
    "causal_toeplitz_correlate": _correlate,
    "toeplitz_matmul": _general,
    "causal_toeplitz_solve": _solve,
    "mix_tokens": _layer,
    "stream": _layer,
}
