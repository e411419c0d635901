"""Sizes of zero: no lags and no rows of a kernel are the zero operator, and nothing gives nothing, as in NumPy."""

import numpy as np
import pytest
import scipy.linalg
from support.requirements import import_or_skip, library_or_skip

import tmm_core

# A library, and an engine that computes on its arrays: every engine, and every library.
PAIRS = [
    ("numpy", "numpy"),
    ("numpy", "numba"),
    ("numpy", "torch"),
    ("numpy-read-only", "array_api"),
    ("dask", "numba"),
]
PAIRS += [("array_api_strict", "array_api"), ("torch", "torch"), ("torch", "numba"), ("jax", "jax")]


def ones(library, *shape):
    return library.asarray(np.ones(shape), "float32")


@pytest.mark.parametrize(("name", "backend"), PAIRS)
@pytest.mark.parametrize(
    ("w", "x"),
    [
        ((2, 1, 0), (3, 5, 4)),  # no lags
        ((2, 1, 0), (140, 4)),
        ((2, 0, 3), (3, 5, 4)),  # no rows of a kernel
        ((0, 2, 3), (3, 5, 0)),  # no heads
        ((2, 2, 3), (3, 0, 4)),  # no times
        ((2, 2, 3), (3, 5, 0)),  # no channels
        ((2, 2, 3), (0, 5, 4)),  # no rows
        ((0, 0, 0), (0, 0, 0)),
    ],
)
def test_nothing_is_zero(name, backend, w, x):
    library = library_or_skip(name)
    for adjoint in (False, True):
        y = tmm_core.causal_toeplitz_matmul(ones(library, *w), ones(library, *x), adjoint=adjoint, backend=backend)
        np.testing.assert_array_equal(library.to_numpy(y), np.zeros(x))
    mixed = tmm_core.mix_tokens(ones(library, *w), ones(library, *x), backend=backend)
    np.testing.assert_array_equal(library.to_numpy(mixed), np.zeros(x))
    heads, kernel_size, lags = w
    c = tmm_core.causal_toeplitz_correlate(
        ones(library, *x), ones(library, *x), lags=lags, heads=heads, kernel_size=kernel_size, backend=backend
    )
    np.testing.assert_array_equal(library.to_numpy(c), np.zeros(w if kernel_size != 1 else (heads, lags)))
    np.testing.assert_array_equal(library.to_numpy(tmm_core.causal_toeplitz(ones(library, *w), 3))[..., 1, 2:], 0)


@pytest.mark.parametrize(("name", "backend"), PAIRS)
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # Dask divides later
@pytest.mark.parametrize("w", [(2, 0), (2, 0, 3), (0, 3)])
def test_nothing_has_a_softplus_of_nothing(name, backend, w):
    """The mean over no lags is 0 / 0; a stream says what the layer does, of no heads as well."""
    library = library_or_skip(name)
    lags, x, bias = ones(library, *w), ones(library, 2, 3, 2 * w[0]), ones(library, w[0], 3)
    for mean in (False, True):
        options = {"softplus": True, "mean": mean, "backend": "array_api" if name == "dask" else backend}
        for signals in (x, x * float("inf")):  # which no lag reads
            y = tmm_core.mix_tokens(lags, signals, bias, **options)
            np.testing.assert_array_equal(library.to_numpy(y), np.full((2, 3, 2 * w[0]), np.nan if mean else 1.0))
        if (name, w[0]) == ("dask", 0):
            continue  # Dask reshapes nothing to nothing only
        plan = tmm_core.stream_plan(lags, 3, bias=bias, **options)
        y, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (2,), 2 * w[0]), x[:, :2, :])
        z, _ = tmm_core.stream_step(plan, state, x[:, 2, :])
        np.testing.assert_array_equal(library.to_numpy(y), np.full((2, 2, 2 * w[0]), np.nan if mean else 1.0))
        np.testing.assert_array_equal(library.to_numpy(z), np.full((2, 2 * w[0]), np.nan if mean else 1.0))


