"""The JAX model one token at a time: what programs are compiled, positions that they do not know, precisions, seeds."""

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.model_variants import VARIANTS, random_ids, random_params
from support.requirements import library_or_skip

from tmm_adapters import jax as model
from tmm_adapters.generation import Sampling
from tmm_adapters.jax import generation as jax_generation
from tmm_adapters.jax import sampling as jax_sampling
from tmm_adapters.torch import LanguageModel
from tmm_backends._jax import streaming as steps
from tmm_core import TMMConfig, lm, mix_tokens, streaming
from tmm_core.testing.streaming import (
    check_padding,
    check_stream_memory,
    check_stream_non_finite,
    check_stream_refusals,
)

ONE = {name: dataclasses.replace(config, n_layers=1) for name, config in VARIANTS.items()}
FREE = dataclasses.replace(ONE["heads"], position_bias=False)


@pytest.fixture(autouse=True)
def double():
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        yield


def on_jax(config: TMMConfig) -> tuple[dict[str, Any], Any]:
    params = random_params(config)
    return params, model.from_params(params, config)


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_a_program_of_ones_own_takes_any_position():
    params, ours = on_jax(FREE)
    ids = random_ids(FREE, (1, 9))
    plan = model.stream_plan(ours, FREE, 8)
    _, state = model.stream_prefill(plan, model.stream_init(plan, 1), ids[:, :2])

    @jax.jit
    def run(plan: Any, state: Any, tokens: Any) -> Any:
        def step(state: Any, token: Any) -> Any:
            logits, state = model.stream_step(plan, state, token)
            return state, logits

        return jax.lax.scan(step, jax.tree.map(jnp.asarray, state), tokens)

    begun = jax.tree.map(jnp.asarray, state)
    state, logits = run(plan, begun, jnp.asarray(ids[:, 2:].T))
    assert np.asarray(logits[:6, 0]) == pytest.approx(lm.forward(params, ids, FREE)[0, 2:8], abs=1e-12)
    assert np.isnan(logits[6]).all()  # beyond the capacity
    assert int(state.position) == 9
    another = copy.copy(plan)
    another.number = jnp.asarray(plan.number + 1)
    assert np.isnan(run(another, begun, jnp.asarray(ids[:, 2:].T))[1]).all()  # the state is another plan's
    with pytest.raises(ValueError, match="belongs to another plan"):
        model.stream_step(another, state, ids[:, 0])


@pytest.mark.parametrize("leaf", [2, None])
def test_layers_stream_where_positions_are_traced(leaf: int | None):
    """Tiles of every size, and a prompt that follows at a position that the program does not know."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((2, 2, 9)), rng.standard_normal((1, 21, 4))
    plan = streaming.stream_plan(jnp.asarray(w), 20, backend="numba", leaf=leaf)
    expected = np.asarray(mix_tokens(w, x))
    advance = jax.jit(lambda state, x: streaming.stream_step(plan, state, x))
    follow = jax.jit(lambda state, x: streaming.stream_prefill(plan, state, x))
    state, found = streaming.stream_init(plan, (1,), 4), []
    for t in range(11):
        y, state = advance(state, jnp.asarray(x[:, t]))
        found.append(y)
    y, state = follow(state, jnp.asarray(x[:, 11:14]))
    found += [y[:, i] for i in range(3)]
    for t in range(14, 21):
        y, state = advance(state, jnp.asarray(x[:, t]))
        found.append(y)
    assert np.stack(found, axis=1)[:, :20] == pytest.approx(expected[:, :20], abs=1e-12)
    assert np.isnan(found[20]).all()
    assert advance._cache_size() <= 3  # integers, then arrays; and the cache after the prompt


def test_steps_compile_nothing_after_the_first_tiles():
    """The last leaf is cut short by the cache's end."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((1, 40)), rng.standard_normal((1, 33, 2))
    plan = streaming.stream_plan(jnp.asarray(w), 33, backend="numba", leaf=8)
    state = streaming.stream_init(plan, (1,), 2)
    counts, found = [], []
    for t in range(33):
        cache = state.cache
        y, state = streaming.stream_step(plan, state, jnp.asarray(x[:, t]))
        assert cache.is_deleted()  # it was written in place
        counts.append(steps._advance._cache_size() + steps._add_tile._cache_size())
        found.append(y)
    assert counts[7] - counts[6] == 1  # the tile of 8, and so on
    assert counts[32] == counts[31] == counts[16] + 1 == counts[15] + 1
    assert np.stack(found, axis=1) == pytest.approx(np.asarray(mix_tokens(w, x)), abs=1e-12)


