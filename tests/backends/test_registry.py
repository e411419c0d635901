"""How a backend is registered, found, chosen and refused."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tmm_core
from tmm_core._arrays import exchange
from tmm_core._dispatch import registry
from tmm_core.backend import Backend

W, X = np.asarray([1.0, 2.0]), np.asarray([1.0, 10.0, 100.0])
Y = np.asarray([1.0, 12.0, 120.0])


class Doubling(registry.Definition):
    """An engine that can be told from every other: it gives twice the product."""

    def __init__(self, name: str, reason: str | None = None) -> None:
        super().__init__("numpy")
        self.name, self.reason = name, reason
        product = self.matmul
        self.matmul = lambda *arrays, **options: 2 * product(*arrays, **options)

    def unsupported(self, request: object) -> str | None:
        return self.reason


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Register strangers' backends for one test; their name must be an installed library's."""

    class Entry:
        dist = None

        def __init__(self, name: str, load: Callable[[], Backend]) -> None:
            self.name, self.value, self.load = name, f"stranger:{name}", load

    def add(name: str, load: Callable[[], Backend]) -> None:
        known = {**registry._registered(), name: Entry(name, load)}
        monkeypatch.setattr(registry, "_registered", lambda: known)

    registry.get_backend.cache_clear()
    yield add
    registry.get_backend.cache_clear()


def doubling(name: str, reason: str | None = None) -> Backend:
    return Backend(name, "1.0", ("cpu",), "everything, twice", Doubling(name, reason))


def product(**options: object) -> np.ndarray:
    return tmm_core.causal_toeplitz_matmul(W, X, **options)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_a_strangers_backend_serves_by_argument_and_by_block(register: Callable[..., None]) -> None:
    register("json", lambda: doubling("json"))
    assert "json" in tmm_core.available_backends()
    np.testing.assert_array_equal(product(), Y)
    np.testing.assert_array_equal(product(backend="json"), 2 * Y)
    with tmm_core.use_backend("json"):
        np.testing.assert_array_equal(product(), 2 * Y)
        np.testing.assert_array_equal(product(backend="numpy"), Y)  # the argument wins
        with tmm_core.use_backend("auto"):
            np.testing.assert_array_equal(product(), Y)
        with tmm_core.use_backend("json"):
            pass
        np.testing.assert_array_equal(product(), 2 * Y)
    np.testing.assert_array_equal(product(), Y)


def test_a_block_chooses_for_its_own_thread_only(register: Callable[..., None]) -> None:
    register("json", lambda: doubling("json"))
    seen: list[np.ndarray] = []
    with tmm_core.use_backend("json"):
        thread = threading.Thread(target=lambda: seen.append(product()))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(seen[0], Y)


def test_a_block_is_left_by_an_error_as_well(register: Callable[..., None]) -> None:
    register("json", lambda: doubling("json"))
    with pytest.raises(RuntimeError, match="inside"), tmm_core.use_backend("json"):
        raise RuntimeError("inside")
    np.testing.assert_array_equal(product(), Y)


def test_blocks_of_generators_end_in_any_order(register: Callable[..., None]) -> None:
    register("json", lambda: doubling("json"))

    def inside(name: str) -> Iterator[None]:
        with tmm_core.use_backend(name):
            yield

    outer, inner = inside("json"), inside("numpy")
    next(outer)
    next(inner)
    outer.close()
    np.testing.assert_array_equal(product(), Y)
    with tmm_core.use_backend("json"):
        inner.close()
        np.testing.assert_array_equal(product(), 2 * Y)
    np.testing.assert_array_equal(product(), Y)
    assert registry._blocks.get() == ()


def test_an_unknown_backend_names_the_choices() -> None:
    with pytest.raises(LookupError, match="unknown backend ''"):
        product(backend="")
    for choose in (lambda: product(backend="nonesuch"), lambda: tmm_core.get_backend("nonesuch")):
        with pytest.raises(LookupError, match=r"unknown backend 'nonesuch'.*'auto'.*array_api, numpy, .*torch"):
            choose()
    with pytest.raises(LookupError, match="nonesuch"), tmm_core.use_backend("nonesuch"):
        pass


def test_a_missing_library_is_not_listed_and_names_what_to_install(register: Callable[..., None]) -> None:
    register("no_such_library", lambda: doubling("no_such_library"))
    assert "no_such_library" in registry.registered_backends()
    assert "no_such_library" not in tmm_core.available_backends()
    with pytest.raises(LookupError, match="'no_such_library', which is not installed: install no_such_library"):
        tmm_core.get_backend("no_such_library")


