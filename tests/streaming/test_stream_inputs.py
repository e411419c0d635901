"""Streams and batches of inputs that are legal but rare, or nearly legal: taken for what they are, or refused."""

import copy
import pickle

import array_api_strict as strict
import jax
import numpy as np
import pytest
import torch

import tmm_core
from tmm_core import TMMConfig, lm, mix_tokens
from tmm_core.errors import InputTypeError

WIDTHS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
N = 140
LIBRARIES = {"numpy": np.asarray, "torch": torch.from_numpy, "strict": strict.asarray}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("library", LIBRARIES)
def test_padding_and_rows_may_be_integers_of_every_width(library):
    """Also where the stream is longer than they can count, and by libraries that do not compute with all of them."""
    asarray = LIBRARIES[library]
    w, x, bias = random(2, 4), random(2, N, 4, seed=1), random(2, N, seed=2)
    plan = tmm_core.stream_plan(asarray(w), N, bias=asarray(bias))
    alone = mix_tokens(w, x[1, 3:], bias)
    for width in WIDTHS:
        state = tmm_core.stream_init(plan, (2,), 4)
        padding = asarray(np.asarray([0, 3]).astype(width))
        y, state = tmm_core.stream_prefill(plan, state, asarray(x[:, : N - 1]), padding=padding)
        state = tmm_core.stream_reorder(state, asarray(np.asarray([1, 0]).astype(width)))
        last, state = tmm_core.stream_step(plan, state, asarray(x[::-1, N - 1].copy()))
        assert np.allclose(np.asarray(y)[1, 3:], alone[:-1])
        assert np.allclose(np.asarray(last)[0], alone[-1])


@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_are_chosen_by_indices_of_any_library(library):
    asarray, order = LIBRARIES[library], np.asarray([1, 0, 0])
    plan = tmm_core.stream_plan(asarray(random(2, 4)), N)
    _, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (2,), 4), asarray(random(2, 3, 4)))
    model = lm.stream_plan({name: asarray(p) for name, p in PARAMS.items()}, CONFIG, 8)
    _, text = lm.stream_prefill(model, lm.stream_init(model, 2), asarray(IDS))
    chosen = [
        (
            tmm_core.stream_step(plan, tmm_core.stream_reorder(state, indices), asarray(np.ones((3, 4))))[0],
            lm.stream_step(model, lm.stream_reorder(text, indices), asarray(np.zeros(3, int)))[0],
        )
        for indices in (order, asarray(order))
    ]
    for ours, theirs in zip(*chosen, strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_tensors_that_are_not_what_their_memory_holds(backend):
    w, z = torch.from_numpy(random(2, 4)), torch.from_numpy(random(8) + 1j)[:4]
    plan = tmm_core.stream_plan(w, N, backend=backend)
    negative = z.conj().imag
    assert negative.is_neg()
    for dtype in (torch.float64, torch.float16):
        state = tmm_core.stream_init(plan, (), 4, dtype=dtype)
        y, _ = tmm_core.stream_step(plan, state, negative.to(dtype))
        assert torch.allclose(y, -(w[:, :1].repeat(1, 2).reshape(4)).to(dtype), rtol=1e-3)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_streams_are_where_their_arrays_are_whatever_the_default_device(backend):
    w, x, bias = (torch.from_numpy(random(*shape)) for shape in ((2, 4), (2, N, 4), (2, N)))
    padding, rows = torch.tensor([0, 2]), torch.tensor([1, 0])
    with torch.device("meta"):
        plan = tmm_core.stream_plan(w, N, bias=bias, softplus=True, mean=True, backend=backend)
        _, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (2,), 4), x[:, :3], padding=padding)
        for t in range(3, N):
            y, state = tmm_core.stream_step(plan, state, x[:, t])
            state = tmm_core.stream_copy(state)
        assert tmm_core.stream_reorder(state, rows).position == N
    assert torch.allclose(y[0], mix_tokens(w, x[0], bias, softplus=True, mean=True)[-1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_tensors_without_values_here_are_refused_and_change_nothing(backend):
    w, x = torch.from_numpy(random(2, 4)), torch.from_numpy(random(2, 4))
    plan = tmm_core.stream_plan(w, N, backend=backend)
    state = tmm_core.stream_init(plan, (2,), 4)
    cache = state.cache

    def step(x):
        return tmm_core.stream_step(plan, state, x)[0]

    def prefill(x):
        return tmm_core.stream_prefill(plan, state, x[:, None])[0]

    for take in (step, prefill):
        with pytest.raises(ValueError, match="on one device"):
            take(x.to("meta"))
        with pytest.raises((TypeError, NotImplementedError), match="sparse"):
            take(x.to_sparse())
        with pytest.raises(ValueError, match="no derivatives and no vmap"):
            torch.func.vmap(take)(torch.stack([x, x]))
        with pytest.raises(ValueError, match="no derivatives and no vmap"):
            torch.func.jvp(take, (x,), (x,))
        with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match="no derivatives and no vmap"):
            take(torch.autograd.forward_ad.make_dual(x, x))
        assert state.cache is cache
        assert state.position == 0
        assert not cache.any()
    with torch.autograd.forward_ad.dual_level():
        step(x)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, tmm_core.stream_copy])