def test_an_input_reaches_no_more_than_the_lags_reach():
    plan = streaming.stream_plan(jnp.ones((1, 2)), 9, backend="numba", leaf=8)
    state, found = streaming.stream_init(plan, (), 1), []
    for t in range(5):
        y, state = streaming.stream_step(plan, state, jnp.asarray([jnp.inf if t == 1 else 1.0]))
        found.append(float(y[0]))
    assert found == pytest.approx([1, np.nan, np.nan, 2, 2], nan_ok=True)


@pytest.mark.parametrize(
    "law",
    [
        check_padding,
        check_stream_memory,
        pytest.param(check_stream_non_finite, marks=pytest.mark.slow),
        pytest.param(check_stream_refusals, marks=pytest.mark.slow),
    ],
)
def test_laws_of_streaming(law: Any):
    """Some of them, in float32: every length and dtype is a program of its own."""
    law(dataclasses.replace(library_or_skip("jax"), dtypes=("float32",)), "numba")


# --- Generation -------------------------------------------------------------------------------------------------------


def test_programs_serve_every_length_up_to_a_power_of_two():
    """Over several leaves, each row from its own padding: texts are as in Torch, and others need no other program."""
    params, ours = on_jax(FREE)
    ids, mask = random_ids(FREE, (2, 9)), np.ones((2, 9), int)
    mask[0, :4] = 0
    theirs = LanguageModel.from_params(params, FREE)
    expected = theirs.generate(torch.from_numpy(ids), 200, temperature=0, attention_mask=torch.from_numpy(mask)).numpy()
    found = model.generate(ours, ids, FREE, 200, temperature=0, attention_mask=mask)
    assert np.array_equal(found, expected)
    compiled = jax_generation._go_on._cache_size()
    ids, mask = (np.pad(array, ((0, 0), (1, 2))) for array in (ids, mask))  # padding at both ends
    fewer = model.generate(ours, ids, FREE, 150, temperature=0, attention_mask=mask)
    assert np.array_equal(fewer[:, 12:], expected[:, 9:159])
    assert jax_generation._go_on._cache_size() == compiled


def live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def test_caches_are_renewed_and_take_no_memory_for_tokens_that_do_not_come(monkeypatch: pytest.MonkeyPatch):
    """By one program however often, and each token is the likeliest that the whole text before it gives."""
    monkeypatch.setattr("tmm_core.lm.plans.WINDOW", 128)
    config = dataclasses.replace(FREE, max_len=70, softplus=True, mean=True)  # lags of more than one leaf, of two
    params = random_params(config)
    params = {name: 30 * p if name.endswith("out_proj.weight") else p for name, p in params.items()}  # the past counts
    ours = model.from_params(params, config)
    ids, mask = random_ids(config, (2, 9)), np.ones((2, 9), int)
    mask[0, :4] = 0
    before = live_bytes()
    tokens = jax_generation.new_tokens(ours, ids, config, 10**12, Sampling(0), attention_mask=mask)
    taken = [next(tokens) for _ in range(4)]  # the first token, the rest of the first leaf, two leaves
    held, compiled = live_bytes(), steps._close._cache_size()
    assert held - before < 1 << 18
    later = [next(tokens) for _ in range(3)]
    assert live_bytes() <= held + sum(new.nbytes for new in later)
    assert steps._close._cache_size() == compiled
    text = np.concatenate([ids, *taken, *later], axis=1)
    logits = lm.forward(
        params, text, config, attention_mask=np.pad(mask, ((0, 0), (0, text.shape[1] - 9)), constant_values=1)
    )
    assert np.array_equal(text[:, 9:], logits[:, 8:-1].argmax(-1))


