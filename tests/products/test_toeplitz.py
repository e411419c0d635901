"""The public products: refusals, the general Toeplitz product, memory, and what the laws leave to one library."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.linalg
from support.requirements import import_or_skip

import tmm_core
from tmm_core._definition import fourier

RNG = np.random.default_rng(0)
W, X = RNG.standard_normal((2, 5)), RNG.standard_normal((3, 20, 4))


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "float32", lambda: tmm_core.causal_toeplitz_matmul(W, X.astype(int))),
        (TypeError, "float32", lambda: tmm_core.causal_toeplitz_matmul(W > 0, X)),
        (TypeError, "expected an array, got list", lambda: tmm_core.causal_toeplitz_matmul([1.0], X)),
        (ValueError, "must divide", lambda: tmm_core.causal_toeplitz_matmul(W, X[..., :3])),
        (
            ValueError,
            "method must be .auto. or .direct.",
            lambda: tmm_core.causal_toeplitz_matmul(W, X, method="exact"),
        ),
        (TypeError, "w: expected arrays of float16", lambda: tmm_core.causal_toeplitz_matmul(W > 0, X)),
        (TypeError, "x: expected arrays of float16", lambda: tmm_core.mix_tokens(W, X.astype(int))),
        (TypeError, "bias: expected arrays", lambda: tmm_core.mix_tokens(W, X, np.zeros((2, 20), int))),
        (ValueError, r"w must be \(k,\)", lambda: tmm_core.causal_toeplitz_matmul(W[None, None], X)),
        (ValueError, "one-dimensional filter", lambda: tmm_core.causal_toeplitz_matmul(W, X[0, :, 0])),
        (ValueError, "not decrease", lambda: tmm_core.causal_toeplitz_matmul(W, X, segment_ids=np.arange(20)[::-1])),
        (TypeError, "integers", lambda: tmm_core.causal_toeplitz_matmul(W, X, segment_ids=np.zeros(20))),
        (ValueError, "broadcast", lambda: tmm_core.causal_toeplitz_matmul(W, X, segment_ids=np.zeros(19, int))),
        (LookupError, "unknown backend", lambda: tmm_core.causal_toeplitz_matmul(W, X, backend="abacus")),
        (ValueError, "x's shape", lambda: tmm_core.causal_toeplitz_correlate(X, X[:1], lags=3)),
        (ValueError, "at least 0", lambda: tmm_core.causal_toeplitz_correlate(X, X, lags=-1)),
        (TypeError, "integer", lambda: tmm_core.causal_toeplitz_correlate(X, X, lags=2.0)),
        (ValueError, "must divide", lambda: tmm_core.causal_toeplitz_correlate(X, X, lags=2, heads=3)),
        (ValueError, "negative|at least 0", lambda: tmm_core.causal_toeplitz(W, -1)),
        (ValueError, "kernel axis", lambda: tmm_core.causal_toeplitz_solve(W[:, None], X)),
        (ValueError, "no inverse", lambda: tmm_core.causal_toeplitz_solve(0 * W, X)),
        (ValueError, "no inverse", lambda: tmm_core.causal_toeplitz_solve(W[:, :0], X)),
        (ValueError, "no inverse", lambda: tmm_core.causal_toeplitz_inverse(0 * W, 4)),
        (ValueError, "must divide", lambda: tmm_core.causal_toeplitz_matmul(W[:0], X)),
        (ValueError, "as many times", lambda: tmm_core.toeplitz_matmul(W, W, X)),
        (ValueError, "equally many heads", lambda: tmm_core.toeplitz_matmul(W, W[:1], X[:, :5])),
    ],
)
def test_refusals(error, words, call):
    with pytest.raises(error, match=words):
        call()


def test_mixed_libraries_are_refused():
    strict = import_or_skip("array_api_strict")
    with pytest.raises(TypeError, match="one library"):
        tmm_core.causal_toeplitz_matmul(strict.asarray(W), X)


def test_mixed_devices_are_refused():
    strict = import_or_skip("array_api_strict")
    elsewhere = strict.asarray(W, device=strict.Device("device1"))
    with pytest.raises(ValueError, match="one device"):
        tmm_core.causal_toeplitz_matmul(elsewhere, strict.asarray(X))


def test_the_matrix_is_the_product(backend):
    w = RNG.standard_normal((2, 3, 7))
    matrix = tmm_core.causal_toeplitz(w, 9)
    assert matrix.shape == (2, 3, 9, 9)
    column = tmm_core.causal_toeplitz_matmul(w[:, 2:], np.eye(9)[:, :1].repeat(2, axis=1), backend=backend)
    np.testing.assert_allclose(matrix[:, 2, :, 0].T, column, atol=1e-14)
    assert tmm_core.causal_toeplitz(w[0, 0], 0).shape == (0, 0)


@pytest.mark.parametrize(("p", "q"), [(5, 5), (200, 170), (3, 150), (160, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [float, complex])
def test_general_products_are_scipys(p, q, dtype, backend):
    def normal(*shape):
        real = RNG.standard_normal(shape)
        return real if dtype is float else real + 1j * RNG.standard_normal(shape)

    column, row, x = normal(p), normal(q), normal(q, 3)
    row[0] = np.nan  # ignored, as in SciPy
    if backend == "numba" and dtype is complex:
        with pytest.raises(ValueError, match="computes with real numbers"):
            tmm_core.toeplitz_matmul(column, row, x, backend=backend)
        return
    y = tmm_core.toeplitz_matmul(column, row, x, backend=backend)
    np.testing.assert_allclose(y, scipy.linalg.toeplitz(column, np.r_[0, row[1:]]) @ x, atol=1e-11)
    np.testing.assert_allclose(
        tmm_core.toeplitz_matmul(column, row, x[:, 0], backend=backend), y[:, 0], rtol=1e-9, atol=1e-12
    )
    if p == q:
        expected = scipy.linalg.matmul_toeplitz(column, x)
        np.testing.assert_allclose(tmm_core.toeplitz_matmul(column, None, x, backend=backend), expected, atol=1e-11)


def test_general_products_have_heads():
    column, row, x = RNG.standard_normal((2, 6)), RNG.standard_normal((2, 4)), RNG.standard_normal((3, 4, 6))
    y = tmm_core.toeplitz_matmul(column, row, x)
    for head in range(2):
        part = x[..., 3 * head : 3 * head + 3]
        np.testing.assert_allclose(
            y[..., 3 * head : 3 * head + 3], scipy.linalg.toeplitz(column[head], row[head]) @ part, atol=1e-13
        )


@pytest.mark.parametrize("n", [0, 1, 16, 17, 32, 100])
def test_solutions_of_any_length(n):
    w = RNG.standard_normal((2, 7)) / 7
    w[:, 0] = 1
    y = RNG.standard_normal((n, 4))
    x = tmm_core.causal_toeplitz_solve(w, y)
    assert x.shape == y.shape
    np.testing.assert_allclose(tmm_core.causal_toeplitz_matmul(w, x), y, atol=1e-12)
    assert tmm_core.causal_toeplitz_inverse(w, n).shape == (2, n)


@pytest.mark.parametrize(("dtype", "w", "n", "finite"), [(float, [1.0, -10.0], 400, 309), ("f4", [1, -5], 100, 56)])
def test_solutions_that_grow_are_finite_up_to_the_overflow(dtype, w, n, finite, backend):
    found = tmm_core.causal_toeplitz_inverse(np.asarray(w, dtype), n, backend=backend)
    exact = (-float(w[1])) ** np.arange(finite)
    np.testing.assert_allclose(found[:finite], exact, rtol=1e-3 if dtype == "f4" else 1e-10)
    assert not np.isfinite(found[finite:]).any()
    # What does not depend on the overflow: another channel, and a filter of one lag.
    y = np.zeros((n, 2), dtype)
    y[0, 0] = y[-1, 1] = 1
    assert np.isfinite(tmm_core.causal_toeplitz_solve(np.asarray(w, dtype), y, backend=backend)[:, 1]).all()
    tiny = np.asarray([np.finfo(dtype).tiny])
    x = tmm_core.causal_toeplitz_solve(tiny, np.asarray([1e10, 0, 1e-5], dtype), backend=backend)
    assert np.isfinite(x).tolist() == [False, True, True]


def test_solutions_are_not_lost_where_their_products_overflow(backend):
    w = np.asarray([1e30, -1e38], "f4")  # w[1] x[4] = 1e40, before the division by w[0]
    exact = np.asarray([1e-30, 1e-22, 1e-14, 1e-6, 1e2, 1e10])
    found = tmm_core.causal_toeplitz_solve(w, np.asarray([1, 0, 0, 0, 0, 0], "f4"), backend=backend)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    np.testing.assert_allclose(tmm_core.causal_toeplitz_inverse(w, 6, backend=backend), exact, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_alarms_of_numpy_are_for_its_users_own_arithmetic(backend, scale):
    tiny, w, bias = np.full((3, 1), 1e-30, "f4"), scale * np.asarray([[1e-30, 1e-38]]), np.full((1, 3), 1e-38, "f4")
    short = w.astype("f4")

    def results():
        plan = tmm_core.stream_plan(short, 4, bias=bias, backend=backend)
        y, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (), 1), tiny[:2])
        return [
            y,
            tmm_core.stream_step(plan, state, tiny[0])[0],
            tmm_core.causal_toeplitz_matmul(w, tiny, backend=backend),
            tmm_core.causal_toeplitz_correlate(tiny, tiny, lags=2, backend=backend),
            tmm_core.toeplitz_matmul(w, None, tiny[:2], backend=backend),
            tmm_core.mix_tokens(w, tiny, bias, softplus=True, mean=True, backend=backend),
            tmm_core.mix_tokens(w, tiny, backend=backend),
            tmm_core.causal_toeplitz_solve(w, tiny, backend=backend),
        ]

    expected = results()
    with np.errstate(all="raise"):
        for found, right in zip(results(), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_a_library_without_transforms_is_served_by_sums():
    strict = import_or_skip("array_api_strict")
    w, x = RNG.standard_normal((2, 300)), RNG.standard_normal((300, 4))
    w[:, 0] = 40
    strict.set_array_api_strict_flags(enabled_extensions=())
    try:
        pair = strict.asarray(w), strict.asarray(x)
        found = [
            tmm_core.causal_toeplitz_matmul(*pair),
            tmm_core.causal_toeplitz_correlate(pair[1], pair[1], lags=300, heads=2),
            tmm_core.causal_toeplitz_solve(*pair),
            tmm_core.toeplitz_matmul(pair[0], None, pair[1]),
        ]
    finally:
        strict.reset_array_api_strict_flags()
    expected = [
        tmm_core.causal_toeplitz_matmul(w, x),
        tmm_core.causal_toeplitz_correlate(x, x, lags=300, heads=2),
        tmm_core.causal_toeplitz_solve(w, x),
        tmm_core.toeplitz_matmul(w, None, x),
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, atol=1e-10)


def test_general_products_are_as_exact_as_their_dtype():
    column, row, x = RNG.standard_normal(9), RNG.standard_normal(9).astype("f4"), RNG.standard_normal(9).astype("f4")
    y = tmm_core.toeplitz_matmul(column, row, x)
    np.testing.assert_allclose(y, scipy.linalg.toeplitz(column, np.r_[0, row[1:]]) @ x.astype(float), rtol=1e-12)
    halves = np.asarray([60000], "f2")  # whose sum with another is in range
    assert (
        tmm_core.toeplitz_matmul(np.asarray([2], "f2"), np.asarray([0, -1.5], "f2"), np.r_[halves, halves])[0] == 30000
    )


def test_time_on_the_last_axis_is_warned_of():
    w, x = RNG.standard_normal((4, 64)), RNG.standard_normal((8, 16, 64))
    with pytest.warns(
        UserWarning, match=r"x of shape \(8, 16, 64\) is read as 16 times of 64 channels.*64 lags"
    ) as seen:
        tmm_core.causal_toeplitz_matmul(w, x)
    assert seen[0].filename == __file__
    for fine in (x[..., :32], x.swapaxes(-1, -2)):
        tmm_core.causal_toeplitz_matmul(w, fine)  # where a warning would be an error
    tmm_core.mix_tokens(w, x)  # layers know their layout, and prompts are short
    tmm_core.causal_toeplitz_solve(np.eye(64)[0], x)


def test_a_right_hand_side_that_is_not_finite_makes_nan_from_there_on():
    w, y = np.asarray([1.0, 0.5]), np.ones(50)
    y[20] = np.nan
    x = tmm_core.causal_toeplitz_solve(w, y)
    assert np.isfinite(x[:20]).all()
    assert np.isnan(x[20:]).all()


@pytest.mark.parametrize("n", [1, 127, 128, 1025, 4097, 60000, 10**6 + 3])
def test_transform_lengths_are_long_enough_and_smooth(n):
    length = fourier.fast_length(n)
    assert n <= length <= 1.1 * n + 1
    for factor in (2, 3, 5, 7):
        while length % factor == 0:
            length //= factor
    assert length == 1


@pytest.mark.parametrize(
    ("heads", "kernel_size", "documents"),
    [(1, 1, 1), (4, 3, 1), (1, 1, 9)]
    + [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((32, 3, 1), (4, 3, 9), (32, 3, 9))],
)
def test_memory_of_the_definition(heads, kernel_size, documents):
    n, d = 65536, 32
    w = RNG.standard_normal((heads, kernel_size, n), dtype=np.float32)
    x, g = RNG.standard_normal((2, n, d), dtype=np.float32)
    ids = None if documents == 1 else np.sort(RNG.integers(0, documents, n))
    shape = {"lags": n, "heads": heads, "kernel_size": kernel_size}
    tmm_core.causal_toeplitz_matmul(w[..., :1], x[:1], backend="numpy")  # imports, once
    calls = {
        "product": (tmm_core.causal_toeplitz_matmul, (w, x), {}),
        "adjoint": (tmm_core.causal_toeplitz_matmul, (w, x), {"adjoint": True}),
        "correlate": (tmm_core.causal_toeplitz_correlate, (x, g), shape),
    }
    for name, (call, inputs, options) in calls.items():
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        result = call(*inputs, segment_ids=ids, backend="numpy", **options)
        peak = tracemalloc.get_traced_memory()[1] - before - result.nbytes
        tracemalloc.stop()
        ratio = peak / sum(array.nbytes for array in inputs)
        assert ratio <= 5, f"{name}: {ratio:.2f} times the input"


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 24])
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_pieces_are_the_whole(monkeypatch, heads, kernel_size):
    w, x, g = RNG.standard_normal((heads, kernel_size, 200)), *RNG.standard_normal((2, 2, 200, 24))
    shape = {"lags": 200, "heads": heads, "kernel_size": kernel_size}

    def results():
        return [
            tmm_core.causal_toeplitz_matmul(w, x, backend="numpy"),
            tmm_core.causal_toeplitz_matmul(w, x, adjoint=True, backend="numpy"),
            tmm_core.causal_toeplitz_correlate(x, g, **shape, backend="numpy"),
        ]

    whole = results()
    monkeypatch.setattr(fourier, "PIECE", 1)
    for found, expected in zip(results(), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11)


def test_the_core_imports_no_library():
    heavy = ["numpy", "torch", "jax", "numba", "cupy", "dask", "scipy"]
    code = f"import sys, tmm_core; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
