"""Arrays of JAX's over several devices, whose number is set before JAX is imported, hence in processes of their own."""

import pytest
from support.processes import run_python
from support.requirements import library_or_skip


@pytest.fixture(autouse=True)
def _required():
    library_or_skip("jax")


def test_arrays_of_many_devices():
    run_python(
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


def test_every_engine_computes_arrays_of_many_devices_outside_of_programs():
    done = run_python(
        """
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax, numpy as np, tmm_core
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
        rng = np.random.default_rng(0)
        w, x = rng.standard_normal((2, 40), "float32"), rng.standard_normal((2, 40, 4), "float32")
        y = tmm_core.causal_toeplitz_matmul(w, x)
        c = tmm_core.causal_toeplitz_correlate(x, y, lags=40, heads=2)
        computed = set()
        with jax.set_mesh(mesh):
            whole = jax.device_put(w, NamedSharding(mesh, P()))
            for over in (P("data"), P(None, None, "data")):
                spread, out = (jax.device_put(a, NamedSharding(mesh, over)) for a in (x, y))
                for backend in ("auto", *tmm_core.available_backends()):
                    if backend == "cupy":
                        continue
                    for call, expected in (
                        (lambda: tmm_core.causal_toeplitz_matmul(whole, spread, backend=backend), y),
                        (lambda: tmm_core.causal_toeplitz_correlate(spread, out, lags=40, heads=2, backend=backend), c),
                    ):
                        np.testing.assert_allclose(call(), expected, atol=1e-3)
                        computed.add(backend)
        print(sorted(computed) == sorted({"auto", *tmm_core.available_backends()} - {"cupy"}))

        def fail(*arrays, **options):
            raise FloatingPointError("out of cheese")

        tmm_core.get_backend("numpy").engine.correlate = fail
        try:
            tmm_core.causal_toeplitz_correlate(spread, out, lags=40, heads=2, backend="numpy")
        except FloatingPointError as error:
            print(error)
        """
    )
    assert done.stdout == "True\nout of cheese\n"


EXPLICIT = """
    import os, sys
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    sys.path.insert(0, "tests")
    import contextlib, jax, numpy as np, tmm_core
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    from support.jax_calls import ARRAYS, CALLS

    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))

    def spread(a, axis):
        "Cut an axis over the two devices, if that is possible."
        cut = [None] * a.ndim
        if a.ndim > axis and a.shape[axis] % 2 == 0:
            cut[axis] = "data"
        return jax.device_put(a, NamedSharding(mesh, P(*cut)))

    def check(names, axis, compute):
        given = jax.tree.map(lambda a: spread(a, axis), ARRAYS)
        for name in names:
            found = jax.tree.leaves(compute(CALLS[name])(given))
            for a, b in zip(found, expected[name], strict=True):
                assert jax.typeof(a).sharding.mesh == mesh.abstract_mesh, name
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=f"{name}, axis {axis}")
        return found

    ARRAYS = jax.tree.map(lambda a: a.astype(jax.dtypes.canonicalize_dtype(a.dtype)), ARRAYS)
"""


def test_functions_take_arrays_on_explicit_axes():
    """How an array is cut is then part of its type, and many of JAX's operations refuse it."""
    run_python(
        EXPLICIT
        + """
    names = ["correlation", "general product", "stream"]
    expected = {name: jax.tree.leaves(CALLS[name](ARRAYS)) for name in names}
    for part in check(names, 0, lambda call: call):
        assert part.sharding.spec[0] == "data"
    for shape in ((0, 5, 4), (2, 0, 4), (2, 5, 0)):
        empty = spread(np.zeros(shape), 0)
        for function in (tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_solve):
            y = function(np.ones((1, 3), "float32") * jax.numpy.ones(1), empty)
            assert np.asarray(y).shape == shape
            assert y.sharding.spec[0] == "data"
    """
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axis", "setting"), [(0, "contextlib.nullcontext()"), *((i, "jax.set_mesh(mesh)") for i in (1, -1))]
)
@pytest.mark.parametrize("compute", ["jax.jit", "lambda call: call", "backward"])
def test_functions_take_arrays_on_explicit_axes_however_they_are_cut(compute, axis, setting):
    """In programs and outside, with a mesh set for all or not, with gradients."""
    run_python(
        EXPLICIT
        + f"""
    def backward(call):
        "Return the derivatives for the signals."
        def derivatives(given):
            function = lambda x: call({{**given, "x": x}})
            return jax.vjp(function, given["x"])[1](function(given["x"]))
        return derivatives

    compute = {compute}
    names = [name for name in CALLS if name != "step of training"]  # makes parameters, which lie on one device
    if compute is backward:
        names = ["product", "adjoint", "correlation", "mixing", "general product", "solution"]
    whole = jax.tree.map(jax.numpy.asarray, ARRAYS)
    expected = {{name: jax.tree.leaves(compute(CALLS[name])(whole)) for name in names}}
    with {setting}:
        check(names, {axis}, compute)
    """
    )
