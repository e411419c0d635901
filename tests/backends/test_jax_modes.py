"""Every operation on JAX arrays is the same for constants of a traced function, and in JAX's strict modes."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.jax_calls import ARRAYS, CALLS, CONFIG

import tmm_core
from tmm_adapters import jax as model

arrays = functools.cache(lambda: jax.tree.map(lambda a: jnp.asarray(a, jax.dtypes.canonicalize_dtype(a.dtype)), ARRAYS))
eager = functools.cache(lambda name: CALLS[name](arrays()))
SLOW = ("inverse", "the core's loss", "general product", "infinities", "leaks")
"""What compiles much, and adds little to the others."""


def slow_or_not(names):
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


@pytest.fixture(autouse=True)
def _narrow():
    """Compute in 32 bits, as JAX does unless told otherwise."""
    with jax.enable_x64(False):
        yield


def assert_same(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# Constants -----------------------------------------------------------------------------------------------------------

TRACED = {
    "jit": lambda call: jax.jit(lambda _: call())(0.0),
    "grad": lambda call: jax.value_and_grad(lambda one: (one, call()), has_aux=True)(1.0)[0][1],
    "vmap": lambda call: jax.tree.map(lambda y: y[0], jax.vmap(lambda _: call())(jnp.zeros(1))),
    "scan": lambda call: jax.tree.map(lambda y: y[0], jax.lax.scan(lambda c, _: (c, call()), 0.0, jnp.zeros(1))[1]),
    "cond": lambda call: jax.lax.cond(jnp.zeros(()) == 0, call, call),
    "checkpoint": lambda call: jax.checkpoint(lambda _: call())(0.0),
}


@pytest.mark.parametrize("name", slow_or_not(name for name in CALLS if name != "step of training"))
def test_operations_on_constants_are_traced(name):
    constants, expected = arrays(), eager(name)
    shapes = jax.eval_shape(lambda _: CALLS[name](constants), 0.0)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), shapes) == jax.tree.map(lambda a: (a.shape, a.dtype), expected)


@pytest.mark.parametrize("transformation", ["jit", *(pytest.param(t, marks=pytest.mark.slow) for t in TRACED)])
@pytest.mark.parametrize("name", ["adjoint", "mixing of documents", "solution", "logits"])
def test_constants_give_what_they_give_outside(name, transformation):
    constants, expected = arrays(), eager(name)
    assert_same(TRACED[transformation](lambda: CALLS[name](constants)), expected)


def test_wrong_constants_give_nan_or_are_refused():
    a, back, no_inverse = arrays(), arrays()["ids"][:, ::-1], arrays()["w"].at[:, 0].set(0)
    hole = a["mask"] * jnp.asarray([1, 1, 0, 1, 1])
    product, solve = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_solve
    assert np.isnan(jax.jit(lambda x: product(a["w"], x, segment_ids=back))(a["x"])).all()
    assert np.isnan(jax.jit(lambda y: solve(no_inverse, y))(a["x"])).all()
    with pytest.raises(ValueError, match="attention_mask has a hole"):
        jax.eval_shape(lambda p: model.apply(p, a["tokens"], CONFIG, attention_mask=hole), a["params"])


# Modes ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _strict_promotion():
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


MODES = {
    "promotion": _strict_promotion,
    "transfers": lambda: jax.transfer_guard("disallow"),
    "NaN": lambda: jax.debug_nans(True),
    "infinities": lambda: jax.debug_infs(True),
    "leaks": lambda: jax.checking_leaks(),
}


@pytest.mark.parametrize("mode", slow_or_not(MODES))
@pytest.mark.parametrize("name", slow_or_not(CALLS))
def test_strict_modes_change_nothing(name, mode):
    given, expected = arrays(), eager(name)
    with MODES[mode]():
        found = CALLS[name](given)
    assert_same(found, expected)
