"""Transformations of JAX that look a rule up for each operation, and programs that are exported for sizes unknown."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, jet, sparse
from jax.export import symbolic_shape

import tmm_core
from tmm_adapters import jax as model
from tmm_core import TMMConfig

product, correlate = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_correlate
ENGINES = ["numpy", pytest.param("jax", marks=pytest.mark.slow)]  # JAX's own compiles ten times as much


@pytest.fixture(autouse=True)
def _narrow():
    with jax.enable_x64(False):
        yield


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng((seed, *shape)).standard_normal(shape), "float32")


def assert_close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def through_matrix(w, x):
    """Return the product of one head by the matrix written out."""
    return tmm_core.causal_toeplitz(w, x.shape[-2])[0] @ x


# Rules ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_series_of_taylor(engine):
    """Of a product, and of a function of both factors to the second order."""
    w, x, v = draw(1, 3), draw(5, 2), draw(5, 2, seed=1)
    mine = functools.partial(product, backend=engine)
    y, (first, second) = jet.jet(lambda x: mine(w, x), (x,), ((v, 0 * x),))
    assert_close((y, first, second), (mine(w, x), mine(w, v), 0 * y))
    series = ((w + 1, w), (v, x))
    found, expected = (jet.jet(lambda w, x, f=f: jnp.tanh(f(w, x)), (w, x), series) for f in (mine, through_matrix))
    assert_close(found, expected)
    c = functools.partial(correlate, lags=3, backend=engine)
    assert_close(jet.jet(c, (x, v), ((v,), (x,)))[1], [c(v, v) + c(x, x)])


def test_series_of_taylor_of_a_solution():
    w, v, y = draw(1, 2), draw(1, 2, seed=1), draw(3, 1)

    def slope(t):
        return jax.jvp(lambda t: tmm_core.causal_toeplitz_solve(w + t * v, y), (t,), (1.0,))[1]

    series = jet.jet(lambda w: tmm_core.causal_toeplitz_solve(w, y), (w,), ((v, 0 * v),))[1]
    assert_close(series, [slope(0.0), jax.jvp(slope, (0.0,), (1.0,))[1]])


TRANSFORMED = {
    "transpose": lambda f, w, x: jax.linear_transpose(lambda x: f(w, x), x)(x),
    "axis name": lambda f, w, x: jax.vmap(lambda x: jax.lax.psum(f(w, x), "i"), axis_name="i")(x[None]),
    "sequential vmap": lambda f, w, x: jax.vmap(jax.custom_batching.sequential_vmap(lambda x: f(w, x)))(x[None]),
    "checkify": lambda f, w, x: checkify.checkify(f, errors=checkify.all_checks)(w, x)[1],
    "sparsify": lambda f, w, x: sparse.sparsify(f)(w, x),
    **{
        policy: lambda f, w, x, policy=policy: jax.grad(
            jax.checkpoint(lambda w: (f(w, x) ** 2).sum(), policy=getattr(jax.checkpoint_policies, policy))
        )(w)
        for policy in ("dots_saveable", "everything_saveable", "nothing_saveable")
    },
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_other_transformations(name):
    w, x = draw(1, 3), draw(5, 2)
    mine = functools.partial(product, backend="numpy")
    assert_close(TRANSFORMED[name](mine, w, x), TRANSFORMED[name](through_matrix, w, x))


def test_batches_of_none():
    """Over the filter, the signals, the documents."""
    none, x, ids = jnp.zeros((0, 2, 3)), jnp.zeros((4, 2)), jnp.zeros((0, 4), int)
    assert jax.vmap(lambda w: product(w, x))(none).shape == (0, 4, 2)
    assert jax.vmap(jax.grad(lambda w: product(w, x).sum()))(none).shape == (0, 2, 3)
    assert jax.vmap(lambda w, i: product(w, x, segment_ids=i))(none, ids).shape == (0, 4, 2)
    assert jax.vmap(lambda x: correlate(x, x, lags=3, heads=2))(jnp.zeros((0, 4, 2))).shape == (0, 2, 3)


# Export --------------------------------------------------------------------------------------------------------------


def exported(call, shapes, dtypes, **constraints):
    """Return `call` as a program for shapes in symbols."""
    scope = jax.export.SymbolicScope(**constraints)
    kinds = (jax.ShapeDtypeStruct(symbolic_shape(s, scope=scope), d) for s, d in zip(shapes, dtypes, strict=True))
    program = jax.export.export(jax.jit(call))(*kinds)
    assert "tmm_core_host_engine" not in program.mlir_module()
    return program.call


EXPORTED = {
    "product": lambda x: product(draw(2, 70), x, backend="jax"),
    "adjoint": lambda x: product(draw(2, 2, 5), x, adjoint=True, backend="jax"),
    "the default": lambda x: product(draw(2, 5), x),
    "batched": lambda x: jax.vmap(lambda x: product(draw(2, 5), x, backend="jax"))(x),
    "correlation": lambda x: correlate(x, x + 1, lags=70, heads=2, backend="jax"),
    "gradients": lambda x: jax.vjp(lambda w, x: product(w, x, backend="jax"), draw(2, 5), x)[1](x),
    "mixing": lambda x: tmm_core.mix_tokens(draw(2, 5), x, softplus=True, mean=True, backend="jax"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "adjoint" else pytest.mark.slow) for n in EXPORTED])
def test_programs_for_any_batch_and_length(name):
    call = EXPORTED[name]
    program = exported(call, ["b, n, 4"], ["float32"])
    for shape in ((3, 9, 4), (1, 150, 4)):
        assert_close(program(draw(*shape)), call(draw(*shape)))


def test_programs_for_any_batch_at_a_known_length():
    w = draw(200)
    program = exported(lambda x: product(w, x, backend="jax"), ["b, 200, 2"], ["float32"])
    assert_close(program(draw(3, 200, 2)), product(w, draw(3, 200, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("bad", [None, 8, 60])
def test_documents_and_non_finite_values_in_programs_for_any_length(bad):
    w, x = draw(2, 5), draw(2, 70, 4)
    x = x if bad is None else x.at[0, bad, 1].set(jnp.nan)
    w = w if bad != 60 else w.at[0, 2].set(jnp.inf)
    ids = jnp.asarray(np.arange(70)[None] // np.asarray([[9], [33]]), "int32")

    def call(x, ids):
        y = product(w, x, segment_ids=ids, backend="jax")
        return y, correlate(x, x, lags=5, heads=2, segment_ids=ids, backend="jax")

    program = exported(call, ["b, n, 4", "b, n"], ["float32", "int32"])
    assert_close(program(x, ids), call(x, ids))


@pytest.mark.slow
def test_models_for_any_batch_and_length():
    config = TMMConfig(vocab_size=7, max_len=16, d_model=4, n_layers=1, n_heads=2)
    params = model.init(config)

    def call(tokens):
        return model.apply(params, tokens, config, backend="jax")

    program = exported(call, ["b, n"], ["int32"], constraints_str=["n <= 16"])
    for shape in ((2, 5), (1, 16)):
        tokens = jnp.asarray(np.random.default_rng(0).integers(0, 7, shape), "int32")
        assert_close(program(tokens), call(tokens))


def test_a_program_for_any_number_of_lags_is_refused():
    with pytest.raises(ValueError, match="the filter has k lags, a symbol"):
        exported(lambda w, x: product(w, x, backend="jax"), ["k", "n, 1"], ["float32", "float32"])
