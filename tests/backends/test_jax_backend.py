"""What is JAX's own: transformations, compiled programs, devices. The laws themselves run in `test_laws.py`."""

import os
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import grad, hessian, jacfwd, jacrev, jit, jvp, lax, vmap
from jax.test_util import check_grads
from support.requirements import import_or_skip, library_or_skip

import tmm_core
from tmm_backends._jax import host

product, correlate = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_correlate
IDS = np.asarray([0, 0, 3, 3, 3])
N, D, H = 5, 4, 2


@pytest.fixture(autouse=True)
def _wide():
    """Compute with 64 bits, as the laws do."""
    library_or_skip("jax")


def draw(*shape, dtype="float64", seed=0):
    rng = np.random.default_rng((seed, *shape))
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return jnp.asarray(values, dtype)


def cubed(w, x):
    """A function with derivatives of every order in both factors, by an engine that runs outside of XLA."""
    return (product(w, x, backend="numba") ** 3).sum()


def dense(w, x, adjoint=False):
    """The product by plain JAX operations, for `w` of shape (2, k) and `x` of shape (n, 4)."""
    lag = np.subtract.outer(np.arange(x.shape[0]), np.arange(x.shape[0]))
    matrices = jnp.where((lag >= 0) & (lag < w.shape[1]), w[:, lag.clip(0, w.shape[1] - 1)], 0)
    if adjoint:
        matrices = matrices.conj().swapaxes(-1, -2)
    return jnp.concatenate([m @ part for m, part in zip(matrices, jnp.split(x, 2, -1), strict=True)], -1)


def dense_cubed(w, x):
    return (dense(w, x) ** 3).sum()


def assert_close(got, expected, tolerance=1e-11):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# Differentiation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "backend"), [("float64", "numba"), ("complex128", "numpy")])
@pytest.mark.parametrize(
    ("adjoint", "kernel_size", "ids"), [(False, 1, None), (True, 2, None), (False, 2, IDS), (True, 1, IDS)]
)
def test_gradients_of_orders_one_and_two_and_tangents(dtype, backend, adjoint, kernel_size, ids):
    w, x, g = draw(H, kernel_size, 3, dtype=dtype), draw(N, D, dtype=dtype), draw(N, D, dtype=dtype, seed=1)
    ids = None if ids is None else jnp.asarray(ids)

    def multiply(w, x):
        w, x = jnp.asarray(w), jnp.asarray(x)  # NumPy makes the finite differences
        return product(w, x, adjoint=adjoint, segment_ids=ids, backend=backend)

    def relate(x, g):
        x, g = jnp.asarray(x), jnp.asarray(g)
        return correlate(x, g, lags=3, heads=H, kernel_size=kernel_size, segment_ids=ids, backend=backend)

    check_grads(multiply, (w, x), order=2)
    check_grads(relate, (x, g), order=2)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtypes", [("complex128", "complex128"), ("float64", "complex128"), ("complex128", "float64")])
def test_complex_gradients_follow_the_conventions_of_jax(dtypes, adjoint):
    w, x = draw(H, 3, dtype=dtypes[0]), draw(N, D, dtype=dtypes[1])
    cotangent = draw(N, D, dtype="complex128", seed=2)
    got = jax.vjp(lambda w, x: product(w, x, adjoint=adjoint, backend="numpy"), w, x)[1](cotangent)
    assert_close(got, jax.vjp(lambda w, x: dense(w, x, adjoint), w, x)[1](cotangent))


def test_gradients_have_the_dtypes_of_their_inputs():
    for w_dtype, x_dtype in (("float32", "bfloat16"), ("bfloat16", "float32"), ("float64", "float16")):
        w, x = draw(H, 3, dtype=w_dtype), draw(N, D, dtype=x_dtype)
        for gradients in (grad(cubed, (0, 1)), jit(grad(cubed, (0, 1)))):
            assert [g.dtype for g in gradients(w, x)] == [w.dtype, x.dtype]


@pytest.mark.parametrize("transform", [grad, jacrev, jacfwd, hessian])
def test_function_transforms(transform):
    w, x = draw(H, 3), draw(N, D)
    assert_close(transform(cubed, (0, 1))(w, x), transform(dense_cubed, (0, 1))(w, x))
    assert_close(jit(transform(cubed, (0, 1)))(w, x), transform(dense_cubed, (0, 1))(w, x))


def test_linear_transposition_and_forward_mode():
    w, x, dw, dx = draw(H, 3), draw(N, D), draw(H, 3, seed=1), draw(N, D, seed=1)
    assert_close(jvp(product, (w, x), (dw, dx))[1], dense(dw, x) + dense(w, dx))
    assert_close(jax.linearize(product, w, x)[1](dw, dx), dense(dw, x) + dense(w, dx))
    assert_close(jax.linear_transpose(lambda x: product(w, x), x)(dx)[0], product(w, dx, adjoint=True))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "array_api"])
def test_every_engine_differentiates(backend):
    w, x = draw(H, 3), draw(N, D)
    if backend == "torch":
        import_or_skip(backend)
    got = grad(lambda w, x: (product(w, x, backend=backend) ** 3).sum(), (0, 1))
    assert_close(jit(got)(w, x), grad(dense_cubed, (0, 1))(w, x))