def test_what_is_no_backend_is_refused(register: Callable[..., None]) -> None:
    register("json", lambda: Doubling("json"))
    with pytest.raises(LookupError, match=r"'json' cannot be used: stranger:json is no tmm_core\.backend\.Backend"):
        product(backend="json")


@pytest.mark.parametrize("name", ["no_such_library.part", "stand_in"])
def test_a_name_that_cannot_be_looked_up_spoils_no_listing(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "stand_in", types.ModuleType("stand_in"))  # it has no spec
    register(name, lambda: doubling(name))
    assert "numpy" in tmm_core.available_backends()
    assert name not in tmm_core.available_backends()


def test_a_broken_library_names_its_fault(register: Callable[..., None]) -> None:
    def load() -> Backend:
        raise OSError("libfancy.so.1: cannot open shared object file")

    register("json", load)
    with pytest.raises(LookupError, match=r"'json' cannot be loaded \(OSError: libfancy.so.1"):
        product(backend="json")


def test_an_engine_that_refuses_does_no_work(register: Callable[..., None]) -> None:
    register("json", lambda: doubling("json", reason="no doubles on Sundays"))
    with pytest.raises(ValueError, match="backend 'json' cannot serve this call: no doubles on Sundays"):
        product(backend="json")


def test_auto_warns_of_an_engine_that_is_broken(register: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Backend:
        raise ImportError("wants an older NumPy")

    register("json", broken)
    register("csv", lambda: doubling("csv"))
    monkeypatch.setattr(registry, "_FASTEST", {"numpy": ("json", "csv")})
    monkeypatch.setattr(registry, "_fastest_engines", registry._fastest_engines.__wrapped__)
    monkeypatch.setattr(registry, "_FEW_TIMES", 0)
    with pytest.warns(RuntimeWarning, match="'json' cannot be loaded .*wants an older NumPy"):
        np.testing.assert_array_equal(product(), 2 * Y)


def test_auto_passes_over_an_engine_that_refuses(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    register("json", lambda: doubling("json", reason="no doubles on Sundays"))
    register("csv", lambda: doubling("csv"))
    monkeypatch.setattr(registry, "_FASTEST", {"numpy": ("json", "csv")})
    monkeypatch.setattr(registry, "_fastest_engines", registry._fastest_engines.__wrapped__)  # not remembered
    np.testing.assert_array_equal(product(), Y)  # too short to be worth another engine
    monkeypatch.setattr(registry, "_FEW_TIMES", 0)
    np.testing.assert_array_equal(product(), 2 * Y)
    monkeypatch.setattr(registry, "_FASTEST", {"numpy": ("json",)})
    np.testing.assert_array_equal(product(), Y)


CHOICE = """
import numpy, tmm_core
x = numpy.ones(3)
print(tmm_core.causal_toeplitz_matmul(x, x, backend={backend}))
"""


def test_the_environment_chooses() -> None:
    code = "import numpy, tmm_core, tmm_core._dispatch.registry as r\nx = numpy.ones(3)\n"
    code += "product = tmm_core.causal_toeplitz_matmul(x, x)\nprint(r._environment_choice(), product)"
    done = run_python(code, TMM_BACKEND="numpy")
    assert done.stdout == "numpy [1. 2. 3.]\n", done.stderr


def test_a_wrong_environment_says_where_the_name_came_from() -> None:
    wrong = run_python(CHOICE.format(backend=None), TMM_BACKEND="nonesuch")
    assert "the environment variable TMM_BACKEND is 'nonesuch': unknown backend" in wrong.stderr
    explicit = run_python(CHOICE.format(backend="'numpy'"), TMM_BACKEND="nonesuch")
    assert explicit.stdout == "[1. 2. 3.]\n", "an explicit choice does not read the environment"


def test_listing_imports_no_library() -> None:
    heavy = ("numpy", "torch", "jax", "numba", "cupy", "dask")
    code = "import sys, tmm_core\nnames = tmm_core.available_backends()\n"
    code += f"print('torch' in names, [m for m in {heavy} if m in sys.modules])"
    assert run_python(code).stdout == "True []\n"


LIBRARIES = ("numpy", "read-only", "torch", "jax", "array_api_strict")


def make(library: str, values: np.ndarray) -> Any:
    if library == "read-only":
        values = values.copy()
        values.flags.writeable = False
        return values
    return importlib.import_module("jax.numpy" if library == "jax" else library).asarray(values)


@pytest.mark.parametrize("source", LIBRARIES)
@pytest.mark.parametrize("target", LIBRARIES)
def test_arrays_cross_between_libraries(source: str, target: str) -> None:
    values = np.asarray([[1.5, -2.0], [0.0, 3.25]], dtype=np.float32)
    array, like = make(source, values), make(target, values)
    shared = exchange.share_like(array, like)
    assert type(shared) is type(like)
    assert exchange.library_of(shared) == exchange.library_of(like)
    np.testing.assert_array_equal(np.asarray(shared), values)


FORMS: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda a: a[1, 2],
    "empty": lambda a: a[:0, :],
    "transposed": lambda a: a.T,
    "gaps": lambda a: a[:, ::2],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "float64", "complex128"])
