"""The Numba engine on everything that arrays can be. The laws themselves run in `test_laws.py`."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.numba_oracle import (
    DTYPES,
    check_correlation,
    check_product,
    check_within,
    correlate,
    normal,
    product,
    widened,
)
from support.requirements import import_or_skip

import_or_skip("numba")

import tmm_core
from tmm_backends._numba import blocks, operands, plans
from tmm_backends._numba import product as product_module
from tmm_core.backend import Request
from tmm_core.testing.oracles import dense_product, error_factor

IN_TURN = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


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
LENGTHS = [1, 2, 7, 31, 32, 33, 64, 95, 96, 97, 127, 128, 129, 159, 161, 192, 255, 257, 289, 321]
LENGTHS += [blocks.DIRECT_LENGTH + by for by in (-1, 0, 1)]
LAGS = [1, 5, 0, 1000, *(blocks.DIRECT_LAGS + by for by in (-1, 0, 1, 2))]  # 0: as many as times
# Each pair of dtypes has kernels of its own, which take a second each to compile. The laws need those of one dtype too.
SAME = [*[("float32", "float32")] * 4, *((name, name) for name in DTYPES)]
MIXED = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float64")]
shapes = st.fixed_dictionaries(
    {
        "n": st.sampled_from(LENGTHS),
        "lags": st.sampled_from(LAGS),
        "heads": st.sampled_from([1, 2, 3, 5]),
        "width": st.sampled_from([1, 2, 3, 5, 16, 17, 33]),
        "kernel_size": st.sampled_from([1, 1, 1, 2, 3, 16, 17, 20]),
        "batch": st.sampled_from([(), (0,), (1,), (2, 3), (5,)]),
        "layouts": st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 2),
        "seed": st.integers(0, 99),
    }
)


@pytest.fixture(params=[SAME, pytest.param(MIXED, marks=pytest.mark.slow)], ids=["same", "mixed"])
def pairs(request):
    """Pairs of dtypes of the factors."""
    return st.sampled_from(request.param)


@pytest.mark.filterwarnings("ignore:w of shape:UserWarning")  # it may look like signals where a head is narrow
@IN_TURN
@given(shapes, st.booleans(), st.data())
def test_products_of_any_arrays(pairs, case, adjoint, data):
    dtypes = data.draw(pairs)
    w = normal(case["seed"], case["heads"], case["kernel_size"], case["lags"] or case["n"], dtype=dtypes[0])
    x = normal(case["seed"] + 1, *case["batch"], case["n"], case["heads"] * case["width"], dtype=dtypes[1])
    w, x = LAYOUTS[case["layouts"][0]](w), LAYOUTS[case["layouts"][1]](x)
    w_before, x_before = w.copy(), x.copy()
    y = product(w, x, adjoint=adjoint)
    check_product(y, w, x, adjoint=adjoint)
    np.testing.assert_array_equal(w, w_before)
    np.testing.assert_array_equal(x, x_before)
    assert not np.shares_memory(x, y)


@IN_TURN
@given(shapes, st.data())
def test_correlations_of_any_arrays(pairs, case, data):
    shape = (*case["batch"], case["n"], case["heads"] * case["width"])
    x, g = (
        LAYOUTS[layout](normal(case["seed"] + i, *shape, dtype=dtype))
        for i, (layout, dtype) in enumerate(zip(case["layouts"], data.draw(pairs), strict=True))
    )
    before = x.copy(), g.copy()
    options = {"lags": case["lags"] or case["n"], "heads": case["heads"], "kernel_size": case["kernel_size"]}
    check_correlation(correlate(x, g, **options), x, g, **options)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(g, before[1])


def test_the_strategies_meet_every_method():
    assert {plans.fast_length(n) - n for n in LENGTHS} >= {0, 1}
    assert max(kind.lanes for kind in operands.ARITHMETIC.values()) < 20, "a kernel larger than a register"


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
def test_a_faint_row_of_a_kernel_counts_where_it_is_alone(tiny):
    n, rng = 128, np.random.default_rng(0)
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
    with pytest.raises(TypeError, match=r"x must be a plain array, and is a numpy\.matrix"):
        product(w, np.asmatrix(x))


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
    torch = import_or_skip("torch")
    w, x = torch.ones(3, device="meta"), torch.ones(5, 2, device="meta")
    with pytest.raises(ValueError, match=r"'numba' cannot serve this call: .*on the CPU, and the arrays are on 'meta'"):
        product(w, x)
    assert tmm_core.causal_toeplitz_matmul(w, x).shape == (5, 2)


def test_arrays_without_values_are_refused():
    request = Request("float32", "traced")
    assert "being traced and have no values" in tmm_core.get_backend("numba").engine.unsupported(request)


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
    monkeypatch.setattr(product_module, "thread_count", lambda: 2)
    lanes, d = operands.ARITHMETIC["float32"].lanes, 64 if n == 65536 else 256
    w, x = normal(0, heads, n, dtype=dtype), normal(1, n, d, dtype=dtype) / DTYPES[dtype](64)
    buffer, spectra, small = 8 * n * lanes, heads * n * 8, 1 << 17
    filters = 3 * heads * n * 4  # scaled
    used = extra_memory(lambda: product(w, x))
    assert used <= 2 * buffer + spectra + filters + small
    used = extra_memory(lambda: correlate(x, x, lags=n, heads=heads))
    chunks = 16
    assert used <= 2 * 3 * buffer + 16 * n * (chunks + heads) + small


@pytest.mark.parametrize("kernel_size", [1, 2])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_memory_beside_many_documents(size, kernel_size, monkeypatch):
    monkeypatch.setattr(product_module, "thread_count", lambda: 2)
    w, x, ids = normal(1, 4, kernel_size, size), normal(0, 8, 1024, 256), np.arange(1024) // size
    assert extra_memory(lambda: product(w, x, segment_ids=ids)) < x.nbytes / 4
    assert (
        extra_memory(lambda: correlate(x, x, lags=size, heads=4, kernel_size=kernel_size, segment_ids=ids))
        < x.nbytes / 4
    )
