"""The Numba engine on everything that arrays can be. The laws themselves run in `test_laws.py`."""

import itertools
import tracemalloc

import numpy as np
import pytest
from conftest import library_or_skip
from dense import allowed, check_correlation, check_product, check_within, dense_correlation, widened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

library_or_skip("numba")

import ml_dtypes  # noqa: E402

import tmm_core  # noqa: E402
from tmm_backends._numba import calls, engine, plans, work  # noqa: E402
from tmm_core._oracles import dense_product, error_factor  # noqa: E402

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
IN_TURN = settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def product(w, x, **options):
    return tmm_core.causal_toeplitz_matmul(w, x, backend="numba", **options)


def correlate(x, g, **options):
    return tmm_core.causal_toeplitz_correlate(x, g, backend="numba", **options)


def normal(seed, *shape, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Shapes, strides, dtypes ---------------------------------------------------------------------------------------------


def unaligned(a):
    """Return an array one byte off every boundary, and read-only."""
    raw = np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:]
    return raw.view(a.dtype).reshape(a.shape)


def in_records(a):
    """Return an array between other fields of records, unaligned and with gaps."""
    records = np.zeros(a.shape, [("before", "i1"), ("a", a.dtype), ("after", "i2")])
    records["a"] = a
    return records["a"]


LAYOUTS = {
    "contiguous": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "channels apart": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "negative": lambda a: np.flip(np.flip(a).copy()),
    "gaps": lambda a: np.repeat(np.repeat(a, 2, axis=-1), 3, axis=-2)[..., ::3, ::2],
    "unaligned": unaligned,
    "records": in_records,
    "constant in time": lambda a: np.broadcast_to(a[..., :1, :], a.shape),
    "one channel": lambda a: np.broadcast_to(a[..., :1], a.shape),
}
LENGTHS = [1, 2, 7, 31, 32, 33, 64, 79, 80, 81, 95, 96, 97, 127, 128, 129, 159, 161, 192, 255, 257, 289, 321]
# Not every pair that there is: each takes kernels of its own, which take a second to compile.
PAIRS = [*[("float32", "float32")] * 4, *((name, name) for name in DTYPES)]
PAIRS += [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float64")]
shapes = st.fixed_dictionaries(
    {
        "n": st.sampled_from(LENGTHS),
        "lags": st.sampled_from([1, 5, 95, 96, 97, 98, 0, 1000]),  # 0: as many as times
        "heads": st.sampled_from([1, 2, 3, 5]),
        "width": st.sampled_from([1, 2, 3, 5, 16, 17, 33]),
        "kernel": st.sampled_from([1, 1, 1, 2, 3, 16, 17, 20]),
        "batch": st.sampled_from([(), (0,), (1,), (2, 3), (5,)]),
        "layouts": st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 2),
        "dtypes": st.sampled_from(PAIRS),
        "seed": st.integers(0, 99),
    }
)


@IN_TURN
@given(shapes, st.booleans())
def test_products_of_any_arrays(case, adjoint):
    w = normal(case["seed"], case["heads"], case["kernel"], case["lags"] or case["n"], dtype=case["dtypes"][0])
    x = normal(case["seed"] + 1, *case["batch"], case["n"], case["heads"] * case["width"], dtype=case["dtypes"][1])
    w, x = LAYOUTS[case["layouts"][0]](w), LAYOUTS[case["layouts"][1]](x)
    w_before, x_before = w.copy(), x.copy()
    y = product(w, x, adjoint=adjoint)
    check_product(y, w, x, adjoint=adjoint)
    np.testing.assert_array_equal(w, w_before)
    np.testing.assert_array_equal(x, x_before)
    assert not np.shares_memory(x, y)


@IN_TURN
@given(shapes)
def test_correlations_of_any_arrays(case):
    shape = (*case["batch"], case["n"], case["heads"] * case["width"])
    x, g = (
        LAYOUTS[layout](normal(case["seed"] + i, *shape, dtype=dtype))
        for i, (layout, dtype) in enumerate(zip(case["layouts"], case["dtypes"], strict=True))
    )
    before = x.copy(), g.copy()
    options = {"lags": case["lags"] or case["n"], "heads": case["heads"], "kernel": case["kernel"]}
    check_correlation(correlate(x, g, **options), x, g, **options)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(g, before[1])


def test_the_strategies_meet_every_method():
    assert {engine.DIRECT_LENGTH, engine.DIRECT_LENGTH + 1} < set(LENGTHS)
    assert engine.DIRECT_LAGS in (95, 96, 97)
    assert {plans.fast_length(n) - n for n in LENGTHS} >= {0, 1}
    assert max(kind.lanes for kind in work.KIND.values()) < 20, "a kernel larger than a register"