@pytest.mark.parametrize("source", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
def test_arrays_of_any_layout_and_dtype_cross(source: str, target: str, dtype: str, form: str) -> None:
    import jax

    values = np.arange(6).reshape(2, 3).astype(dtype)
    with jax.enable_x64(True):
        shared = exchange.share_like(FORMS[form](make(source, values)), make(target, values))
        assert exchange.dtype_name(shared.dtype) == dtype
        np.testing.assert_array_equal(np.asarray(shared), FORMS[form](values))


@pytest.mark.parametrize("dtype", [">f4", ">c16"])
def test_numbers_in_another_byte_order_cross(dtype: str) -> None:
    import torch

    values = np.arange(4).astype(dtype)
    np.testing.assert_array_equal(exchange.share_like(values, torch.zeros(1)).numpy(), values)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_jax_without_64_bits_truncates_nothing(dtype: str) -> None:
    import jax

    with jax.enable_x64(False), pytest.raises(TypeError, match=rf"of {dtype}: convert .*jax_enable_x64"):
        exchange.share_like(np.ones(3, dtype), jax.numpy.ones(1))


@pytest.mark.parametrize("source", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
def test_bfloat16_crosses_bit_for_bit(source: str, target: str) -> None:
    import jax.numpy
    import ml_dtypes
    import torch

    values = np.asarray([1.5, -2.0, 3e38, 1e-40]).astype(ml_dtypes.bfloat16)
    bits = values.view(np.int16)
    made = {
        "numpy": values,
        "torch": torch.asarray(bits).view(torch.bfloat16),
        "jax": jax.numpy.asarray(values),
    }
    shared = exchange.share_like(made[source], made[target])
    assert shared.dtype == made[target].dtype
    back = exchange.share_like(shared, made["numpy"])
    np.testing.assert_array_equal(back.view(np.int16), bits)


def test_numpy_and_torch_share_memory() -> None:
    import torch

    array = np.zeros(3)
    shared = exchange.share_like(array, torch.zeros(1))
    array[1] = 5.0
    assert shared[1] == 5.0


def test_lists_and_mixed_libraries_are_refused() -> None:
    import torch

    with pytest.raises(TypeError, match=r"expected an array, got list: wrap it"):
        tmm_core.causal_toeplitz_matmul([1.0], X)
    with pytest.raises(TypeError, match=r"expected arrays of one library, got numpy.ndarray and torch.Tensor"):
        tmm_core.causal_toeplitz_matmul(W, torch.asarray(X))


def test_a_tracer_is_refused_by_an_engine_that_has_no_values() -> None:
    import jax

    engine = tmm_core.get_backend("numpy").engine
    with pytest.raises(TypeError, match=r"a traced .*Tracer has no values yet"):
        jax.jit(lambda x: registry.run(engine, "matmul", x, x, segment_ids=None, adjoint=False, method="auto"))(
            jax.numpy.ones((1, 1, 1))
        )


@pytest.mark.parametrize("backend", ["numpy", "array_api", "torch", "jax"])
@pytest.mark.parametrize("source", LIBRARIES)
def test_any_engine_serves_any_array(source: str, backend: str) -> None:
    w, x = (make(source, a.astype(np.float32)) for a in (W, X))
    y = tmm_core.causal_toeplitz_matmul(w, x, backend=backend)
    assert type(y) is type(x)
    np.testing.assert_allclose(np.asarray(y), Y, rtol=1e-5)
