"""Every law of `tmm_core.testing` over every array library and every backend that serves it."""

import pytest
from support.requirements import import_or_skip, library_or_skip

from tmm_core.testing import BATCH_LAWS, LAWS, LIBRARIES, check_gradients, get_library
from tmm_core.testing.products import (
    check_decreasing_segments,
    check_dtypes,
    check_products,
    check_shapes,
    check_solve,
)

# A backend of another library computes on copies, so one of the ways to use a library stands for the others. What JAX's
# own engine compiles is the definition, which need not be compiled for the laws again.
PAIRS = [(name, "array_api") for name in LIBRARIES if name != "jax-jit"]
PAIRS += [("numpy-read-only", "numpy"), ("torch", "numpy"), ("jax", "numpy"), ("dask", "numpy")]
PAIRS += [("numpy", "numba"), ("numpy-read-only", "numba"), ("numpy-bfloat16", "numba"), ("torch", "numba")]
PAIRS += [("torch-compiled", "numba"), ("dask", "numba"), ("array_api_strict", "numba")]
PAIRS += [("jax", "numba"), ("jax-jit", "numba"), ("jax-jit", "jax")]
PAIRS += [("numpy", "torch"), ("torch", "torch"), ("torch-compiled", "torch"), ("jax", "torch"), ("dask", "torch")]
# Torch and JAX differentiate through every engine, by their bridges.
DIFFERENTIABLE = [pair for pair in PAIRS if pair[0].startswith(("torch", "jax"))]
DIFFERENTIABLE += [("jax-jit", "numpy"), ("jax-jit", "torch"), ("jax", "jax")]

# JAX's engine compiles for every shape, the same whose arrays they are, so of those only what differs is checked.
COMPILED = [("numpy", "jax"), ("torch", "jax"), ("dask", "jax")]

# Layers and models are many operations, each of which eager JAX compiles: whole programs stand for the definition's.
# Torch compiles the model of `tmm_adapters`, in `test_batches.py`, not the definition.
WHOLE = [pair for pair in PAIRS if pair[0] != "torch-compiled" and pair not in (("jax", "array_api"), ("jax", "numpy"))]
WHOLE = [pair for pair in WHOLE if pair[0] != "dask" or pair[1] == "numpy"]

# A bridge hands arrays to every engine by one way, which all laws test with Numba's; with these some tell whether
# arrays go through.
BRIDGED = [("torch-compiled", "array_api"), ("torch-compiled", "torch"), ("jax", "numpy"), ("jax", "torch")]
THROUGH = (check_dtypes, check_gradients, check_products, check_shapes)


def is_slow(name, backend, law):
    """Whether an operation, or a step of a recursion, is compiled or planned one by one, for tens of seconds.

    Eager JAX compiles each operation of the definition for each shape: one law tells whether arrays go through.
    """
    if (name, backend) == ("jax", "array_api"):
        return law is not check_decreasing_segments
    return law in (check_solve, *BATCH_LAWS) and name in ("jax", "torch-compiled", "dask")


CASES = [
    pytest.param(
        name,
        backend,
        law,
        id=f"{name}-{backend}-{law.__name__.removeprefix('check_')}",
        marks=[pytest.mark.slow] if is_slow(name, backend, law) else [],
    )
    for law, pairs in (
        *((law, WHOLE if law in BATCH_LAWS else PAIRS) for law in LAWS),
        (check_gradients, [*DIFFERENTIABLE, ("torch", "jax")]),
        (check_dtypes, COMPILED),
        (check_shapes, COMPILED),
    )
    for name, backend in pairs
    if law in THROUGH or (name, backend) not in BRIDGED
]


@pytest.mark.parametrize(("name", "backend", "law"), CASES)
def test_law(name, backend, law):
    library = library_or_skip(name)
    if backend in ("torch", "numba", "jax"):
        import_or_skip(backend)
    if backend == "numba":
        library = library.restricted("float16", "bfloat16", "float32", "float64")
    law(library, backend)


def test_no_law_passes_where_it_checks_nothing():
    with pytest.raises(ValueError, match="no vjp"):
        check_gradients(get_library("numpy"), "numpy")
