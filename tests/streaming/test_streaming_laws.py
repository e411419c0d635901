"""Every law of streaming over the array libraries and the backends that serve them."""

import dataclasses

import pytest
from support.requirements import import_or_skip, library_or_skip

from tmm_core.testing import STREAMING_LAWS
from tmm_core.testing.streaming import (
    check_chunks,
    check_independence_of_streams,
    check_own_leaf,
    check_padding,
    check_stream_memory,
    check_streaming,
)

ALL = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
REALS = ALL[:4]
# By library and backend, the dtypes to stream; Numba's engine computes with reals.
PAIRS = {
    ("numpy", "array_api"): ALL,
    ("numpy", "numba"): REALS,
    ("numpy-read-only", "numba"): ("float32",),
    ("numpy-bfloat16", "array_api"): ("bfloat16", "float32"),
    ("numpy-bfloat16", "numba"): ("bfloat16", "float32"),
    ("array_api_strict", "array_api"): ("float32", "complex128"),
    ("array_api_strict", "numba"): ("float32", "float64"),
    ("torch", "array_api"): ("float32", "complex64"),
    ("torch", "numba"): REALS,
    ("torch-compiled", "numba"): ("float32", "bfloat16"),
}
CASES = [
    # A step is compiled for every number of axes and every dtype, and takes a second each time: chunks are tokens
    # between prompts, which the law of padding compiles as well.
    *(
        (*pair, law)
        for pair in PAIRS
        for law in STREAMING_LAWS
        if pair[0] != "torch-compiled" or law not in (check_streaming, check_chunks)
    ),
    # What other engines do of a stream are prompts and tiles.
    ("numpy", "numpy", check_chunks),
    ("numpy", "torch", check_chunks),
    ("torch", "torch", check_chunks),
    ("torch-compiled", "array_api", check_padding),
    # JAX compiles a program for every shape; in programs of one's own positions are traced. Laws of inputs: see
    # `test_jax_generation.py`.
    *((name, "jax", law) for name in ("jax", "jax-jit") for law in (check_own_leaf, check_independence_of_streams)),
    # Steps of Dask arrays make graphs that grow with the stream, so one short stream must do.
    ("dask", "array_api", check_stream_memory),
]


def compiled_for_a_plan(step):
    import jax

    return jax.jit(step, static_argnums=0)


@pytest.mark.parametrize(
    ("name", "backend", "law"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2].__name__.removeprefix('check_')}") for case in CASES],
)
def test_law(name, backend, law):
    library = library_or_skip(name)
    if backend in ("torch", "numba"):
        import_or_skip(backend)
    if name == "jax-jit":
        library = dataclasses.replace(library, transform=compiled_for_a_plan)
    wanted = PAIRS.get((name, backend), ("float32",))
    law(library.restricted(*wanted), backend)
