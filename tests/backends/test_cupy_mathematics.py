"""The laws over the CuPy engine where there is no GPU: by NumPy in place of its kernels, and by those on a CPU."""

import numpy as np
import pytest
from support import cupy_emulation
from support.requirements import import_or_skip, library_or_skip, skip_without

from tmm_core.backend import Backend
from tmm_core.testing import LAWS, get_library
from tmm_core.testing.accuracy import (
    check_independence,
    check_non_finite,
    check_non_finite_correlation,
    check_range,
)
from tmm_core.testing.oracles import dense_correlation, dense_product
from tmm_core.testing.products import check_correlations, check_products, check_segments, check_shapes

import_or_skip("cupy")
from support.cupy_in_numpy import HostEngine, Twin
from support.strangers import registering

from tmm_backends._cupy import gpu, pieces
from tmm_backends._cupy.operations import FAR

# Each kernel is compiled for each set of dtypes: these laws need few.
BY_KERNELS = (check_products, check_correlations, check_segments, check_non_finite, check_non_finite_correlation,
              check_range, check_shapes)  # fmt: skip


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Register the engine with some operations as the backend `host`."""
    registration = registering(tmp_path, monkeypatch)
    add = next(registration)
    yield lambda operations: add("host", Backend("host", (), "NumPy arrays", lambda: HostEngine(operations)))
    next(registration, None)


@pytest.mark.parametrize("law", LAWS)
def test_law_by_numpy(law, register):
    register(Twin())
    law(library_or_skip("numpy-bfloat16"), "host")


@pytest.fixture(scope="module")
def kernels():
    """Return the operations of a GPU, on a CPU."""
    if cupy_emulation.COMPILER is None:
        skip_without("c++", "no compiler of C++ here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "cupy", cupy_emulation.CuPy())
        patch.setattr(gpu, "_plans", gpu.functools.cache(gpu._plans.__wrapped__))
        yield gpu.Gpu()


@pytest.mark.parametrize("law", BY_KERNELS)
def test_law_by_kernels(law, kernels, register):
    register(kernels)
    law(get_library("numpy"), "host")


@pytest.mark.parametrize("law", [check_products, check_correlations, check_segments, check_independence])
def test_law_by_small_pieces(law, register, monkeypatch):
    monkeypatch.setattr(pieces, "ENTRIES", 600)
    register(Twin())
    law(get_library("numpy"), "host")


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_kernels_do_what_numpy_does(dtype, kernels):
    rng = np.random.default_rng(0)
    exponents = rng.integers(-8, 8, 150) if dtype == "float16" else rng.integers(-30, 30, 150)
    signals = (rng.standard_normal((2, 150, 2, 3)) * 2.0 ** exponents[:, None, None]).astype(dtype)
    signals = signals.transpose(1, 0, 2, 3)  # with strides, as signals have
    signals[[3, 70, 149], 0, 0, 1] = np.inf
    signals[:, 1, 1, 2] = 0
    twin, real, buffer = Twin(), np.dtype("float32"), np.dtype("complex64")
    modulate = dtype != "complex64"
    for last in (False, True):
        surveys = [operations.survey(signals, real, last=last) for operations in (twin, kernels)]
        for name in ("exponents", "nearest", "marks"):
            np.testing.assert_array_equal(*(getattr(survey, name) for survey in surveys), err_msg=name)
        np.testing.assert_allclose(surveys[0].norms, surveys[1].norms, rtol=1e-5)
        first = np.asarray([FAR, 120], np.int32)
        spoiled = []
        for operations, survey in zip((twin, kernels), surveys, strict=True):
            y = operations.load(signals, survey.exponents, 160, buffer, modulate=modulate)
            out = np.zeros_like(signals)
            noise = np.zeros(survey.exponents.shape, real)
            operations.store(y, out, survey.exponents, noise, modulate=modulate)
            operations.write_nan(out, signals, survey, first, None, 20, 2, adjoint=not last)
            spoiled.append(out)
        rounding = {"rtol": 2e-3, "atol": 2.0**-23} if dtype == "float16" else {"rtol": 1e-5, "atol": 0}
        np.testing.assert_allclose(*spoiled, **rounding)
        assert np.isnan(spoiled[0]).any()
        there = np.isfinite(spoiled[0]) & np.isfinite(signals)  # turned there and back, over the length
        np.testing.assert_allclose(160.0 * spoiled[0][there], signals[there], rounding["rtol"], 160 * rounding["atol"])


def test_plans_are_used_again(kernels):
    buffer = np.ones((8, 3), np.complex64)
    kernels.transform(buffer, inverse=False)
    made = cupy_emulation.PlanNd.made
    kernels.transform(buffer, inverse=True)
    assert cupy_emulation.PlanNd.made == made
    np.testing.assert_allclose(buffer, 8, rtol=1e-6)
    kernels.transform(buffer[:4].copy(), inverse=False)
    assert cupy_emulation.PlanNd.made == made + 1


def test_pieces_of_a_head_read_their_neighbours(monkeypatch):
    rng = np.random.default_rng(0)
    w, x, g = rng.standard_normal((1, 3, 50)), rng.standard_normal((2, 50, 20)), rng.standard_normal((2, 50, 20))
    host = HostEngine(Twin())

    def run():
        options = {"method": "auto", "segment_ids": None}
        products = [host.matmul(w, x, adjoint=adjoint, **options) for adjoint in (False, True)]
        return *products, host.correlate(x, g, lags=50, heads=1, kernel_size=3, **options)

    expected = dense_product(w, x), dense_product(w, x, adjoint=True), dense_correlation(x, g, 50, 1, 3)
    for most in (1 << 24, 200):  # in one piece, and in three of one row
        monkeypatch.setattr(pieces, "ENTRIES", most)
        for found, right in zip(run(), expected, strict=True):
            np.testing.assert_allclose(found, right, atol=1e-12)