@pytest.mark.parametrize(("name", "backend"), PAIRS)
@pytest.mark.parametrize(("p", "q"), [(0, 0), (0, 3), (3, 0)])
def test_empty_matrices_are_scipys(name, backend, p, q):
    library = library_or_skip(name)
    y = tmm_core.toeplitz_matmul(ones(library, p), ones(library, q), ones(library, q, 2), backend=backend)
    np.testing.assert_array_equal(library.to_numpy(y), scipy.linalg.toeplitz(np.ones(p), np.ones(q)) @ np.ones((q, 2)))


@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_equations_without_unknowns_are_solved(name, backend):
    library = library_or_skip(name)
    for w, y in (((2, 3), (0, 4)), ((2, 0), (0, 4)), ((3,), (0,)), ((0, 3), (5, 0)), ((2, 3), (0, 5, 4))):
        x = tmm_core.causal_toeplitz_solve(ones(library, *w), ones(library, *y), backend=backend)
        assert tuple(x.shape) == y
    assert tuple(tmm_core.causal_toeplitz_inverse(ones(library, 2, 0), 0, backend=backend).shape) == (2, 0)


@pytest.mark.parametrize(("name", "backend"), PAIRS)
@pytest.mark.parametrize(("batch", "d", "lags"), [((0,), 4, 3), ((0,), 4, 1), ((2,), 0, 3), ((2,), 4, 0)])
def test_streams_of_nothing(name, backend, batch, d, lags):
    library = library_or_skip(name)
    if (name, d) == ("dask", 0):
        d, lags = 4, 0  # Dask reshapes nothing to nothing only
    plan = tmm_core.stream_plan(
        ones(library, 2, lags), 9, bias=0 * ones(library, 2, 9), backend="array_api" if name == "dask" else backend
    )
    state = tmm_core.stream_init(plan, batch, d)
    y, state = tmm_core.stream_prefill(plan, state, ones(library, *batch, 0, d))
    assert tuple(y.shape) == (*batch, 0, d)
    y, state = tmm_core.stream_step(plan, state, ones(library, *batch, d))
    np.testing.assert_array_equal(library.to_numpy(y), np.zeros((*batch, d)))
    assert state.position == 1
    y, state = tmm_core.stream_prefill(plan, state, ones(library, *batch, 5, d))
    np.testing.assert_array_equal(library.to_numpy(y), np.zeros((*batch, 5, d)))
    y, state = tmm_core.stream_prefill(plan, state, ones(library, *batch, 0, d))
    assert state.position == 6


def test_the_zero_operator_has_derivatives():
    torch = import_or_skip("torch")
    w, x = torch.ones(2, 0, requires_grad=True), torch.ones(5, 4, requires_grad=True)
    tmm_core.causal_toeplitz_matmul(w, x).sum().backward()
    assert w.grad.shape == (2, 0)
    assert not x.grad.any()


def test_the_zero_operator_has_no_index():
    for shape in ((2, 0), (2, 0, 3)):
        found = tmm_core.fredholm_index(np.ones(shape))
        assert [one.reason for one in found] == ["not Fredholm: every lag is zero"] * 2
    assert tmm_core.fredholm_index(np.ones((0, 3))) == []
    np.testing.assert_array_equal(tmm_core.toeplitz_symbol(np.ones((2, 0)), [0.0, 1.0]), np.zeros((2, 2)))


def test_nothing_joins_lazy_arrays():
    da = import_or_skip("dask.array")
    x, g = np.ones((0, 300, 1), np.complex64), np.ones((0, 300, 1), np.complex64)
    c = tmm_core.causal_toeplitz_correlate(da.from_array(x, chunks=13), g, lags=2)
    np.testing.assert_array_equal(c.compute(), [[0, 0]])
