"""How a backend is registered, found, chosen and refused."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_python
from support.strangers import Register, forget_backends, install, registering

import tmm_core
from tmm_core import backend as contract
from tmm_core.backend import Backend, InputTypeError, Rank, Request
from tmm_core.backend._built_in import NumpyEngine
from tmm_core.testing import get_library

W, X = np.asarray([1.0, 2.0]), np.asarray([1.0, 10.0, 100.0])
Y = np.asarray([1.0, 12.0, 120.0])


class Doubling(NumpyEngine):
    """An engine that can be told from every other: it gives twice the product."""

    def __init__(self, name: str, reason: str | None = None) -> None:
        self.name, self.reason = name, reason

    def matmul(self, *arrays: Any, **options: Any) -> Any:
        return 2 * contract.definition_matmul(*arrays, **options)

    def unsupported(self, request: Request) -> str | None:
        return self.reason


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    yield from registering(tmp_path, monkeypatch)


def doubling(name: str, reason: str | None = None, rank: Rank | None = None) -> Backend:
    ranks = {} if rank is None else {"numpy": rank}
    return Backend(name, ("numpy",), "everything, twice", lambda: Doubling(name, reason), ranks=ranks)


def product(**options: object) -> np.ndarray:
    return tmm_core.causal_toeplitz_matmul(W, X, **options)


def test_a_strangers_backend_serves_by_argument_and_by_block(register: Register) -> None:
    register("twice", doubling("twice"))
    assert "twice" in tmm_core.available_backends()
    np.testing.assert_array_equal(product(), Y)
    np.testing.assert_array_equal(product(backend="twice"), 2 * Y)
    with tmm_core.use_backend("twice"):
        np.testing.assert_array_equal(product(), 2 * Y)
        np.testing.assert_array_equal(product(backend="numpy"), Y)  # the argument wins
        with tmm_core.use_backend("auto"):
            np.testing.assert_array_equal(product(), Y)
        with tmm_core.use_backend("twice"):
            pass
        np.testing.assert_array_equal(product(), 2 * Y)
    np.testing.assert_array_equal(product(), Y)


def test_a_block_chooses_for_its_own_thread_only(register: Register) -> None:
    register("twice", doubling("twice"))
    seen: list[np.ndarray] = []
    with tmm_core.use_backend("twice"):
        thread = threading.Thread(target=lambda: seen.append(product()))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(seen[0], Y)


def test_a_block_is_left_by_an_error_as_well(register: Register) -> None:
    register("twice", doubling("twice"))
    with pytest.raises(RuntimeError, match="inside"), tmm_core.use_backend("twice"):
        raise RuntimeError("inside")
    np.testing.assert_array_equal(product(), Y)


def test_blocks_of_generators_end_in_any_order(register: Register) -> None:
    register("twice", doubling("twice"))

    def inside(name: str) -> Iterator[None]:
        with tmm_core.use_backend(name):
            yield

    outer, inner = inside("twice"), inside("numpy")
    next(outer)
    next(inner)
    outer.close()
    np.testing.assert_array_equal(product(), Y)
    with tmm_core.use_backend("twice"):
        inner.close()
        np.testing.assert_array_equal(product(), 2 * Y)
    np.testing.assert_array_equal(product(), Y)
    assert tmm_core.chosen_backend() == "auto"


def test_a_choice_for_the_process_holds_in_all_threads_outside_of_blocks(register: Register) -> None:
    register("twice", doubling("twice"))
    seen: list[str] = []
    try:
        tmm_core.set_backend("twice")
        np.testing.assert_array_equal(product(), 2 * Y)
        np.testing.assert_array_equal(product(backend="numpy"), Y)
        with tmm_core.use_backend("numpy"):
            tmm_core.set_backend("twice")
            np.testing.assert_array_equal(product(), Y)
            thread = threading.Thread(target=lambda: seen.append(tmm_core.chosen_backend()))
            thread.start()
            thread.join()
        assert tmm_core.current_backend(X) == "twice", "a block ends with what was chosen before it"
        tmm_core.set_backend("auto")
        np.testing.assert_array_equal(product(), Y)
    finally:
        tmm_core.set_backend(None)
    assert seen == ["twice"]


def test_tasks_choose_for_themselves(register: Register) -> None:
    register("twice", doubling("twice"))

    async def chosen_in(name: str) -> list[str]:
        with tmm_core.use_backend(name):
            before = tmm_core.chosen_backend()
            await asyncio.sleep(0)
            with tmm_core.use_backend("auto"):
                await asyncio.sleep(0)
            return [before, tmm_core.chosen_backend()]

    async def together() -> list[list[str]]:
        return await asyncio.gather(chosen_in("twice"), chosen_in("numpy"))

    with tmm_core.use_backend("array_api"):
        assert asyncio.run(together()) == [["twice"] * 2, ["numpy"] * 2]
        assert tmm_core.chosen_backend() == "array_api"


def test_a_block_is_entered_once(register: Register) -> None:
    block = tmm_core.use_backend("numpy")
    with tmm_core.use_backend("array_api"):
        with block:
            with pytest.raises((AttributeError, RuntimeError)):
                block.__enter__()
            assert tmm_core.chosen_backend() == "numpy"
        assert tmm_core.chosen_backend() == "array_api"


def test_an_unknown_backend_names_the_choices() -> None:
    with pytest.raises(LookupError, match="unknown backend ''"):
        product(backend="")
    for choose in (lambda: product(backend="nonesuch"), lambda: tmm_core.get_backend("nonesuch")):
        with pytest.raises(LookupError, match=r"unknown backend 'nonesuch'.*'auto'.*array_api, numpy, .*torch"):
            choose()
    with pytest.raises(LookupError, match="nonesuch"), tmm_core.use_backend("nonesuch"):
        pass
    with pytest.raises(LookupError, match="nonesuch"):
        tmm_core.set_backend("nonesuch")
    with pytest.raises(LookupError, match=r"'auto' chooses a backend and is none: tmm_core.current_backend\(x\)"):
        tmm_core.get_backend("auto")
    nothing = np.zeros((0, 1))
    with pytest.raises(LookupError, match="nonesuch"):  # before it turns out that there is nothing to compute
        tmm_core.causal_toeplitz_solve(W, nothing[:, 0], backend="nonesuch")


def test_a_missing_library_is_not_listed_and_names_what_to_install(register: Register) -> None:
    register("absent", Backend("absent", ("no_such_library",), "nothing", lambda: Doubling("absent")))
    assert "absent" in tmm_core.registered_backends()
    assert "absent" not in tmm_core.available_backends()
    with pytest.raises(LookupError, match="'no_such_library', which is not installed: pip install no_such_library"):
        tmm_core.get_backend("absent")


def test_an_extra_named_after_a_backend_is_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = contract._entries.remedy
    assert remedy("cupy", ("cupy",)) == "pip install 'tmm-core[cupy12]' or pip install 'tmm-core[cupy13]'"


@pytest.mark.parametrize(("found", "said"), [(Doubling("twice"), "a Doubling"), (doubling("other"), "'other'")])
def test_what_is_no_backend_of_that_name_is_refused(register: Register, found: object, said: str) -> None:
    register("twice", found)
    expected = rf"'twice' cannot be used: stranger_twice:backend must be a tmm_core\.backend\.Backend .* is .*{said}"
    with pytest.raises(LookupError, match=expected):
        product(backend="twice")
    with pytest.warns(RuntimeWarning, match="a backend is passed over: .*'twice' cannot be used"):
        assert "numpy" in tmm_core.available_backends()
    assert "twice" not in tmm_core.available_backends(), "and is warned of once"


@pytest.mark.parametrize("name", ["numpy", "other"])
def test_an_engine_of_another_name_is_refused(register: Register, name: str) -> None:
    register("twice", Backend("twice", (), "everything", lambda: Doubling(name)))
    with pytest.raises(LookupError, match=f"'twice' cannot be used: its engine calls itself '{name}'"):
        product(backend="twice")


def test_what_is_no_engine_is_refused(register: Register) -> None:
    register("twice", Backend("twice", (), "nothing", object))  # type: ignore[arg-type]
    with pytest.raises(LookupError, match=r"its engine lacks .*owns, .*matmul"):
        product(backend="twice")


def test_two_backends_of_one_name_are_refused(register: Register, tmp_path: Path) -> None:
    register("numba", doubling("numba"))
    with pytest.raises(LookupError, match=r"backend name 'numba' is taken: .* uninstall one"):
        tmm_core.available_backends()


@pytest.mark.parametrize("requires", ["no_such_library.part", "json.no_module_inside"])
def test_a_library_that_cannot_be_looked_up_spoils_no_listing(register: Register, requires: str) -> None:
    register("absent", Backend("absent", (requires,), "nothing", lambda: Doubling("absent")))
    assert "numpy" in tmm_core.available_backends()
    assert "absent" not in tmm_core.available_backends()


def test_a_description_that_cannot_be_imported_spoils_no_listing(register: Register, tmp_path: Path) -> None:
    install(tmp_path, "broken", "no_such_module:backend")
    register("twice", doubling("twice"))
    with pytest.warns(RuntimeWarning, match="a backend is passed over: .*'broken' cannot be loaded"):
        assert "twice" in tmm_core.available_backends()
    assert "broken" not in tmm_core.available_backends()
    assert "broken" in tmm_core.registered_backends()
    with pytest.raises(LookupError, match=r"'broken' cannot be loaded .*No module named 'no_such_module'"):
        product(backend="broken")


@pytest.mark.parametrize("library", ["array_api_strict", "torch", "jax", "dask"])
def test_arrays_are_never_computed_without_a_bridge_that_is_broken(
    register: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    arrays = get_library(library)
    w, x = arrays.asarray(W, "float32"), arrays.asarray(X, "float32")
    found = contract._entries.entries()
    broken = EntryPoint(library, "no_such_module:backend", contract._entries.GROUP)
    forget_backends()
    monkeypatch.setattr(contract._registry, "entries", lambda: {**found, library: broken})
    with pytest.raises(LookupError, match=f"'{library}' cannot be loaded"):
        tmm_core.causal_toeplitz_matmul(w, x, backend="array_api")
    monkeypatch.undo()
    forget_backends()


@pytest.mark.parametrize("name", [3, ["numba"], {"numpy"}, np.asarray(["auto", "numpy"])])
def test_what_is_no_name_is_refused(name: Any) -> None:
    for choose in (lambda: product(backend=name), lambda: tmm_core.get_backend(name)):
        with pytest.raises(InputTypeError, match="backend must be the name of one"):
            choose()
    with pytest.raises(InputTypeError, match="backend must be the name of one"), tmm_core.use_backend(name):
        pass
    with pytest.raises(InputTypeError, match="backend must be the name of one"):
        tmm_core.set_backend(name)


def broken() -> Any:
    raise OSError("libfancy.so.1: cannot open shared object file")


def test_a_broken_library_names_its_fault(register: Register) -> None:
    register("twice", Backend("twice", ("numpy",), "nothing", broken))
    with pytest.raises(LookupError, match=r"'twice' cannot be loaded \(OSError: libfancy.so.1"):
        product(backend="twice")


def test_one_library_may_have_several_engines(register: Register) -> None:
    register("twice", doubling("twice"))
    register("too", doubling("too"))
    np.testing.assert_array_equal(product(backend="twice"), product(backend="too"))


def test_a_bridge_without_an_engine_computes_nothing() -> None:
    assert "dask" not in tmm_core.registered_backends()
    with pytest.raises(LookupError, match="'dask' has no engine, only a bridge for arrays of dask"):
        product(backend="dask")


def test_an_engine_that_refuses_does_no_work(register: Register) -> None:
    register("twice", doubling("twice", reason="no doubles on Sundays"))
    with pytest.raises(ValueError, match="backend 'twice' cannot serve this call: no doubles on Sundays"):
        product(backend="twice")


def test_auto_takes_the_engine_that_ranks_first(register: Register) -> None:
    register("twice", doubling("twice", rank=100))
    np.testing.assert_array_equal(product(), 2 * Y)
    with tmm_core.use_backend("numpy"):
        np.testing.assert_array_equal(product(), Y)


def test_a_rank_may_depend_on_the_request(register: Register) -> None:
    def only_long(request: Request) -> int | None:
        assert (request.dtype, request.device, request.segments) == ("float64", "cpu", False)
        return 100 if request.shape[-2] > 3 else None

    register("twice", doubling("twice", rank=only_long))
    np.testing.assert_array_equal(product(), Y)
    x = np.append(X, 0.0)
    np.testing.assert_array_equal(tmm_core.causal_toeplitz_matmul(W, x), [2.0, 24.0, 240.0, 400.0])


def test_auto_warns_of_an_engine_that_is_broken_once(register: Register) -> None:
    register("twice", doubling("twice", rank=100))
    register("broken", Backend("broken", ("numpy",), "nothing", broken, ranks={"numpy": 101}))
    with pytest.warns(RuntimeWarning, match="'broken' cannot be loaded .*libfancy"):
        np.testing.assert_array_equal(product(), 2 * Y)
    np.testing.assert_array_equal(product(), 2 * Y)


def test_auto_passes_over_an_engine_that_refuses(register: Register) -> None:
    register("never", doubling("never", reason="no doubles on Sundays", rank=101))
    np.testing.assert_array_equal(product(), Y)
    register("twice", doubling("twice", rank=100))
    np.testing.assert_array_equal(product(), 2 * Y)


CHOICE = """
import numpy, tmm_core
x = numpy.ones(3)
print(tmm_core.causal_toeplitz_matmul(x, x, backend={backend}))
"""


def test_the_environment_chooses() -> None:
    code = "import numpy, tmm_core\nx = numpy.ones(3)\n"
    code += "product = tmm_core.causal_toeplitz_matmul(x, x)\nprint(tmm_core.chosen_backend(), product)"
    done = run_python(code, TMM_BACKEND="numpy")
    assert done.stdout == "numpy [1. 2. 3.]\n", done.stderr


def test_a_wrong_environment_says_where_the_name_came_from() -> None:
    wrong = run_python(CHOICE.format(backend=None), fails=True, TMM_BACKEND="nonesuch")
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
    shared = contract.share_like(array, like)
    assert type(shared) is type(like)
    assert contract.library_of(shared) == contract.library_of(like)
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
        shared = contract.share_like(FORMS[form](make(source, values)), make(target, values))
        assert contract.dtype_name(shared.dtype) == dtype
        np.testing.assert_array_equal(np.asarray(shared), FORMS[form](values))


@pytest.mark.parametrize("dtype", [">f4", ">c16"])
def test_numbers_in_another_byte_order_cross(dtype: str) -> None:
    import torch

    values = np.arange(4).astype(dtype)
    np.testing.assert_array_equal(contract.share_like(values, torch.zeros(1)).numpy(), values)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_jax_without_64_bits_truncates_nothing(dtype: str) -> None:
    import jax

    with jax.enable_x64(False), pytest.raises(TypeError, match=rf"of {dtype}: convert .*jax_enable_x64"):
        contract.share_like(np.ones(3, dtype), jax.numpy.ones(1))


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
    shared = contract.share_like(made[source], made[target])
    assert shared.dtype == made[target].dtype
    back = contract.share_like(shared, made["numpy"])
    np.testing.assert_array_equal(back.view(np.int16), bits)


def test_numpy_and_torch_share_memory() -> None:
    import torch

    array = np.zeros(3)
    shared = contract.share_like(array, torch.zeros(1))
    array[1] = 5.0
    assert shared[1] == 5.0


def test_lists_and_mixed_libraries_are_refused() -> None:
    import torch

    with pytest.raises(TypeError, match=r"w: expected an array, got list: pass its numbers"):
        tmm_core.causal_toeplitz_matmul([1.0], X)
    with pytest.raises(TypeError, match=r"expected arrays of one library.*w is a numpy\.ndarray, x is a torch\.Tensor"):
        tmm_core.causal_toeplitz_matmul(W, torch.asarray(X))


def test_a_tracer_is_refused_by_an_engine_that_has_no_values() -> None:
    import jax

    engine = tmm_core.get_backend("numpy").engine
    with pytest.raises(TypeError, match=r"a traced .*Tracer has no values yet"):
        jax.jit(lambda x: contract.run_matmul(engine, x, x, segment_ids=None, adjoint=False, method="auto"))(
            jax.numpy.ones((1, 1, 1))
        )


@pytest.mark.parametrize("backend", ["numpy", "array_api", "torch", "jax"])
@pytest.mark.parametrize("source", LIBRARIES)
def test_any_engine_serves_any_array(source: str, backend: str) -> None:
    w, x = (make(source, a.astype(np.float32)) for a in (W, X))
    y = tmm_core.causal_toeplitz_matmul(w, x, backend=backend)
    assert type(y) is type(x)
    np.testing.assert_allclose(np.asarray(y), Y, rtol=1e-5)


@pytest.mark.parametrize("backend", ["array_api", "numpy", "numba", "torch"])
def test_documents_out_of_order_become_nan_whichever_engine_computes(backend: str) -> None:
    ids = np.asarray([[0, 0, 1, 1], [0, 1, 0, 1]])
    w, x = np.ones((1, 1, 2)), np.ones((2, 4, 3))
    engine = tmm_core.get_backend(backend).engine
    y = contract.run_matmul(engine, w, x, adjoint=False, method="auto", segment_ids=ids)
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[0]).all()
    shape = {"lags": 3, "heads": 1, "kernel_size": 1}
    for rows, wrong in ((slice(0, 1), False), (slice(0, 2), True)):
        c = contract.run_correlate(engine, x[rows], x[rows], **shape, method="auto", segment_ids=ids[rows])
        assert np.isnan(c).all() == wrong