def test_the_first_token_waits_for_no_other_and_one_program_makes_all():
    """Of parameters that were put on a device, which programs are compiled for."""
    config = dataclasses.replace(FREE, d_model=8)
    ours = jax.device_put(model.init(config), jax.devices()[0])
    before = jax_generation._go_on._cache_size()
    chunks = list(jax_generation.new_tokens(ours, random_ids(config, (2, 9)), config, 12, at_a_time=8))
    assert [new.shape for new in chunks] == [(2, 1), (2, 8), (2, 3)]
    assert jax_generation._go_on._cache_size() == before + 1


def test_no_part_of_a_seed_is_left_out():
    config = dataclasses.replace(FREE, n_layers=0)
    _, ours = on_jax(config)
    ids = random_ids(config, (2, 9))
    texts = [model.generate(ours, ids, config, 40, temperature=3.0, seed=s) for s in (3, 3 + (1 << 32), 3 + (1 << 63))]
    assert not np.array_equal(texts[0], texts[1])
    assert not np.array_equal(texts[0], texts[2])
    for seed in (-1, 1 << 64):
        with pytest.raises(ValueError, match=rf"seed must be at least 0 and less than 2\*\*64, got {seed}"):
            model.generate(ours, ids, config, 2, seed=seed)


def test_bfloat16_streams_as_it_is_applied():
    config = ONE["heads"]
    with jax.enable_x64(False):
        ours, ids = model.from_params(random_params(config, np.float32), config), random_ids(config, (2, 6))
        whole = jax.jit(lambda params: model.apply(params, ids, config, precision="bfloat16"))
        expected = whole(ours).astype("float32")
        plan = model.stream_plan(ours, config, 6, precision="bfloat16")
        before, state = model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :5])
        after, state = model.stream_step(plan, state, ids[:, 5])
    assert before.dtype == after.dtype == jnp.bfloat16
    assert {cache.dtype for cache in state.caches.values()} == {jnp.dtype("float32")}
    error = np.abs(np.stack([before, after], axis=1).astype("float32") - expected[:, 4:]).max()
    assert error < 2 * 2.0**-7 * np.abs(expected[:, 4:]).max()  # two roundings


def test_texts_are_written_in_the_precision_asked_for():
    """Logits from 1 to 1.001, which bfloat16 does not tell apart."""
    config = dataclasses.replace(FREE, n_layers=0)
    ours = {name: jnp.zeros_like(p) for name, p in model.init(config).items()}
    ours["embed.weight"] = ours["embed.weight"].at[:, 0].set(1)
    ours["unembed.weight"] = ours["unembed.weight"].at[:, 0].set(1 + 1e-4 * jnp.arange(11))
    for precision, likeliest in (("float32", 10), ("bfloat16", 0)):
        text = model.generate(ours, np.asarray([1]), config, 2, temperature=0, precision=precision)
        assert text.tolist() == [1, likeliest, likeliest]


def test_tokens_are_drawn_as_their_probabilities_say():
    sampling = jax_sampling.StaticSampling(greedy=False, top_k=3, nucleus=True, eos_token_id=None)
    p = np.asarray([0.1, 0.4, 0.05, 0.25, 0.2])
    logits = jnp.asarray(np.log(p)[None].repeat(4000, 0) * 2)
    chance = jnp.asarray((np.arange(4000) + 0.5) / 4000)
    drawn = np.asarray(jax_sampling.sample(logits, chance, jnp.asarray([2.0, 0.7]), sampling))
    share = np.bincount(drawn, minlength=5) / 4000
    assert share == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=1e-3)  # three likeliest, then 0.7 of these
    every = jax_sampling.StaticSampling(greedy=False, top_k=None, nucleus=False, eos_token_id=None)
    share = np.bincount(np.asarray(jax_sampling.sample(logits, chance, jnp.asarray([2.0, 1.0]), every))) / 4000
    assert share == pytest.approx(p, abs=1e-3)
