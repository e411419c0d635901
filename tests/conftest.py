"""Fixtures: every law over every array library and backend.

`TMM_TEST_REQUIRE` names, with commas between, the libraries that must be there: a missing one of those fails the run,
any other is skipped with its reason.
"""

import importlib.util
import os

# Torch's and JAX's thread pools wait busily too, and fight over the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# OpenBLAS waits busily: on cores shared with other processes a small product takes 100 times as long with two threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

from tmm_core import available_backends
from tmm_core.testing import Library, numpy_library

FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")


def _read_only() -> Library:
    def asarray(values, dtype):
        array = np.array(values, dtype=dtype)
        array.flags.writeable = False
        return array

    return Library("numpy-read-only", asarray, np.asarray, (*FLOATS, *COMPLEX))


def _ml_dtypes() -> Library:
    import ml_dtypes

    def asarray(values, dtype):
        return np.asarray(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def to_numpy(array):
        return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array

    return Library("numpy-bfloat16", asarray, to_numpy, ("float16", "bfloat16", *FLOATS, *COMPLEX))


def _strict() -> Library:
    import array_api_strict as strict

    def asarray(values, dtype):
        return strict.asarray(np.ascontiguousarray(values), dtype=getattr(strict, dtype))

    return Library("array_api_strict", asarray, np.asarray, (*FLOATS, *COMPLEX))


def _torch(compiled: bool = False) -> Library:
    import torch

    def asarray(values, dtype):
        return torch.asarray(np.array(values)).to(getattr(torch, dtype))

    def to_numpy(tensor):
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    def vjp(function, inputs, cotangent):
        return torch.func.vjp(function, *inputs)[1](cotangent)

    def compiled_vjp(function, inputs, cotangent):
        inputs = [tensor.clone().requires_grad_() for tensor in inputs]
        return torch.autograd.grad(function(*inputs), inputs, cotangent)

    def transform(function):
        return torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")

    dtypes = ("float16", "bfloat16", *FLOATS, *COMPLEX)
    if compiled:
        torch._dynamo.config.recompile_limit = 256  # the laws call one function with every dtype and number of axes
        torch._dynamo.config.accumulated_recompile_limit = 4096
        return Library("torch-compiled", asarray, to_numpy, dtypes, transform, True, compiled_vjp, 1)
    return Library("torch", asarray, to_numpy, dtypes, vjp=vjp, orders=2)


def _jax(jit: bool = False) -> Library:
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # compilation is nearly all of the laws' time

    def asarray(values, dtype):
        return jax.numpy.asarray(values, dtype=dtype)

    def to_numpy(array):
        return np.asarray(array.astype("float32") if array.dtype == "bfloat16" else array)

    def vjp(function, inputs, cotangent):
        return jax.vjp(function, *inputs)[1](cotangent)

    dtypes = ("float16", "bfloat16", *FLOATS, *COMPLEX)
    if jit:
        return Library("jax-jit", asarray, to_numpy, dtypes, jax.jit, True, vjp, 2, 16)
    # Second derivatives are those of the same functions as under jit, and took eager JAX half a minute to compile.
    return Library("jax", asarray, to_numpy, dtypes, vjp=vjp, orders=1, packed_length=16)


def _dask() -> Library:
    import dask.array

    def asarray(values, dtype):
        return dask.array.from_array(np.array(values).astype(dtype), chunks=13)

    return Library("dask", asarray, lambda array: array.compute(scheduler="synchronous"), (*FLOATS, *COMPLEX))


# By name: the library to import, and how to make it.
LIBRARIES = {
    "numpy": ("numpy", numpy_library),
    "numpy-read-only": ("numpy", _read_only),
    "numpy-bfloat16": ("ml_dtypes", _ml_dtypes),
    "array_api_strict": ("array_api_strict", _strict),
    "torch": ("torch", _torch),
    "torch-compiled": ("torch", lambda: _torch(compiled=True)),
    "jax": ("jax", _jax),
    "jax-jit": ("jax", lambda: _jax(jit=True)),
    "dask": ("dask", _dask),
}
REQUIRED = {name.strip() for name in os.environ.get("TMM_TEST_REQUIRE", "").split(",")} - {""}

_made: dict[str, Library] = {}


def library_or_skip(name: str) -> Library | None:
    """Return the library, made once a process so that what it compiled is shared; None for one without arrays."""
    module, make = LIBRARIES.get(name) or (name, lambda: None)
    if name not in _made:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if module in REQUIRED:
                pytest.fail(f"TMM_TEST_REQUIRE asks for {module}, which cannot be imported: {error}")
            pytest.skip(f"{module} is not installed: {error}")
        _made[name] = make()
    return _made[name]


def pytest_configure() -> None:
    missing = sorted(name for name in REQUIRED if importlib.util.find_spec(name) is None)
    if missing:
        raise pytest.UsageError(f"TMM_TEST_REQUIRE names {', '.join(missing)}: not installed here")


@pytest.fixture(scope="module")
def one_thread():
    """Let Torch compute in one thread: for models of a few channels, threads only wait for each other."""
    import torch

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
        if request.param in REQUIRED:
            pytest.fail(f"TMM_TEST_REQUIRE asks for {request.param}, whose backend is not available")
        pytest.skip(f"backend {request.param} is not installed")
    return request.param