# Batching ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel_size", [1, 2])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    "batched", [(0, None, None), (None, 1, None), (1, 0, None), (None, 0, 0), (0, 0, 0), (0, None, 0)]
)
def test_vmap_is_a_loop(batched, adjoint, kernel_size):
    ids = jnp.asarray([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2], [0, 0, 0, 0, 0]])
    wholes = draw(3, H, kernel_size, 3), draw(3, 2, N, D), ids

    def multiply(w, x, ids):
        return product(w, x, adjoint=adjoint, segment_ids=ids, backend="numba")

    def relate(w, x, ids):
        return correlate(x, x * w.sum(), lags=3, heads=H, kernel_size=kernel_size, segment_ids=ids, backend="numba")

    for function in (multiply, relate):
        arguments = [a[0] if dim is None else jnp.moveaxis(a, 0, dim) for a, dim in zip(wholes, batched, strict=True)]
        rows = [[a[0] if dim is None else a[i] for a, dim in zip(wholes, batched, strict=True)] for i in range(3)]
        expected = jnp.stack([function(*row) for row in rows])
        assert_close(vmap(function, batched)(*arguments), expected)


def test_nested_vmap_and_gradients_by_example():
    W, X = draw(3, H, 3), draw(2, N, D)

    def nested(f):
        return jit(vmap(lambda w: vmap(lambda x: f(w, x))(X)))(W)

    assert_close(nested(grad(cubed)), nested(grad(dense_cubed)))
    assert_close(nested(hessian(cubed)), nested(hessian(dense_cubed)))


@pytest.mark.parametrize("backend", ["numpy", "numba", "array_api"])
def test_unsorted_segments_under_vmap_are_nan(backend):
    ids = jnp.asarray([[0, 0, 1], [1, 0, 0]])
    w, x = jnp.ones((1, 2)), jnp.ones((3, 1))
    y = vmap(lambda ids: product(w, x, segment_ids=ids, backend=backend))(ids)
    c = vmap(lambda ids: correlate(x, x, lags=2, segment_ids=ids, backend=backend))(ids)
    compiled = jit(vmap(lambda ids: product(w, x, segment_ids=ids, backend=backend)))(ids)
    for result in (y, c, compiled):
        assert np.isfinite(result[0]).all()
        assert np.isnan(result[1]).all()


# Compiled programs ---------------------------------------------------------------------------------------------------


def test_the_engine_is_chosen_when_traced(monkeypatch):
    engine = tmm_core.get_backend("numpy").engine
    calls = []
    plain = engine.matmul
    monkeypatch.setattr(engine, "matmul", lambda *a, **k: calls.append(1) or plain(*a, **k))
    w, x, fast = draw(H, 3), draw(N, D), jit(product)
    with tmm_core.use_backend("numpy"):
        assert_close(fast(w, x), dense(w, x))
    assert_close(fast(w, x), dense(w, x))
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("shape", "dtype", "ids", "name"),
    [
        ((1, 16, 8), "float32", False, "jax"),  # too few to be worth a call
        ((1, 16, 8), "float32", True, "numba"),
        ((8, 64, 64), "bfloat16", False, "numba"),
        ((1, 200, 8), "float64", False, "numba"),
        ((1, 200, 8), "complex64", False, "jax"),
    ],
)
def test_the_fastest_engine_is_chosen(shape, dtype, ids, name):
    w, x = draw(1, 4, dtype=dtype), draw(*shape, dtype=dtype)
    ids = jnp.zeros(shape[1], int) if ids else None
    program = str(jax.make_jaxpr(lambda w, x: product(w, x, segment_ids=ids))(w, x))
    assert f"tmm_backends._{name}." in program


def test_numba_reads_and_writes_the_memory_of_the_program(monkeypatch):
    engine = tmm_core.get_backend("numba").engine
    seen = []
    plain = type(engine).matmul_into
    monkeypatch.setattr(
        type(engine), "matmul_into", lambda s, y, w, x, **k: seen.extend([y, x]) or plain(s, y, w, x, **k)
    )
    w, x = draw(1, 8, dtype="float32"), draw(2, 300, 4, dtype="bfloat16")
    y = jit(lambda w, x: product(w, x, backend="numba"))(w, x)
    assert seen[0].ctypes.data == y.block_until_ready().unsafe_buffer_pointer()
    assert seen[1].ctypes.data == x.unsafe_buffer_pointer()
    assert seen[1].dtype == x.dtype


def test_programs_call_at_the_same_time():
    w, x = draw(1, 64, dtype="float32"), draw(4, 300, 16, dtype="float32")
    program = jit(lambda w, x: sum(product(w, x * i, backend="numba") for i in range(1, 7)))
    expected = 21 * np.asarray(product(w, x, backend="numba"))
    found = []

    def go():
        found.extend(program(w, x) for _ in range(10))

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for y in found:
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3)


