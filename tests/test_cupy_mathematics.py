"""The laws over the CuPy engine where there is no GPU: by NumPy in place of its kernels, and by those on a CPU."""

import cupy_stand_in
import pytest
from conftest import library_or_skip

from tmm_core import _registry
from tmm_core._protocols import Backend
from tmm_core.testing import (
    LAWS,
    check_correlations,
    check_non_finite,
    check_non_finite_correlation,
    check_products,
    check_range,
    check_segments,
    check_shapes,
    numpy_library,
)

pytest.importorskip("cupy", reason="cupy is not installed")
from cupy_twin import HostEngine, Twin

from tmm_backends._cupy import gpu

# Each kernel is compiled for each set of dtypes: these laws need few.
BY_KERNELS = (check_products, check_correlations, check_segments, check_non_finite, check_non_finite_correlation,
              check_range, check_shapes)  # fmt: skip


@pytest.fixture
def register(monkeypatch):
    """Register an engine under the name of a library that is there."""

    class Entry:
        name, dist, value = "json", None, "tests:json"

    def add(operations):
        Entry.load = lambda: Backend("json", "1", ("cpu",), "NumPy arrays", HostEngine(operations))
        known = {**_registry._registered(), "json": Entry}
        monkeypatch.setattr(_registry, "_registered", lambda: known)

    _registry.get_backend.cache_clear()
    yield add
    _registry.get_backend.cache_clear()


@pytest.mark.parametrize("law", LAWS)
def test_law_by_numpy(law, register):
    register(Twin())
    law(library_or_skip("numpy-bfloat16"), "json")


@pytest.fixture(scope="module")
def kernels():
    """Return the operations of a GPU, on a CPU."""
    if cupy_stand_in.COMPILER is None:
        pytest.skip("no compiler of C++ here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "cupy", cupy_stand_in.CuPy())
        patch.setattr(gpu, "_plans", gpu.functools.cache(gpu._plans.__wrapped__))
        yield gpu.Gpu()


@pytest.mark.parametrize("law", BY_KERNELS)
def test_law_by_kernels(law, kernels, register):
    register(kernels)
    law(numpy_library(), "json")
