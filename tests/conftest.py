"""Fixtures: every law over every array library and backend."""

import importlib.util
import os

# Torch's and JAX's thread pools wait busily too, and fight over the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# OpenBLAS waits busily: on cores shared with other processes a small product takes 100 times as long with two threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Compilation is nearly all of the time of tests in JAX, and half of it XLA's newer way of writing fused loops.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import pytest
from support.bridges import Bridge, make_bridge
from support.requirements import import_or_skip, library_or_skip, missing_requirements, skip_without

from tmm_core import available_backends
from tmm_core.testing import LIBRARIES, Library


def pytest_configure() -> None:
    if missing := missing_requirements():
        raise pytest.UsageError(f"TMM_TEST_REQUIRE names {', '.join(missing)}: not installed here")


@pytest.fixture(autouse=True, scope="session")
def unhurried():
    """Let no command say that it takes long: what tests read of it would depend on the machine."""
    if importlib.util.find_spec("tmm_lab") is None:  # the core alone is here
        yield
        return
    from tmm_lab import progress

    before, progress._FIRST = progress._FIRST, 1e6
    yield
    progress._FIRST = before


@pytest.fixture(scope="module")
def one_thread():
    """Let Torch compute in one thread: for models of a few channels, threads only wait for each other."""
    torch = import_or_skip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=LIBRARIES, scope="session")
def xp(request) -> Library:
    """An array library, or one way of using it."""
    return library_or_skip(request.param)


@pytest.fixture(params=["array_api", "numpy", "numba", "torch"])
def backend(request) -> str:
    """The name of a backend that can run here."""
    if request.param not in available_backends():
        skip_without(request.param, "the backend is not available")
    return request.param


@pytest.fixture(params=["torch", "jax"])
def framework(request) -> str:
    """The name of a framework that models are written and trained in."""
    import_or_skip(request.param)
    return request.param


@pytest.fixture(params=["torch", "jax"])
def bridge(request) -> Bridge:
    """A library that transforms functions: derivatives, batching, tracing."""
    return make_bridge(request.param)
