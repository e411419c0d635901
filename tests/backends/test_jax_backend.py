"""What is JAX's own: transformations, compiled programs, devices. The laws themselves run in `test_laws.py`."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import grad, jit, jvp, lax
from support import bridges
from support.processes import run_python
from support.requirements import library_or_skip
from support.strangers import forget_backends

import tmm_core
from tmm_backends._jax import host

product, correlate = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_correlate
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


dense = functools.partial(bridges.dense, jnp)


def assert_close(got, expected, tolerance=1e-11):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# Differentiation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtypes", [("complex128", "complex128"), ("float64", "complex128"), ("complex128", "float64")])
def test_complex_gradients_follow_the_conventions_of_jax(dtypes, adjoint):
    w, x = draw(H, 3, dtype=dtypes[0]), draw(N, D, dtype=dtypes[1])
    cotangent = draw(N, D, dtype="complex128", seed=2)
    got = jax.vjp(lambda w, x: product(w, x, adjoint=adjoint, backend="numpy"), w, x)[1](cotangent)
    assert_close(got, jax.vjp(lambda w, x: dense(w, x, adjoint=adjoint), w, x)[1](cotangent))


def test_linear_transposition_and_forward_mode():
    w, x, dw, dx = draw(H, 3), draw(N, D), draw(H, 3, seed=1), draw(N, D, seed=1)
    assert_close(jvp(product, (w, x), (dw, dx))[1], dense(dw, x) + dense(w, dx))
    assert_close(jax.linearize(product, w, x)[1](dw, dx), dense(dw, x) + dense(w, dx))
    assert_close(jax.linear_transpose(lambda x: product(w, x), x)(dx)[0], product(w, dx, adjoint=True))


# Compiled programs ---------------------------------------------------------------------------------------------------


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


# Exceptions ----------------------------------------------------------------------------------------------------------


def test_an_engine_that_fails_is_an_error_of_the_program(monkeypatch):
    engine = tmm_core.get_backend("numpy").engine

    def fail(*arrays, **options):
        raise FloatingPointError("out of cheese")

    @jit
    def program(x):
        c = correlate(x, x, lags=2, backend="numpy")
        jax.debug.callback(lambda c: None, c)  # in which the error would become another
        return correlate(x, x * c.sum(), lags=2, backend="numpy")

    monkeypatch.setattr(engine, "correlate", fail)
    for _ in range(3):  # traced, and by the shorter way of later calls
        with pytest.raises(FloatingPointError, match="out of cheese"):
            program(draw(N, D)).block_until_ready()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(lambda: program(draw(N, D)).block_until_ready())
        with pytest.raises(jax.errors.JaxRuntimeError, match="FloatingPointError: out of cheese"):
            call.result()


def test_exceptions_of_signal_handlers_leave_a_program_as_themselves():
    """At any moment, the first and the last instruction of a call of an engine included."""
    run_python(
        """
        import gc, os, random, signal, threading
        import jax, numpy as np
        from tmm_core import causal_toeplitz_matmul as product

        class Late(Exception):
            pass

        def late(*_):
            raise Late

        @jax.jit
        def program(w, x):
            for _ in range(3):
                x = product(w, x, backend="numpy")
            return x

        signal.signal(signal.SIGALRM, late)
        w, x, rng = np.full(3, 0.25, "float32"), np.ones((5, 2), "float32"), random.Random(0)
        expected = np.asarray(program(w, x))
        gc.disable()  # its callbacks, of which JAX has one, lose exceptions
        for i in range(100):
            delay, due = 1e-4 + 0.005 * rng.random(), (KeyboardInterrupt, Late)[i % 2]
            try:
                if due is Late:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                else:
                    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
                for _ in range(100_000):
                    assert (np.asarray(program(w, x)) == expected).all()
                raise AssertionError("an exception was lost")
            except due:
                pass
        """
    )


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


def test_a_program_finds_its_engine_by_name():
    program = jit(lambda x: product(jnp.ones((1, 2)), x, backend="numpy"))
    expected = program(draw(N, D))
    forget_backends()  # as in another process, where compiled code comes from a cache on disk
    np.testing.assert_array_equal(program(draw(N, D)), expected)


@pytest.mark.parametrize(("what", "value"), [("SIZES", {0: 160, 5: 40, 10: 40, 15: 48}), ("MAJOR_VERSION", 1)])
def test_another_interface_of_xla_is_refused_before_a_program_runs(monkeypatch, what, value):
    monkeypatch.setattr(host, "_refused", [])
    monkeypatch.setattr(host, what, value)
    jax.ffi.register_ffi_target(f"tmm_test_{what}", jax.ffi.pycapsule(host._handler), platform="cpu")  # XLA asks now
    with pytest.raises(NotImplementedError, match=r"jaxlib .* in a form that is not known here .*backend='jax'"):
        jit(lambda x: product(jnp.ones((1, 3)), x, backend="numpy"))(draw(N, D))


def test_buffers_of_another_layout_are_refused(monkeypatch):
    program = jit(lambda x: product(jnp.ones((1, 4)), x, backend="numpy"))
    program(draw(N, D))
    monkeypatch.setattr(host, "BUFFER_SIZE", 56)
    with pytest.raises(NotImplementedError, match="buffers of 48 bytes, not 56"):
        program(draw(N, D))


@pytest.mark.parametrize("kept", [True, False])
def test_a_process_ends_while_programs_run(kept):
    run_python(
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
    done = run_python(
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