def test_inside_loops_and_checkpoints():
    w, x = draw(H, 3), draw(N, D)

    def loop(one):
        @jax.checkpoint
        def step(x, w):
            return jnp.tanh(one(w, x)), x.sum()

        return lambda w, x: lax.scan(step, x, jnp.stack([w, 2 * w]))[0].sum()

    mine, plain = (loop(f) for f in (lambda w, x: product(w, x, backend="numba"), dense))
    assert_close(jit(grad(mine, (0, 1)))(w, x), grad(plain, (0, 1))(w, x))


def test_small_numbers_are_numbers_in_threads_of_xla():
    x = np.full((1, 300, 4), 1e-40, np.float32)
    y = jit(lambda w, x: product(w, x, backend="numba"))(jnp.ones((1, 3), "float32"), jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(y)[0, 2:], 3e-40, rtol=1e-4)


def test_an_engine_that_fails_is_an_error_of_the_program(monkeypatch):
    engine = tmm_core.get_backend("numpy").engine

    def fail(*arrays, **options):
        raise FloatingPointError("out of cheese")

    monkeypatch.setattr(engine, "correlate", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="FloatingPointError: out of cheese"):
        jit(lambda x: correlate(x, x, lags=2, backend="numpy"))(draw(N, D)).block_until_ready()


# Platforms -----------------------------------------------------------------------------------------------------------


def test_programs_for_accelerators():
    w, x = draw(H, 3, dtype="float32"), draw(2, 200, D, dtype="float32")

    def loss(w, x, backend):
        return (product(w, x, backend=backend) ** 2).sum()

    for platform in ("cuda", "tpu"):
        exported = jax.export.export(jit(grad(lambda w, x: loss(w, x, "jax"), (0, 1))), platforms=[platform])(w, x)
        assert exported.platforms == (platform,)
        assert "fft" in exported.mlir_module()
        assert "tmm_core_host_engine" not in exported.mlir_module()
        with pytest.raises(
            ValueError, match=r"'numba' is called by programs on a CPU.*another platform.*backend='jax'"
        ):
            jax.export.export(jit(lambda w, x: loss(w, x, "numba")), platforms=[platform])(w, x)


def test_a_program_of_another_process_finds_its_engine(monkeypatch):
    program = jit(lambda x: product(jnp.ones((1, 2)), x, backend="numpy"))
    expected = program(draw(N, D))
    monkeypatch.setattr(host, "_engines", {})  # as where compiled code comes from a cache on disk
    np.testing.assert_array_equal(program(draw(N, D)), expected)


def test_arrays_of_many_devices():
    run(
        """
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, numpy as np, tmm_core
        from jax.sharding import NamedSharding, PartitionSpec as P
        jax.config.update("jax_enable_x64", True)
        mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        rng = np.random.default_rng(0)
        w, x = rng.standard_normal((2, 40)), rng.standard_normal((8, 40, 4))
        spread = jax.device_put(x, NamedSharding(mesh, P("data")))

        def loss(w, x):
            return (tmm_core.causal_toeplitz_matmul(w, x, backend="numba") ** 2).sum()

        def check(gradients):
            for got, expected in zip(gradients, jax.grad(loss, (0, 1))(*map(jax.numpy.asarray, (w, x)))):
                np.testing.assert_allclose(got, expected, rtol=1e-10)

        check(jax.grad(loss, (0, 1))(w, spread))
        check(jax.jit(jax.grad(loss, (0, 1)))(w, spread))
        for checked in (True, False):
            mapped = jax.shard_map(
                lambda w, x: jax.lax.psum(loss(w, x), "data"),
                mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=checked,
            )
            check(jax.jit(jax.grad(mapped, (0, 1)))(w, spread))
        second = jax.device_put(x, jax.devices()[1])
        y = tmm_core.causal_toeplitz_matmul(jax.device_put(w, jax.devices()[1]), second, backend="numba")
        assert y.devices() == {jax.devices()[1]}
        """
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_process_ends_while_programs_run(kept):
    run(
        f"""
        import jax, jax.numpy as jnp, tmm_core
        w, x = jnp.ones((1, 1024)), jnp.ones((2, 1024, 256))
        slow = jax.jit(lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=1), axis=1))
        product = jax.jit(lambda x: tmm_core.causal_toeplitz_matmul(w, x, backend="numba"))
        product(x)
        for _ in range(4):
            y = product(slow(x))  # runs in a thread of XLA's, which begins when `slow` is done
        if not {kept}:
            del y
        """
    )


def test_programs_without_64_bits_refuse_64_bit_arrays():
    done = run(
        """
        import numpy as np, tmm_core
        x = np.ones(3)
        assert tmm_core.causal_toeplitz_matmul(x, x).dtype == np.float64
        tmm_core.causal_toeplitz_matmul(x, x, backend="jax")
        """,
        fails=True,
    )
    assert "backend 'jax' cannot serve this call: JAX makes 32 bits of float64" in done.stderr
    assert "jax.config.update('jax_enable_x64', True)" in done.stderr


def run(code, *, fails=False):
    """Run code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
        timeout=200,
    )
    assert bool(done.returncode) == fails, done.stderr
    return done