def test_streams_are_copied_so_that_they_go_on_apart(library, copied):
    x = LIBRARIES[library](random(2, 4))
    plan = tmm_core.stream_plan(LIBRARIES[library](random(2, 4)), N)
    _, state = tmm_core.stream_step(plan, tmm_core.stream_init(plan, (), 4), x[0, :])
    other = copied(state)
    assert other.plan is plan
    first, _ = tmm_core.stream_step(plan, state, x[1, :])
    tmm_core.stream_step(plan, state, x[1, :])
    second, _ = tmm_core.stream_step(plan, other, x[1, :])
    assert np.array_equal(np.asarray(first), np.asarray(second))


def test_plans_and_streams_stay_where_they_are():
    plan = tmm_core.stream_plan(random(2, 4), N)
    assert copy.deepcopy(plan) is plan
    for kept in (plan, tmm_core.stream_init(plan, (), 4)):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(kept)


def test_what_is_missing_is_named():
    w, x = random(2, 4), random(3, 4)
    plan = tmm_core.stream_plan(w, N)
    state = tmm_core.stream_init(plan, (), 4)
    for name, call in (
        ("w", lambda: tmm_core.stream_plan(None, N)),
        ("x", lambda: tmm_core.stream_step(plan, state, None)),
        ("x", lambda: tmm_core.stream_prefill(plan, state, None)),
        ("indices", lambda: tmm_core.stream_reorder(state, None)),
        ("w", lambda: mix_tokens(None, x)),
        ("x", lambda: mix_tokens(w, None)),
    ):
        with pytest.raises(TypeError, match=f"{name} must be an array, and is None"):
            call()


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_streams_cannot_be_made_of_is_named(library):
    plan = tmm_core.stream_plan(LIBRARIES[library](random(2, 4)), N)
    for shape in (3, None, "2"):
        with pytest.raises(InputTypeError, match="batch_shape must be a tuple of integers"):
            tmm_core.stream_init(plan, shape, 4)
    for dtype in ("nonesuch", object(), 3.0):
        with pytest.raises(InputTypeError, match="dtype must be one of"):
            tmm_core.stream_init(plan, (), 4, dtype=dtype)


CONFIG = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
PARAMS = lm.init_params(CONFIG, np.random.default_rng(0))
IDS, MASK = np.asarray([[1, 2, 3], [4, 1, 0]]), np.asarray([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["bool", *WIDTHS, "float32", "float64"])
def test_masks_may_be_of_every_dtype(library, dtype):
    asarray = LIBRARIES[library]
    params = {name: asarray(p) for name, p in PARAMS.items()}
    expected = lm.forward(PARAMS, IDS, CONFIG, attention_mask=MASK)
    mask = asarray(MASK.astype(dtype))
    logits = np.asarray(lm.forward(params, asarray(IDS), CONFIG, attention_mask=mask))
    assert np.allclose(logits[MASK == 1], expected[MASK == 1], atol=1e-6)
    plan = lm.stream_plan(params, CONFIG, 8)
    last, _ = lm.stream_prefill(plan, lm.stream_init(plan, 2), asarray(IDS), mask)
    assert np.allclose(np.asarray(last), expected[[0, 1], [2, 1]], atol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_masks_and_ids_of_no_positions(library):
    asarray = LIBRARIES[library]
    params = {name: asarray(p) for name, p in PARAMS.items()}
    for shape in ((2, 0), (0, 3), (0, 0)):
        ids = asarray(np.zeros(shape, "int64"))
        assert lm.forward(params, ids, CONFIG, attention_mask=ids == 0, segment_ids=ids).shape == (*shape, 5)


def test_a_loss_of_nothing_is_nan_without_a_warning():
    assert np.isnan(lm.loss(PARAMS, IDS, CONFIG, targets=np.full_like(IDS, lm.IGNORED)))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lm.stream_copy])
def test_streams_of_models_are_copied_so_that_they_go_on_apart(copied):
    plan = lm.stream_plan(PARAMS, CONFIG, 8)
    _, state = lm.stream_prefill(plan, lm.stream_init(plan, 2), IDS)
    other = copied(state)
    expected, _ = lm.stream_step(plan, state, IDS[:, 0])
    logits, _ = lm.stream_step(plan, other, IDS[:, 0])
    assert np.array_equal(logits, expected)


def test_streams_are_copied_and_reordered_inside_programs_of_jax():
    w, x, bias = (
        jax.numpy.asarray(a, "float32") for a in (random(2, 3), random(2, 5, 4, seed=1), random(2, 4, seed=2))
    )
    plan = tmm_core.stream_plan(w, 8, bias=bias)
    padding = jax.numpy.asarray([2, 1])
    _, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (2,), 4), x[:, :4], padding=padding)

    @jax.jit
    def beams(state, x):
        (apart, _), chosen = (
            tmm_core.stream_step(plan, tmm_core.stream_copy(state), x),
            tmm_core.stream_reorder(state, jax.numpy.asarray([1, 0])),
        )
        y, chosen = tmm_core.stream_step(plan, chosen, x[::-1])
        return apart, y, tmm_core.stream_step(plan, chosen, x)[0]

    apart, reordered, beyond = beams(state, x[:, 4])
    expected, _ = tmm_core.stream_step(plan, state, x[:, 4])
    assert np.allclose(apart, expected, atol=1e-6)
    assert np.allclose(reordered, expected[::-1], atol=1e-6)
    assert np.isnan(beyond).all(), "the position bias of the row with the least padding has ended"
