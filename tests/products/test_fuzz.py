"""Random calls of the public operations against their definition, by fixed seeds; and that what is wrong is found."""

import itertools

import numpy as np
import pytest
from support.requirements import library_or_skip

import tmm_core
from tmm_core.testing import LIBRARIES, get_library
from tmm_core.testing.fuzz import KINDS, OPERATIONS, Case, draw, kinds, shrunk, verdict
from tmm_core.testing.fuzz.__main__ import main

CASES = 60


def check(seed: int, numbers: range, *libraries: str) -> None:
    for name in libraries:
        library_or_skip(name)
    for number in numbers:
        case = draw(seed, number, libraries)
        assert verdict(case) is None, f"case {number} of seed {seed}:\n{case.code()}"


@pytest.mark.parametrize("name", ["numpy", "numpy-bfloat16", "array_api_strict", "torch", "dask"])
def test_random_calls_are_right(name, monkeypatch):
    # Engines that compile for every shape are tried by the longer run.
    monkeypatch.setattr("tmm_core.testing.fuzz.draws._backends", lambda: ("array_api", "numpy", "numba", "torch"))
    check(1, range(CASES if name != "dask" else CASES // 6), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "jax-jit"])
def test_random_calls_of_compiled_functions_are_right(name):
    check(2, range(25), name)


@pytest.mark.slow
def test_many_random_calls_are_right():
    check(3, range(600), "numpy", "numpy-read-only", "numpy-bfloat16", "array_api_strict", "torch")


def test_every_kind_is_drawn(monkeypatch):
    libraries = set(LIBRARIES) - {"torch-compiled"}
    for name in libraries:
        library_or_skip(name)
    monkeypatch.setattr("tmm_core.testing.fuzz.ways._has_several_devices", lambda: True)
    drawn = {kind for i in range(4000) for kind in kinds(draw(0, i))}
    engines = {f"by {name}" for name in ("any engine", "array_api", "numpy", "numba", "torch", "jax")}
    assert drawn == {*KINDS, *OPERATIONS, *engines, *(f"arrays of {name}" for name in libraries)}


def test_cases_are_the_same_for_a_seed():
    first, again = (draw(5, 7, ["numpy"]) for _ in range(2))
    assert first.code() == again.code() != draw(5, 8, ["numpy"]).code()


def test_what_is_wrong_is_found_and_made_small(monkeypatch, capsys):
    """An engine that forgets the last lag of long filters."""
    right = tmm_core.causal_toeplitz_matmul

    def forgetful(w, x, /, **options):
        return right(w[..., :-1] if w.shape[-1] > 3 else w, x, **options)

    monkeypatch.setattr(tmm_core, "causal_toeplitz_matmul", forgetful)
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((2, 5)), "x": rng.standard_normal((1, 5, 2)), "segment_ids": np.zeros(5)}
    dtypes = {"w": "float64", "x": "float64", "segment_ids": "int32"}
    options = {"adjoint": True, "backend": "numpy"}
    case = Case("causal_toeplitz_matmul", "numpy", arrays, dtypes, {"x": "np.asfortranarray(a)"}, options)
    small = shrunk(case, seconds=60)
    assert verdict(small).startswith("value")
    assert {name: a.shape for name, a in small.arrays.items()} == {"w": (1, 4), "x": (1, 4, 1)}
    assert [np.count_nonzero(a) for a in small.arrays.values()] == [1, 1]
    assert (small.made, small.options) == ({}, {"backend": "numpy"})

    monkeypatch.setattr("tmm_core.testing.fuzz.trials.draw", lambda *_: small)
    assert main(["--cases", "5"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("# case 0 of seed 0: value: expected")
    assert "tmm_core.causal_toeplitz_matmul(w, x, backend='numpy')" in printed


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_code_of_a_case_gives_its_result(operation):
    case = next(case for i in itertools.count() if (case := draw(4, i, ["numpy"])).operation == operation)
    names = {}
    exec(case.code(), names)
    np.testing.assert_array_equal(get_library("numpy").to_numpy(names["result"]), case.run())


def test_a_case_knows_what_is_right():
    arrays = {"w": np.asarray([1.0, 10.0]), "x": np.asarray([1.0, 2.0, 3.0])}
    case = Case("causal_toeplitz_matmul", "numpy", arrays, dict.fromkeys(arrays, "float64"))
    assert verdict(case) is None
    np.testing.assert_array_equal(case.run(), [1, 12, 23])


def test_the_command_says_how_many_were_right(capsys):
    assert main(["--cases", "5", "--seed", "1", "--library", "numpy"]) == 0
    assert capsys.readouterr().out.startswith("5 cases of seed 1: no failure")
    assert main(["--case", "3", "--seed", "1", "--library", "numpy"]) == 0
    assert capsys.readouterr().out.endswith("# right\n")
