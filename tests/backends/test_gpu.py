"""The laws on an NVIDIA GPU, over CuPy arrays, CUDA tensors of Torch, and JAX arrays: `pytest -m gpu`.

A library that cannot use a GPU here is skipped with its reason, or fails where `TMM_TEST_REQUIRE` names it.
"""

import os

import numpy as np
import pytest
from support.requirements import library_or_skip

import tmm_core
from tmm_core.testing import LAWS, STREAMING_LAWS, check_gradients
from tmm_core.testing.products import check_dtypes, check_products, check_segments, check_shapes

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the GPU's memory for itself

pytestmark = pytest.mark.gpu

# A backend of another library computes on memory that both share: a few laws tell whether that goes well.
WHOLE = [("cupy", "cupy"), ("torch-cuda", "cupy"), ("torch-cuda", "torch"), ("jax-jit-cuda", "jax")]
WHOLE += [("cupy", "array_api")]
SHARED = [("cupy", "torch"), ("cupy", "jax"), ("torch-cuda", "jax"), ("jax-cuda", "cupy"), ("jax-cuda", "torch")]
DIFFERENTIABLE = [("torch-cuda", "cupy"), ("torch-cuda", "torch"), ("torch-cuda", "jax"), ("jax-cuda", "cupy"),
                  ("jax-cuda", "torch"), ("jax-jit-cuda", "jax")]  # fmt: skip
CASES = [
    pytest.param(name, backend, law, id=f"{name}-{backend}-{law.__name__.removeprefix('check_')}")
    for laws, pairs in (
        (LAWS, WHOLE),
        ((check_products, check_segments, check_dtypes, check_shapes), SHARED),
        ((check_gradients,), DIFFERENTIABLE),
        (STREAMING_LAWS, [("cupy", "cupy"), ("torch-cuda", "torch")]),
    )
    for name, backend in pairs
    for law in laws
]


@pytest.mark.parametrize(("name", "backend", "law"), CASES)
def test_law(name, backend, law):
    library = library_or_skip(name)
    if backend != "array_api":
        library_or_skip(backend if backend == "cupy" else f"{backend}-cuda")
    law(library.restricted("float32") if law in STREAMING_LAWS else library, backend)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_auto_takes_cupys_engine_for_its_arrays():
    library_or_skip("cupy")
    import cupy

    request = tmm_core.backend.Request("float32", "cuda")
    assert tmm_core.choose_engine("auto", "cupy", request).name == "cupy"
    y = tmm_core.causal_toeplitz_matmul(cupy.ones(3), cupy.ones(3))
    assert isinstance(y, cupy.ndarray)
    assert cupy.asnumpy(y).round(12).tolist() == [1, 2, 3]


@pytest.mark.parametrize("method", ["auto", "direct"])
def test_nothing_waits_for_the_gpu(method):
    library_or_skip("cupy")
    import cupy
    import cupyx

    w, x = cupy.asarray(draw(2, 3, 50)), cupy.asarray(draw(2, 300, 8))
    ids = cupy.asarray(np.repeat([0, 1], 150))

    def run():
        for segments in (None, ids):
            tmm_core.causal_toeplitz_matmul(w, x, segment_ids=segments, method=method)
            tmm_core.causal_toeplitz_correlate(
                x, x, lags=50, heads=2, kernel_size=3, segment_ids=segments, method=method
            )

    run()  # makes plans and compiles kernels
    with cupyx.allow_synchronize(False):
        run()


def test_results_follow_the_order_of_a_stream():
    library_or_skip("cupy")
    import cupy

    w, x = draw(1, 1, 2000), draw(4, 2000, 64)
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(20):  # a plan, its memory and that of results are used again at once
            late = cupy.asarray(x)
            busy = cupy.ones((3000, 3000), np.float32)
            busy = busy @ busy
            late = late + 0 * busy[0, 0]
            y = tmm_core.causal_toeplitz_matmul(cupy.asarray(w), late)
            del late, busy
        stream.synchronize()
        np.testing.assert_allclose(cupy.asnumpy(y), expected, atol=1e-3)


def test_torchs_stream_is_cupys():
    library_or_skip("torch-cuda")
    library_or_skip("cupy")
    import torch

    w, x = draw(1, 1, 2000), draw(4, 2000, 64)
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    with torch.cuda.stream(torch.cuda.Stream()):
        lags, signal = torch.asarray(w).cuda(), torch.asarray(x).cuda()
        for _ in range(20):
            busy = torch.ones(3000, 3000, device="cuda")
            late = signal + 0 * (busy @ busy)[0, 0]
            y = tmm_core.causal_toeplitz_matmul(lags, late, backend="cupy")
            del late, busy
    np.testing.assert_allclose(y.cpu().numpy(), expected, atol=1e-3)


def test_plans_stay_within_their_bounds():
    library_or_skip("cupy")
    import cupy

    from tmm_backends._cupy import gpu

    plans = gpu._plans(0)
    for n in range(2, 200):
        tmm_core.causal_toeplitz_matmul(cupy.ones(3, np.float32), cupy.ones((n, 4), np.float32))
        count, size = plans.held
        assert count <= plans.most_plans
        assert size <= plans.most_bytes
    assert plans.held[0] == plans.most_plans
