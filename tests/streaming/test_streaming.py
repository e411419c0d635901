"""Streams of layers: whose arrays they take, who computes, and what compiled programs see of them."""

import threading
from dataclasses import replace

import dask.array
import jax
import ml_dtypes
import numpy as np
import pytest
import torch
import torch._dynamo.testing
from support.strangers import registering

import tmm_core
from tmm_core import mix_tokens
from tmm_core._arrays import properties as arrays
from tmm_core._dispatch import choice
from tmm_core.backend import Backend, LayerStream, tiles
from tmm_core.testing import get_library
from tmm_core.testing.layers import Layer, layers
from tmm_core.testing.streaming import check_stream_non_finite, check_stream_refusals
from tmm_core.testing.streams import split, stream

NUMPY = get_library("numpy")
N = 40


def random(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def steps(plan, state, x):
    outputs = []
    for t in range(x.shape[-2]):
        y, state = tmm_core.stream_step(plan, state, x[..., t, :])
        outputs.append(y)
    return outputs, state


def test_every_pair_of_times_meets_in_one_leaf_or_one_tile():
    n, lags, leaf = 64, 64, 4
    met = np.zeros((n, n), int)
    for u in range(1, n + 1):
        begin = (u - 1) // leaf * leaf
        met[begin:u, u - 1] += 1  # the direct sum of the step before u
        if u % leaf == 0:
            k = tiles.tile_size(u, lags)
            met[u - k : u, u : u + k] += 1
    assert np.array_equal(met, np.triu(np.ones((n, n), int)))


def test_tiles_are_no_larger_than_lags_reach():
    assert [tiles.tile_size(64, lags) for lags in (1, 2, 3, 4, 5, 64, 65, 1000)] == [1, 2, 4, 4, 8, 64, 64, 64]


@pytest.mark.parametrize("backend", ["array_api", "numba"])
def test_tokens_of_any_strides_are_taken_and_not_kept(backend):
    w, x = random(2, 2, N), random(N, 3, 8)
    plan = tmm_core.stream_plan(w, N, backend=backend)
    expected, _ = steps(plan, tmm_core.stream_init(plan, (3,), 8), np.swapaxes(x, 0, 1))
    wide = np.zeros((3, 16), "float32")
    state = tmm_core.stream_init(plan, (3,), 8)
    for t in range(N):
        token = (x[t], wide[:, ::2], x[t][::-1][::-1], np.asfortranarray(x[t]), x[t].astype(">f4"))[t % 5]
        token[...] = x[t]
        y, state = tmm_core.stream_step(plan, state, token)
        if token is not x[t]:
            token[...] = np.nan
        assert np.array_equal(y, expected[t])


@pytest.mark.parametrize("law", [check_stream_non_finite, check_stream_refusals])
@pytest.mark.parametrize("backend", ["array_api", "numba"])
def test_values_are_looked_at_where_a_device_holds_them_too(monkeypatch, backend, law):
    monkeypatch.setattr(arrays, "_valued", set())
    monkeypatch.setattr(arrays, "_is_queued", lambda array: True)
    assert not arrays.values_known(np.ones(1))
    law(NUMPY, backend)


@pytest.mark.parametrize("backend", ["array_api", "numba"])
def test_batches_may_be_empty(backend):
    plan = tmm_core.stream_plan(random(2, N), N, bias=random(2, N), mean=True, softplus=True, backend=backend)
    state = tmm_core.stream_init(plan, (0, 2), 4)
    y, state = tmm_core.stream_prefill(plan, state, random(0, 2, 3, 4), padding=np.zeros((0, 2), int))
    assert y.shape == (0, 2, 3, 4)
    y, state = tmm_core.stream_step(plan, state, random(0, 2, 4))
    assert y.shape == (0, 2, 4)
    assert state.position == 4


def test_a_plan_is_a_snapshot_of_the_filters():
    layer = layers("float32", N)["kernel"]
    expected, bound = layer.expected()
    w, x, bias = layer.arrays(NUMPY)
    plan = tmm_core.stream_plan(w, N, bias=bias)
    w[...] = 7
    bias[...] = 7
    y, _ = stream(NUMPY, plan, layer.begin(plan, NUMPY), x, split(N, 3))
    assert np.all(np.abs(y - expected) <= bound)


def test_the_choice_of_a_plan_stays():
    """Steps of other engines differ in their last bits."""
    w, x = random(1, N), random(N, 2)

    def outputs(made_by, stepped_by):
        with tmm_core.use_backend(made_by):
            plan = tmm_core.stream_plan(w, N)
        with tmm_core.use_backend(stepped_by):
            return np.stack(steps(plan, tmm_core.stream_init(plan, (), 2), x)[0])

    defined, by_numba = outputs("array_api", "array_api"), outputs("numba", "numba")
    assert not np.array_equal(defined, by_numba)
    assert np.array_equal(outputs("array_api", "numba"), defined)
    assert np.array_equal(outputs("numba", "array_api"), by_numba)
    with pytest.raises(LookupError, match="unknown backend"):
        tmm_core.stream_plan(w, N, backend="other")
    with pytest.raises(LookupError, match="unknown backend"):
        tmm_core.stream_plan(w, N, bias=w + 1j, backend="other")


@pytest.fixture
def register(tmp_path, monkeypatch):
    yield from registering(tmp_path, monkeypatch)


class Like:
    """An engine that computes as that of another backend."""

    def __init__(self, name, backend):
        self.name, self.engine = name, tmm_core.get_backend(backend).engine

    def __getattr__(self, name):
        return getattr(self.engine, name)


class Products(Like):
    """An engine that computes products and nothing else."""

    def __getattr__(self, name):
        if name == "stream":
            raise AttributeError(name)
        return super().__getattr__(name)


class Doubling(Like):
    """An engine whose streams can be told from all others: they give twice the outputs."""

    def stream(self, layer):
        return self.engine.stream(replace(layer, lags=2 * layer.lags))


@pytest.mark.parametrize(
    ("library", "backend"),
    [
        ("numpy", "numpy"),
        ("numpy", "torch"),
        ("array_api_strict", "array_api"),
        ("torch", "torch"),
        ("torch", "numba"),
        ("jax", "jax"),
    ],
)
def test_an_engine_streams_in_its_own_way_the_arrays_of_every_library(register, library, backend):
    register("twice", Backend("twice", (), "everything", lambda: Doubling("twice", backend)))
    layer = layers("float32", N)["depthwise, three lags"]
    library = get_library(library)
    w, x, _ = layer.arrays(library)
    plan = tmm_core.stream_plan(w, N, backend="twice")
    outputs, _ = stream(library, plan, layer.begin(plan, library), x, split(N, 7))
    expected = 2 * tmm_core.mix_tokens(layer.w, layer.x)
    assert np.allclose(outputs, expected, atol=1e-4)


def test_an_engine_of_products_streams_where_a_bridge_needs_no_more(register):
    register("products", Backend("products", (), "products", lambda: Products("products", "numpy")))
    w, x = random(1, N), random(N, 2)
    plan = tmm_core.stream_plan(jax.numpy.asarray(w), N, backend="products")
    y, _ = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (), 2), jax.numpy.asarray(x))
    assert np.allclose(y, tmm_core.mix_tokens(w, x), atol=1e-4)