@pytest.mark.parametrize("heads", [1, 4096])
@pytest.mark.parametrize("n", [64, 97])
def test_thousands_of_channels(heads, n):
    w, x = normal(0, heads, n), normal(1, n, 4096)
    y = product(w, x)
    spectrum = np.fft.rfft(w.astype(float), 2 * n).repeat(4096 // heads, 0).T
    expected = np.fft.irfft(spectrum * np.fft.rfft(x.astype(float), 2 * n, axis=0), axis=0)[:n]
    norms = np.linalg.norm(w.astype(float), axis=1).repeat(4096 // heads) * np.linalg.norm(x.astype(float), axis=0)
    check_within(y, expected, error_factor(n, "float32") * norms)
    check_correlation(correlate(x, x, lags=n, heads=heads), x, x, n, heads, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_million_times(dtype):
    n = 1 << 20
    w, x = normal(0, n, dtype=dtype), normal(1, n, dtype=dtype)
    transforms = [np.fft.rfft(a.astype(np.float64), 2 * n) for a in (w, x)]
    norms = np.linalg.norm(w.astype(float)) * np.linalg.norm(x.astype(float))
    bound = (error_factor(n, dtype) + error_factor(n, "float64")) * norms  # NumPy's transform errs, too
    check_within(product(w, x), np.fft.irfft(transforms[0] * transforms[1])[:n], bound)
    expected = np.fft.irfft(transforms[0].conj() * transforms[1])[:n]
    check_within(correlate(w, x, lags=n), expected, bound)


@pytest.mark.parametrize("tiny", [1e-10, 1e-36, 1e-40, 1e-44])
def test_a_faint_row_of_a_kernel_counts_where_it_is_alone(tiny, rng):
    n = 128
    w, x = rng.standard_normal((1, 2, n)), np.zeros((n, 2), np.float32)
    w[0, 0] *= tiny
    w = w.astype(np.float32)
    x[:, 0] = 1e14 * rng.standard_normal(n)
    for adjoint in (False, True):
        read = x[:, ::-1] if adjoint else x
        y = product(w, read, adjoint=adjoint)[:, 0 if adjoint else 1]
        check_product(y[:, None], w[:, :1], x[:, :1], adjoint=adjoint)


def test_arrays_on_disk_are_read_where_they_are(tmp_path):
    x = normal(0, 3, 200, 7)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    w = normal(1, 7, 200)
    np.testing.assert_array_equal(product(w, mapped), product(w, x))
    c = correlate(mapped, mapped, lags=9, heads=7)
    np.testing.assert_array_equal(c, correlate(x, x, lags=9, heads=7))


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_matrices_and_other_byte_orders_are_what_their_values_are():
    w, x = normal(0, 200), normal(1, 200, 6)
    y = product(w[None], x)
    for made in (lambda a: a.astype(a.dtype.newbyteorder()), lambda a: a.view(np.ndarray)):
        got = product(made(w[None]), made(x))
        assert (type(got), got.dtype) == (np.ndarray, np.float32)
        np.testing.assert_array_equal(got, y)
    with pytest.raises(TypeError, match="got matrix: wrap it"):
        product(w, np.asmatrix(x))


# Documents -----------------------------------------------------------------------------------------------------------


def packed(rng, rows, n):
    """Return documents of many lengths: alone, across the crossovers of methods, and of length one."""
    cuts = [
        np.r_[np.arange(40), 50, 50 + engine.DIRECT_LENGTH, 51 + 2 * engine.DIRECT_LENGTH, 400] for _ in range(rows)
    ]
    return np.stack([np.searchsorted(cut + rng.integers(0, 9), np.arange(n), side="right") for cut in cuts])


@pytest.mark.parametrize(("heads", "kernel"), [(1, 1), (3, 1), (51, 1), (1, 3), (3, 17), (51, 2)])
def test_documents_are_what_each_is_alone(heads, kernel, rng):
    n, rows = 700, 2
    w, x, g = normal(0, heads, kernel, n), normal(1, rows, n, 51), normal(2, rows, n, 51)
    ids = packed(rng, rows, n)
    for adjoint in (False, True):
        y = product(w, x, adjoint=adjoint, segment_ids=ids)
        for row, document in itertools.product(range(rows), np.unique(ids)):
            its = row, ids[row] == document
            check_product(y[its], w, x[its], adjoint=adjoint)
    c = correlate(x, g, lags=n, heads=heads, kernel=kernel, segment_ids=ids)
    expected, norms = np.zeros((heads, kernel, n)), np.zeros((heads, kernel, 1))
    for row in range(rows):
        for part, total in zip(
            dense_correlation(x[row], g[row], n, heads, kernel, ids[row]), (expected, norms), strict=True
        ):
            total += part
    check_within(c.reshape(expected.shape), expected, error_factor(n, "float32") * norms)


@pytest.mark.parametrize("kernel", [1, 2])
@pytest.mark.parametrize("value", [1e38, np.inf, np.nan, 1e-44])
def test_what_other_documents_hold_changes_no_bit(value, kernel, rng):
    n, heads = 700, 3
    w, x = normal(0, heads, kernel, n), normal(1, 2, n, 51)
    ids = packed(rng, 2, n)
    kept = (ids % 2 == 0)[..., None]
    other = np.where(kept, x, np.float32(value))
    for adjoint in (False, True):
        y, z = (product(w, a, adjoint=adjoint, segment_ids=ids) for a in (x, other))
        np.testing.assert_array_equal(np.where(kept, z, 0), np.where(kept, y, 0))
    options = {"lags": n, "heads": heads, "kernel": kernel}
    weights = np.where(kept, normal(2, 2, n, 51), 0)  # the others count for nothing
    if np.isfinite(value):
        check_correlation_of_rows(other, weights, ids, options)


def check_correlation_of_rows(x, g, ids, options):
    """Check a correlation whose rows have documents of their own."""
    c = correlate(x, g, segment_ids=ids, **options)
    rows = [dense_correlation(x[row], g[row], *options.values(), ids[row]) for row in range(len(ids))]
    expected, norms = (sum(parts) for parts in zip(*rows, strict=True))
    check_within(c.reshape(expected.shape), expected, error_factor(x.shape[-2], "float32") * norms + 1e-37)


def test_documents_of_one_time():
    w, x = normal(0, 4, 3), normal(1, 2, 500, 8)
    ids = np.arange(500)
    np.testing.assert_allclose(product(w, x, segment_ids=ids), x * w[:, 0].repeat(2), rtol=1e-6)
    c = correlate(x, x, lags=3, heads=4, segment_ids=ids)
    check_correlation(c, x, x, 3, 4, 1, ids)
    np.testing.assert_array_equal(c[:, 1:], 0)


# Range ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [40, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kernel", [1, 2])
def test_filters_and_signals_of_any_size(n, dtype, kernel, rng):
    sizes = [0.0, 1e-44, 1e-40, 1e-30, 1.0, 1e15, 1e30, 1e38]
    if dtype == "float64":
        sizes = [0.0, 5e-324, 1e-308, 1e-200, 1.0, 1e120, 1e140, 1e307]
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    shape = rng.uniform(-1, 1, (2, kernel, n)), rng.uniform(-1, 1, (n, 2 * len(sizes)))
    for size in sizes:
        w = (size * shape[0]).astype(DTYPES[dtype])
        signals = [s for s in sizes if s * size * 4 * n < largest]
        x = (np.tile(signals, 2) * shape[1][:, : 2 * len(signals)]).astype(DTYPES[dtype])
        for adjoint in (False, True):
            check_product(product(w, x, adjoint=adjoint), w, x, adjoint=adjoint)


@pytest.mark.parametrize(
    "sizes", [(1e-43, 1e14), (1e-38, 1e10), (1e-25, 1e-10), (1e30, 1e-30), (1e38, 1e-40), (1e-15, 1e-15)]
)
@pytest.mark.parametrize("kernel", [1, 2])
def test_correlations_of_signals_of_any_size(sizes, kernel, rng):
    n = 130
    x, g = ((size * rng.uniform(-1, 1, (2, n, 6))).astype(np.float32) for size in sizes)
    for pair in ((x, g), (g, x)):
        check_correlation(correlate(*pair, lags=n, heads=2, kernel=kernel), *pair, n, 2, kernel)


@pytest.mark.parametrize("n", [50, 200])
@pytest.mark.parametrize("kernel", [1, 2])
def test_channels_do_not_touch_each_other(n, kernel):
    w, x = normal(0, 2, kernel, n), normal(1, n, 34)
    plain = [product(w, x, adjoint=adjoint) for adjoint in (False, True)]
    for value in (1e6, 1e38, 1e-44, np.nan, np.inf, -np.inf):
        other = x.copy()
        other[:, 5] *= value if np.isfinite(value) else 1
        other[7, 5] = value
        for adjoint, before in zip((False, True), plain, strict=True):
            y = product(w, other, adjoint=adjoint)
            near = np.arange(34) != 5
            near[5 - kernel + 1 : 5 + kernel] = False
            check_within(y[:, near], widened(before[:, near]), 2 * allowed(widened(w), widened(x), "float32")[:, near])
            assert np.isnan(y[7, 5]) == (not np.isfinite(value))


def test_zeros_give_zeros():
    w, x = normal(0, 2, 200), normal(1, 200, 18)
    for zero in (0.0, -0.0):
        np.testing.assert_array_equal(product(w * zero, x), 0)
        np.testing.assert_array_equal(product(w, x * zero), 0)
        np.testing.assert_array_equal(correlate(x, x * zero, lags=200), 0)
    x[:, 3] = 0
    np.testing.assert_array_equal(product(w, x)[:, 3], 0)


# Rounding that adds up -----------------------------------------------------------------------------------------------


def drifting(count, dtype):
    """Return numbers near one, each of which a running sum rounds down by nearly half a unit in its last place."""
    total, numbers = 0.0, []
    for _ in range(count):
        unit = np.finfo(dtype).eps * 2.0 ** np.floor(np.log2(max(total, 1)))
        numbers.append(1 + unit / 2 - np.finfo(dtype).eps if unit > np.finfo(dtype).eps else 1.0)
        total += 1
    return np.asarray(numbers, dtype)


@pytest.mark.parametrize(("n", "lags"), [(80, 80), (97, 96), (128, 96)])
def test_sums_that_always_round_down(n, lags):
    w, x = np.ones((1, lags), np.float32), np.zeros((n, 2), np.float32)
    x[:lags] = drifting(lags, np.float32)[:, None]
    check_product(product(w, x), w, x)


@pytest.mark.parametrize(
    ("rows", "n", "d", "one_by_one"),
    [(4096, 96, 16, False), (16384, 32, 16, False), (2, 96, 8192, False), (8, 512, 32, True)],
)
def test_sums_over_many_signals(rows, n, d, one_by_one):
    ids = np.arange(n) if one_by_one else None
    for a in np.random.default_rng(0).uniform(1, 2, 3).astype(np.float32):
        x = np.broadcast_to(a, (rows, n, d))
        c = correlate(x, np.broadcast_to(np.float32(1), x.shape), lags=n, segment_ids=ids)[0]
        count = (n - np.arange(n)) * rows * d
        expected = np.where(np.arange(n) == 0, count, 0) if one_by_one else count
        check_within(c, expected * float(a), error_factor(n, "float32") * rows * d * n * float(a))


# Declines ------------------------------------------------------------------------------------------------------------


def test_what_is_not_served_is_refused_by_name_and_computed_by_others():
    w, x = normal(0, 3), normal(1, 200, 2)
    with pytest.raises(ValueError, match=r"'numba' cannot serve this call: .*real numbers.*complex64"):
        product(w * 1j, x)
    with pytest.raises(ValueError, match=r"'numba' cannot serve this call: .*complex128"):
        correlate(x, x.astype(complex), lags=3)
    check_within(
        tmm_core.causal_toeplitz_matmul(w * 1j, x).imag, dense_product(widened(w)[None, None], widened(x)), 1e-5
    )
    for whole in (x.astype(int), x > 0):
        with pytest.raises(TypeError, match="expected arrays of float16"):
            product(w, whole)
    with pytest.raises(ValueError, match="x must be"):
        product(w[None], np.float32(1)[None])
    with pytest.raises(TypeError, match="expected an array"):
        product(w, 1.0)


def test_another_device_is_refused():
    torch = library_or_skip("torch") and __import__("torch")
    w, x = torch.ones(3, device="meta"), torch.ones(5, 2, device="meta")
    with pytest.raises(ValueError, match=r"'numba' cannot serve this call: .*on the CPU, and the arrays are on 'meta'"):
        product(w, x)
    assert tmm_core.causal_toeplitz_matmul(w, x).shape == (5, 2)


def test_traced_arrays_are_refused():
    jax = library_or_skip("jax") and __import__("jax")
    w, x = jax.numpy.ones(3), jax.numpy.ones((5, 2))
    with pytest.raises(ValueError, match=r"'numba' cannot serve this call: .*traced"):
        jax.jit(product)(w, x)
    np.testing.assert_allclose(jax.jit(tmm_core.causal_toeplitz_matmul)(w, x)[:, 0], [1, 2, 3, 3, 3])


# Memory --------------------------------------------------------------------------------------------------------------


def extra_memory(call):
    """Return the bytes that a call needs beside its result, once it has run before."""
    call()
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1] - result.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("n", [8192, 65536])
def test_memory_beside_the_arrays(n, heads, dtype, monkeypatch):
    monkeypatch.setattr(calls, "thread_count", lambda: 2)
    lanes, d = work.KIND["float32"].lanes, 64 if n == 65536 else 256
    w, x = normal(0, heads, n, dtype=dtype), normal(1, n, d, dtype=dtype) / DTYPES[dtype](64)
    buffer, spectra, small = 8 * n * lanes, heads * n * 8, 1 << 17
    filters = 3 * heads * n * 4  # scaled
    used = extra_memory(lambda: product(w, x))
    assert used <= 2 * buffer + spectra + filters + small
    used = extra_memory(lambda: correlate(x, x, lags=n, heads=heads))
    chunks = 16
    assert used <= 2 * 3 * buffer + 16 * n * (chunks + heads) + small
