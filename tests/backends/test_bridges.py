"""What every bridge does around any engine: derivatives, batching, tracing. The laws are run by `test_laws.py`."""

import functools

import pytest
from support.bridges import dense
from support.requirements import import_or_skip

import tmm_core

# PyTorch's own, when forward mode is first used
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

product, correlate = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_correlate
N, D, H = 5, 4, 2
IDS = [[0, 0, 1, 1, 1], [0, 1, 1, 2, 2], [0, 0, 0, 0, 0]]
MASKS = [(False, 1, None), (True, 2, None), (False, 2, IDS[0]), (True, 1, IDS[0])]


@pytest.fixture(params=["auto", "numba"])
def engine(request):
    """A library's own engine, and one outside of it."""
    if request.param != "auto":
        import_or_skip(request.param)
    return request.param


@pytest.fixture
def cubed(engine):
    """A function with derivatives of every order in both factors."""
    return lambda w, x: (product(w, x, backend=engine) ** 3).sum()


@pytest.fixture
def plain(bridge):
    """The product by plain operations."""
    return functools.partial(dense, bridge.xp)


@pytest.fixture
def plain_cubed(plain):
    return lambda w, x: (plain(w, x) ** 3).sum()


@pytest.mark.parametrize(("dtype", "backend"), [("float64", "numba"), ("complex128", "numpy")])
@pytest.mark.parametrize(("adjoint", "kernel_size", "ids"), MASKS)
def test_derivatives_of_orders_one_and_two(bridge, dtype, backend, adjoint, kernel_size, ids):
    import_or_skip(backend)
    w, x, g = (bridge.draw(*shape, dtype=dtype) for shape in ((H, kernel_size, 3), (N, D), (1, N, D)))
    ids = None if ids is None else bridge.xp.asarray(ids)

    def multiply(w, x):
        return product(w, x, adjoint=adjoint, segment_ids=ids, backend=backend)

    def relate(x, g):
        return correlate(x, g, lags=3, heads=H, kernel_size=kernel_size, segment_ids=ids, backend=backend)

    bridge.check_derivatives(multiply, (w, x))
    bridge.check_derivatives(relate, (x, g[0]))


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("float64", "float16"), ("complex64", "float64")])
def test_gradients_have_the_dtypes_of_their_inputs(bridge, dtypes):
    w, x = bridge.draw(H, 3, dtype=dtypes[0]), bridge.draw(N, D, dtype=dtypes[1])
    gradients = bridge.transforms.grad(lambda w, x: abs(product(w, x)).sum(), (0, 1))(w, x)
    assert [g.dtype for g in gradients] == [w.dtype, x.dtype]


@pytest.mark.parametrize("transform", ["grad", "jacrev", "jacfwd", "hessian"])
def test_function_transforms(bridge, cubed, plain_cubed, transform):
    w, x, transform = bridge.draw(H, 3), bridge.draw(N, D), getattr(bridge.transforms, transform)
    bridge.assert_close(transform(cubed, (0, 1))(w, x), transform(plain_cubed, (0, 1))(w, x))


def test_tangents(bridge, engine, plain):
    w, x, dw, dx = bridge.draw(H, 3), bridge.draw(N, D), bridge.draw(H, 3, seed=1), bridge.draw(N, D, seed=1)
    found = bridge.transforms.jvp(lambda w, x: product(w, x, backend=engine), (w, x), (dw, dx))[1]
    bridge.assert_close(found, plain(dw, x) + plain(w, dx))


@pytest.mark.parametrize("backend", ["array_api", "numpy", "torch", "jax"])
def test_every_engine_differentiates(bridge, backend, plain_cubed):
    if backend != "array_api":
        import_or_skip(backend)
    w, x = bridge.draw(H, 3), bridge.draw(N, D)
    found = bridge.transforms.grad(lambda w, x: (product(w, x, backend=backend) ** 3).sum(), (0, 1))(w, x)
    bridge.assert_close(found, bridge.transforms.grad(plain_cubed, (0, 1))(w, x))


@pytest.mark.parametrize("kernel_size", [1, 2])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    "batched", [(0, None, None), (None, 1, None), (1, 0, None), (None, 0, 0), (0, 0, 0), (0, None, 0)]
)
def test_vmap_is_a_loop(bridge, batched, adjoint, kernel_size):
    import_or_skip("numba")
    xp = bridge.xp
    wholes = bridge.draw(3, H, kernel_size, 3), bridge.draw(3, 2, N, D), xp.asarray(IDS)

    def multiply(w, x, ids):
        return product(w, x, adjoint=adjoint, segment_ids=ids, backend="numba")

    def relate(w, x, ids):
        return correlate(x, x * w.sum(), lags=3, heads=H, kernel_size=kernel_size, segment_ids=ids, backend="numba")

    for function in (multiply, relate):
        arguments = [a[0] if dim is None else xp.moveaxis(a, 0, dim) for a, dim in zip(wholes, batched, strict=True)]
        rows = [[a[0] if dim is None else a[i] for a, dim in zip(wholes, batched, strict=True)] for i in range(3)]
        expected = xp.stack([function(*row) for row in rows])
        bridge.assert_close(bridge.transforms.vmap(function, batched)(*arguments), expected)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_nested_vmap_and_derivatives_by_example(bridge, engine, plain, cubed, plain_cubed, order):
    vmap = bridge.transforms.vmap
    lags, signals = bridge.draw(3, H, 3), bridge.draw(2, N, D)
    transform = (None, bridge.transforms.grad, bridge.transforms.hessian)[order]

    def nested(function):
        return vmap(lambda w: vmap(lambda x: function(w, x))(signals))(lags)

    if transform is None:
        bridge.assert_close(nested(lambda w, x: product(w, x, backend=engine)), nested(plain))
    else:
        bridge.assert_close(nested(transform(cubed)), nested(transform(plain_cubed)))


@pytest.mark.parametrize("backend", ["numpy", "numba", "array_api"])
def test_unsorted_segments_under_vmap_are_nan(bridge, backend):
    if backend != "array_api":
        import_or_skip(backend)
    ids = bridge.xp.asarray([[0, 0, 1], [1, 0, 0]])
    w, x = bridge.xp.ones((1, 2)), bridge.xp.ones((3, 1))
    y = bridge.transforms.vmap(lambda ids: product(w, x, segment_ids=ids, backend=backend))(ids)
    c = bridge.transforms.vmap(lambda ids: correlate(x, x, lags=2, segment_ids=ids, backend=backend))(ids)
    for result in (y, c):
        assert bridge.xp.isfinite(result[0]).all()
        assert bridge.xp.isnan(result[1]).all()


def test_the_engine_is_chosen_when_traced(bridge, plain, monkeypatch):
    engine, calls = tmm_core.get_backend("numpy").engine, []
    matmul = engine.matmul
    monkeypatch.setattr(engine, "matmul", lambda *a, **k: calls.append(1) or matmul(*a, **k))
    w, x, fast = bridge.draw(H, 3), bridge.draw(N, D), bridge.compile(lambda w, x: product(w, x))
    with tmm_core.use_backend("numpy"):
        bridge.assert_close(fast(w, x), plain(w, x))
    bridge.assert_close(fast(w, x), plain(w, x))
    assert len(calls) == 2