def test_streams_that_programs_of_jax_cannot_call_are_refused(register):
    class Plain(Like):
        def stream(self, layer):
            return type("Own", (LayerStream,), {})(layer)

    register("plain", Backend("plain", (), "everything", lambda: Plain("plain", "jax")))
    with pytest.raises(ValueError, match="backend 'plain' cannot stream jax arrays: its Own is no FunctionalStream"):
        tmm_core.stream_plan(jax.numpy.ones((1, N)), N, backend="plain")


def test_an_engine_that_cannot_stream_is_refused_where_it_is_asked_for_and_else_passed_over(register):
    w, x = random(1, N), random(N, 2)
    register("products", Backend("products", (), "p", lambda: Products("products", "array_api"), ranks={"numpy": 100}))
    with pytest.raises(
        ValueError, match=r"backend 'products' cannot stream numpy arrays.*choose 'auto' or 'array_api'"
    ):
        tmm_core.stream_plan(w, N, backend="products")
    plan = tmm_core.stream_plan(w, N, backend="auto")
    assert np.allclose(steps(plan, tmm_core.stream_init(plan, (), 2), x)[0], tmm_core.mix_tokens(w, x), atol=1e-4)
    lazy = dask.array.from_array(w)
    with pytest.raises(ValueError, match="backend 'numba' cannot stream dask arrays"):
        tmm_core.stream_plan(lazy, N, backend="numba")


