"""Every law of `tmm_core.testing` over every array library and every backend that serves it."""

import pytest
from conftest import LIBRARIES, library_or_skip

from tmm_core.testing import LAWS

# A backend of another library computes on copies, so one of the ways to use a library stands for the others; what is
# traced by JAX has no values that another library could compute on.
PAIRS = [(name, "array_api") for name in LIBRARIES]
PAIRS += [("numpy-read-only", "numpy"), ("torch", "numpy"), ("jax", "numpy"), ("dask", "numpy")]
PAIRS += [("numpy", "torch"), ("torch", "torch"), ("torch-compiled", "torch"), ("jax", "torch"), ("dask", "torch")]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("check_"))
@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_law(name, backend, law):
    library = library_or_skip(name)
    if backend == "torch":
        library_or_skip("torch")
    law(library, backend)
