"""The descriptions of array libraries that laws are checked over."""

import sys

import numpy as np
import pytest

from tmm_core.testing import GPU_LIBRARIES, LIBRARIES, Library, get_library, installed_libraries, libraries


def test_arrays_hold_what_they_are_made_of(xp: Library):
    for dtype in xp.dtypes:
        values = np.asarray([[1.5, -2.0, 0.25]]) * (1j if dtype.startswith("complex") else 1)
        array = xp.asarray(values, dtype)
        assert str(array.dtype).endswith(dtype)
        np.testing.assert_array_equal(xp.to_numpy(array), values)
        np.testing.assert_array_equal(xp.to_numpy(xp.transform(lambda a: a + a)(array)), 2 * values)


def test_derivatives_are_those_of_the_function(xp: Library):
    assert (xp.vjp is None) == (xp.orders == 0)
    if xp.vjp is not None:
        a, b, g = (xp.asarray(np.asarray(value), "float64") for value in ([2.0, 3.0], [5.0, 7.0], [1.0, 10.0]))
        found = xp.vjp(xp.transform(lambda a, b: a * b), (a, b), g)
        assert [xp.to_numpy(array).tolist() for array in found] == [[5.0, 70.0], [2.0, 30.0]]


def test_dtypes_are_restricted_to_those_that_are_there():
    numpy = get_library("numpy")
    assert numpy.restricted("bfloat16", "float32").dtypes == ("float32",)
    with pytest.raises(ValueError, match="must hold float32"):
        numpy.restricted("float64")


def test_an_unknown_library_is_refused():
    with pytest.raises(LookupError, match=r"unknown array library 'abacus': choose one of numpy, .*jax-jit-cuda"):
        get_library("abacus")


def test_a_missing_library_is_passed_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_strict", None)
    monkeypatch.setattr(libraries, "_made", libraries._made.__wrapped__)  # what is made once stays for other tests
    with pytest.raises(LookupError, match="'array_api_strict' cannot be used here"):
        get_library("array_api_strict")
    monkeypatch.setattr(libraries, "_CPU", {name: libraries._CPU[name] for name in ("numpy", "array_api_strict")})
    names = [library.name for library in installed_libraries()]
    assert names[:1] == ["numpy"]
    assert "array_api_strict" not in names
    assert set(names) <= {*LIBRARIES, *GPU_LIBRARIES}