def test_what_an_engine_cannot_serve_is_refused_where_it_is_asked_for_and_else_defined():
    w, x = random(1, N), random(N, 2) + 1j
    plan = tmm_core.stream_plan(w, N, backend="numba")
    with pytest.raises(ValueError, match=r"backend 'numba' cannot serve this call: .* real numbers"):
        tmm_core.stream_init(plan, (), 2, dtype=np.complex64)
    plan = tmm_core.stream_plan(w, N, backend="auto")
    outputs, _ = steps(plan, tmm_core.stream_init(plan, (), 2, dtype=np.complex64), x.astype("complex64"))
    assert np.allclose(outputs, tmm_core.mix_tokens(w, x.astype("complex64")), atol=1e-4)


@pytest.mark.parametrize("backend", ["array_api", "numba", "torch"])
def test_sums_of_zero_and_sums_beyond_the_range_warn_of_nothing(backend):
    """As products of such values do not; warnings are errors here."""
    w, x, bias = np.asarray([[1.0, -1.0, 1.0]]), np.ones((1, 5, 2)), np.full((1, 5), 1.7e308)
    for tokens, options in ((x, {"mean": True}), (1e308 * x, {"bias": bias})):
        plan = tmm_core.stream_plan(w, 5, backend=backend, **options)
        added = (options["bias"],) if "bias" in options else ()
        expected = np.isfinite(mix_tokens(w, tokens, *added, mean=not added, backend=backend))
        assert 0 < expected.sum() < expected.size
        found, _ = steps(plan, tmm_core.stream_init(plan, (1,), 2), tokens)
        assert np.array_equal(np.isfinite(np.stack(found, axis=1)), expected)
        begun, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (1,), 2), tokens[:, :2])
        resumed, _ = tmm_core.stream_prefill(plan, state, tokens[:, 2:])
        assert np.array_equal(np.isfinite(np.concatenate([begun, resumed], axis=1)), expected)
        padding = np.asarray([1])
        padded, _ = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (1,), 2), tokens, padding=padding)
        assert np.array_equal(np.isfinite(padded[:, 1:]), expected[:, :4])


def test_real_tokens_and_complex_filters_do_not_go_together():
    w = random(1, N) + 1j
    with pytest.raises(TypeError, match="must be real where x is"):
        tmm_core.stream_init(tmm_core.stream_plan(w, N), (), 2, dtype=np.float64)
    with pytest.raises(TypeError, match="expects real lags"):
        tmm_core.stream_plan(w, N, softplus=True)
    with pytest.raises(ValueError, match="one row of lags a head"):
        tmm_core.stream_plan(random(1, 2, N), N, mean=True)


@pytest.mark.parametrize("half", ["float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("backend", ["array_api", "numba"])
def test_halves_are_summed_in_float32_beside_filters_of_any_width(half, backend):
    x = random(N, 4).astype(half)
    for dtype in ("float32", "float64", half):
        w, bias = random(2, N).astype(dtype), random(2, N).astype(dtype)
        plan = tmm_core.stream_plan(w, N, bias=bias, backend=backend)
        state = tmm_core.stream_init(plan, (), 4, dtype=half)
        assert state.cache.dtype == np.float32
        outputs, _ = steps(plan, state, x)
        exact = tmm_core.mix_tokens(w.astype(float), x.astype(float), bias.astype(float))
        rounded = np.abs(np.stack(outputs).astype(float) - exact)
        eps = float(ml_dtypes.finfo(half).eps)
        assert outputs[0].dtype == half
        assert np.all(rounded <= eps / 2 * np.abs(exact) + 1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("backend", ["array_api", "numba"])
def test_threads_may_step_streams_of_one_plan(backend):
    layer = Layer(random(2, 200), random(200, 16), random(2, 200))
    plan = layer.plan(NUMPY, backend, leaf=None)
    x = layer.arrays(NUMPY)[1]
    expected, _ = stream(NUMPY, plan, layer.begin(plan, NUMPY), x, split(200, 0))
    found = {}

    def run(name):
        found[name] = stream(NUMPY, plan, layer.begin(plan, NUMPY), x, split(200, 0))[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[i], expected) for i in range(4))


# --- Torch ------------------------------------------------------------------------------------------------------------


def test_tensors_that_require_gradients_are_refused_and_parameters_are_copied():
    w, bias = (torch.nn.Parameter(torch.randn(2, N)) for _ in range(2))
    x = torch.randn(N, 4)
    plan = tmm_core.stream_plan(w, N, bias=bias)
    with torch.no_grad():
        expected = tmm_core.mix_tokens(w, x, bias)
        w.zero_()
    state = tmm_core.stream_init(plan, (), 4)
    for call in (lambda x: tmm_core.stream_prefill(plan, state, x), lambda x: tmm_core.stream_step(plan, state, x[0])):
        with pytest.raises(ValueError, match=r"x requires one: call it inside torch.no_grad\(\)"):
            call(x.clone().requires_grad_())
    with torch.no_grad():
        y, state = tmm_core.stream_prefill(plan, state, x[:7].clone().requires_grad_())
        outputs, _ = steps(plan, state, x[7:].clone().requires_grad_())
    found = torch.cat([y, torch.stack(outputs)])
    assert not found.requires_grad
    assert torch.allclose(found, expected, atol=1e-5)


def test_tensors_of_any_strides_are_taken_and_not_kept():
    w, x = torch.randn(2, N), torch.randn(N, 3, 8)
    plan = tmm_core.stream_plan(w, N, backend="numba")
    expected, _ = steps(plan, tmm_core.stream_init(plan, (3,), 8), x.movedim(0, 1))
    state, wide = tmm_core.stream_init(plan, (3,), 8), torch.zeros(3, 16)
    for t in range(N):
        token = (wide[:, ::2], x[t].t().contiguous().t())[t % 2]
        token[...] = x[t]
        y, state = tmm_core.stream_step(plan, state, token)
        token[...] = torch.nan
        assert torch.equal(y, expected[t])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["numba", "array_api"])
def test_streams_made_in_inference_mode_go_on_outside_of_it(backend, dtype):
    w, x = torch.randn(2, N), torch.randn(N, 4).to(dtype)
    with torch.inference_mode():
        plan = tmm_core.stream_plan(w, N, backend=backend)
        y, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (), 4, dtype=dtype), x[:5])
    outputs, state = steps(plan, state, x[5:20])
    with torch.inference_mode():
        more, _ = steps(plan, state, x[20:])
    found = torch.cat([y, torch.stack(outputs), torch.stack(more)])
    assert torch.allclose(
        found.float(), tmm_core.mix_tokens(w, x).float(), atol=1e-5 if dtype == torch.float32 else 0.1
    )


@pytest.fixture
def compiled():
    """A compiled step, and how often it has been compiled."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def layer(plan, state, x):
        y, state = tmm_core.stream_step(plan, state, 2 * x)
        return y + 1, state

    yield torch.compile(layer, fullgraph=True, backend=counter), counter
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["numba", "array_api"])
def test_a_compiled_step_is_compiled_once_for_all_tokens_texts_and_plans(compiled, backend):
    step, counter = compiled
    for prompt in (5, 6, 0, 11):
        w, bias = torch.randn(2, N), torch.randn(2, N)
        x = torch.randn(2, N, 8)
        plan = tmm_core.stream_plan(w, N, bias=bias, backend=backend)
        state = tmm_core.stream_init(plan, (2,), 8)
        outputs = []
        if prompt:
            y, state = tmm_core.stream_prefill(plan, state, 2 * x[:, :prompt])
            outputs.append(y + 1)
        for t in range(prompt, N):
            y, state = step(plan, state, x[:, t])
            outputs.append(y[:, None])
        assert torch.allclose(torch.cat(outputs, 1), tmm_core.mix_tokens(w, 2 * x, bias) + 1, atol=1e-4)
        assert state.position == N
        with pytest.raises(ValueError, match="the stream is full"):
            step(plan, state, x[:, 0])
        assert counter.frame_count == 1


def test_compiled_and_other_steps_go_on_with_each_other(compiled):
    step, _ = compiled
    layer = layers("float32", N)["mean"]
    w, x, bias = (torch.from_numpy(a) for a in layer.arrays(NUMPY))
    plan = tmm_core.stream_plan(w, N, bias=bias, softplus=True, mean=True, backend="numba")
    padding = torch.tensor([0, 2, 4])
    state = tmm_core.stream_init(plan, (3,), 4)
    alone = tmm_core.stream_init(plan, (3,), 4)
    _, state = tmm_core.stream_prefill(plan, state, x[:, :6], padding=padding)
    _, alone = tmm_core.stream_prefill(plan, alone, x[:, :6], padding=padding)
    for t in range(6, N):
        expected, alone = tmm_core.stream_step(plan, alone, x[:, t])
        if t % 3 == 0:
            y, state = step(plan, state, x[:, t] / 2)
            y = y - 1
        else:
            y, state = tmm_core.stream_step(plan, state, x[:, t])
        if t == 20:
            state = tmm_core.stream_copy(state)
        assert state.position == alone.position == t + 1
        assert torch.allclose(y, expected, atol=1e-6)


def test_prompts_are_not_compiled():
    plan = tmm_core.stream_plan(torch.randn(1, N), N)
    state = tmm_core.stream_init(plan, (), 2)
    prefill = torch.compile(lambda x: tmm_core.stream_prefill(plan, state, x)[0], fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="take prompts uncompiled"):
        prefill(torch.randn(3, 2))
    assert state.position == 0


class Elsewhere:
    """An engine whose memory is not NumPy's, as far as it tells."""

    def __init__(self):
        self.engine = tmm_core.get_backend("numba").engine

    def owns(self, array):
        return False

    def __getattr__(self, name):
        return getattr(self.engine, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_go_to_engines_of_other_memory_and_come_back(monkeypatch, dtype):
    monkeypatch.setattr(choice, "choose_streamer", lambda *_: Elsewhere())
    layer = layers("float32", N)["mean"]
    w, x, bias = (torch.from_numpy(a).to(dtype) for a in layer.arrays(NUMPY))
    plan = tmm_core.stream_plan(w, N, bias=bias, softplus=True, mean=True)
    state = tmm_core.stream_init(plan, (3,), 4, dtype=dtype)
    assert isinstance(state.cache, np.ndarray)
    with pytest.raises(ValueError, match=r"x requires one: call it inside torch.no_grad\(\)"):
        tmm_core.stream_step(plan, state, x[:, 0].clone().requires_grad_())
    y, state = tmm_core.stream_prefill(plan, state, x[:, :6], padding=torch.zeros(3, dtype=torch.int32))
    state = tmm_core.stream_reorder(state, torch.tensor([2, 1, 0]))
    outputs, _ = steps(plan, state, x[:, 6:].flip(0))
    found = torch.cat([y, torch.stack(outputs, 1).flip(0)], 1)
    expected = tmm_core.mix_tokens(w.float(), x.float(), bias.float(), softplus=True, mean=True)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), expected, atol=1e-5 if dtype == torch.float32 else 0.05)


# --- JAX --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [None, "bfloat16", "complex64"])
def test_a_plan_keeps_nothing_of_the_programs_that_use_it(dtype):
    w, x = jax.numpy.asarray(random(2, 3)), jax.numpy.asarray(random(2, 4, 4)).astype(dtype or "float32")
    plan = tmm_core.stream_plan(w, N)

    def first(x):
        return tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (2,), 4, dtype=dtype), x)

    inside, _ = jax.jit(lambda x: (first(x)[0], 0))(x)
    y, state = first(x)
    assert np.array_equal(inside, y)
    y, _ = tmm_core.stream_step(plan, state, x[:, 0])
    assert np.isfinite(y).all()


def test_a_lag_that_a_program_does_not_know_to_be_nan_counts_from_the_document_too():
    def prefill(w):
        plan = tmm_core.stream_plan(w, 5, backend="jax")
        state = tmm_core.stream_init(plan, (2,), 1)
        return tmm_core.stream_prefill(plan, state, jax.numpy.ones((2, 5, 1)), padding=jax.numpy.asarray([0, 2]))[0]

    y = jax.jit(prefill)(jax.numpy.asarray([1, np.nan]))
    assert np.isnan(y[..., 0]).tolist() == [[False, True, True, True, True], [False, False, False, True, True]]


def test_padding_needs_a_position_that_is_known():
    plan = tmm_core.stream_plan(jax.numpy.ones(3), 8, backend="jax")
    x, padding = jax.numpy.ones((1, 2, 4)), jax.numpy.ones(1, int)

    def prefill(state):
        return tmm_core.stream_prefill(plan, state, x, padding=padding)[0]

    with pytest.raises(ValueError, match="whether one has come is not known in traced code"):
        jax.jit(prefill)(tmm_core.stream_init(plan, (1,), 4))
    y = jax.jit(lambda: prefill(tmm_core.stream_init(plan, (1,), 4)))()
    assert y[0, :, 0].tolist() == [0, 1]


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_steps_and_prompts_go_on_with_each_other_whatever_order_products_are_in(name, heads, rows):
    library = get_library(name)
    w, x = random(heads, 25), random(rows, 37, 2, seed=1)
    plan = tmm_core.stream_plan(library.asarray(w, "float32"), 37)
    for chunks in ([12, 0, 0, 5, 12, 5, 0], [0, 0, 0, 30, 0, 0, 0, 0], [8, 7, 0, 20, 0]):
        y, _ = stream(library, plan, tmm_core.stream_init(plan, (rows,), 2), library.asarray(x, "float32"), chunks)
        np.testing.assert_allclose(y, mix_tokens(w, x[:, : y.shape[1]], backend="array_api"), rtol=1e-4, atol=1e-4)
