"""The JAX model one token at a time: streams that are the forward pass, and texts as the Torch model continues them."""

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


@pytest.mark.parametrize("name", ["later", "kernel_heads"])
def test_prompts_and_steps_are_the_forward_pass(name: str):
    config = ONE[name]
    params, ours = on_jax(config)
    ids = random_ids(config)
    expected = lm.forward(params, ids, config)
    plan = model.stream_plan(ours, config, 12)
    logits, state = model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :3])
    found = [logits]
    for t in (3, 4):
        logits, state = model.stream_step(plan, state, ids[:, t])
        found.append(logits)
    logits, state = model.stream_prefill(plan, state, ids[:, 5:8])  # as a conversation goes on
    found.append(logits)
    other = model.stream_copy(model.stream_reorder(state, np.asarray([1, 0, 1])))
    logits, state = model.stream_step(plan, state, ids[:, 8])
    found.append(logits)
    assert np.stack(found, axis=1) == pytest.approx(expected[:, [2, 3, 4, 7, 8]], abs=1e-12)
    logits, other = model.stream_step(plan, other, ids[[1, 0, 1], 8])
    assert np.asarray(logits) == pytest.approx(expected[[1, 0, 1], 8], abs=1e-12)


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


def test_an_input_spoils_no_more_than_the_lags_reach():
    plan = streaming.stream_plan(jnp.ones((1, 2)), 9, backend="numba", leaf=8)
    state, found = streaming.stream_init(plan, (), 1), []
    for t in range(5):
        y, state = streaming.stream_step(plan, state, jnp.asarray([jnp.inf if t == 1 else 1.0]))
        found.append(float(y[0]))
    assert found == pytest.approx([1, np.nan, np.nan, 2, 2], nan_ok=True)


@pytest.mark.parametrize("law", [check_padding, check_stream_non_finite, check_stream_refusals, check_stream_memory])
def test_laws_of_streaming(law: Any):
    """Some of them, in float32: every length and dtype is a program of its own."""
    law(dataclasses.replace(library_or_skip("jax"), dtypes=("float32",)), "numba")


# --- Generation -------------------------------------------------------------------------------------------------------


def test_greedy_texts_are_those_of_torch():
    """Beyond max_len, over several leaves, each row from its own padding; other lengths need no other program."""
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


def test_rows_end_by_themselves_and_tokens_come_as_they_are_drawn():
    _, ours = on_jax(FREE)
    ids = random_ids(FREE, (2, 9))
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 7, "top_p": 0.9, "seed": 3}
    whole = np.asarray(model.generate(ours, ids, FREE, 40, **options))
    stop = int(whole[0, 12])
    seen: list[Any] = []
    ended = np.asarray(model.generate(ours, ids, FREE, 40, **options, stop_token=stop, on_token=seen.append))
    assert np.array_equal(np.stack(seen, axis=1), ended[:, 9:])
    for row, free in zip(ended[:, 9:], whole[:, 9:], strict=True):
        hits = np.flatnonzero(free == stop)
        end = int(hits[0]) + 1 if hits.size else 40
        assert np.array_equal(row[:end], free[: len(row)][:end])
        assert (row[end:] == stop).all()
    alone = model.generate(ours, ids[0], FREE, 40, **options)
    assert np.array_equal(alone, whole[0])  # what a row draws does not depend on the others
    for seed in (4, 3 + (1 << 32), 3 + (1 << 63)):  # no part of a seed is left out
        assert not np.array_equal(model.generate(ours, ids, FREE, 40, **{**options, "seed": seed}), whole)


def test_interleaved_texts_do_not_disturb_each_other():
    _, ours = on_jax(FREE)
    ids = random_ids(FREE, (2, 9))

    def pieces(row: int) -> Any:
        return jax_generation.new_tokens(ours, ids[[row]], FREE, 40, temperature=1.5, seed=row, at_a_time=8)

    expected = [np.concatenate(list(pieces(row)), axis=1) for row in (0, 1)]
    both = list(zip(pieces(0), pieces(1), strict=True))  # a piece of the one, a piece of the other
    for row in (0, 1):
        assert np.array_equal(np.concatenate([pair[row] for pair in both], axis=1), expected[row])


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


@pytest.mark.parametrize("temperature", [1e300, float("inf")])
def test_the_hottest_texts_leave_out_what_is_ruled_out(temperature: float):
    config = dataclasses.replace(FREE, n_layers=0)
    ours = {name: jnp.zeros_like(p) for name, p in model.init(config).items()}
    ours["embed.weight"] = ours["embed.weight"].at[:, 0].set(1)
    ours["unembed.weight"] = ours["unembed.weight"].at[3, 0].set(-jnp.inf)
    text = model.generate(ours, np.asarray([1]), config, 200, temperature=temperature, top_p=1.0)
    assert set(text.tolist()) == set(range(11)) - {3}


def test_tokens_are_drawn_as_their_probabilities_say():
    sampling = jax_sampling.Sampling(greedy=False, top_k=3, nucleus=True, stop_token=None)
    p = np.asarray([0.1, 0.4, 0.05, 0.25, 0.2])
    logits = jnp.asarray(np.log(p)[None].repeat(4000, 0) * 2)
    chance = jnp.asarray((np.arange(4000) + 0.5) / 4000)
    drawn = np.asarray(jax_sampling.sample(logits, chance, jnp.asarray([2.0, 0.7]), sampling))
    share = np.bincount(drawn, minlength=5) / 4000
    assert share == pytest.approx([0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], abs=1e-3)  # three likeliest, then 0.7 of these
    every = jax_sampling.Sampling(greedy=False, top_k=None, nucleus=False, stop_token=None)
    share = np.bincount(np.asarray(jax_sampling.sample(logits, chance, jnp.asarray([2.0, 1.0]), every))) / 4000
    assert share == pytest.approx(p, abs=1e-3)


# --- What is refused --------------------------------------------------------------------------------------------------


def test_the_end_of_the_position_bias_is_told_with_the_tokens_so_far():
    config = ONE["heads"]
    params, ours = on_jax(config)
    ids = random_ids(config, (1, 9))
    theirs = LanguageModel.from_params(params, config).generate(torch.from_numpy(ids), 4, temperature=0)
    assert np.array_equal(model.generate(ours, ids, config, 4, temperature=0), theirs.numpy())
    with pytest.raises(model.ContextFullError, match=r"ends at max_len=12.*position_bias=False") as told:
        model.generate(ours, ids, config, 10**12, temperature=0)  # for which nothing is allocated
    assert np.array_equal(told.value.tokens, theirs.numpy())


def test_streams_refuse_what_they_have_no_place_for():
    config = dataclasses.replace(ONE["heads"], n_layers=0)
    _, ours = on_jax(config)
    plan, ids = model.stream_plan(ours, config, 8), random_ids(config, (2, 9))
    with pytest.raises(ValueError, match=r"the stream is full: 0 tokens have come and 9 would follow, with capacity=8"):
        model.stream_prefill(plan, model.stream_init(plan, 2), ids)
    with pytest.raises(ValueError, match=r"tokens must be \(2,\), one for each row"):
        model.stream_step(plan, model.stream_init(plan, 2), ids[0, :1])
    with pytest.raises(ValueError, match=r"tokens must be \(2,\)"):
        model.stream_step(plan, model.stream_init(plan, 2), ids[:, :1])
    with pytest.raises(ValueError, match="belongs to another plan"):
        model.stream_step(model.stream_plan(ours, config, 7), model.stream_init(plan, 2), ids[:, 0])
    alike = model.stream_plan({name: 2 * p for name, p in ours.items()}, config, 8)  # a model of one configuration
    for take, tokens in ((model.stream_prefill, ids[:, :2]), (model.stream_step, ids[:, 0])):
        with pytest.raises(ValueError, match="belongs to another plan"):
            take(alike, model.stream_init(plan, 2), tokens)
    with pytest.raises(ValueError, match="a token or more"):
        model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :0])
    _, state = model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :2])
    with pytest.raises(ValueError, match="padding comes before a stream's first token, and 2 have come"):
        model.stream_prefill(plan, state, ids[:, :2], np.asarray([[0, 1], [1, 1]]))
    with pytest.raises(ValueError, match="rows of the batch, 0 to 1"):
        model.stream_reorder(state, np.asarray([2]))
    with pytest.raises(TypeError, match="expected an array, got list"):
        model.stream_reorder(state, [0, 1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temperature": float("nan")}, "temperature >= 0"),
        ({"top_p": 0.0}, "0 < top_p <= 1"),
        ({"top_k": 0}, "top_k >= 1"),
        ({"stop_token": 11}, "stop_token 11 is outside the vocabulary of 11"),
        ({"max_new_tokens": -1}, "max_new_tokens >= 0"),
        ({"seed": -1}, r"seed must be at least 0 and less than 2\*\*64, got -1"),
        ({"seed": 1 << 64}, "seed must be at least 0"),
        ({"input_ids": np.ones((1, 0), int)}, "a token or more"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], match: str):
    config = dataclasses.replace(FREE, n_layers=0)
    given = {"input_ids": np.ones((1, 3), int), "max_new_tokens": 2, **options}
    with pytest.raises(ValueError, match=match):
        model.generate(model.init(config), config=config, **given)


def test_damaged_weights_are_told():
    config = dataclasses.replace(FREE, n_layers=0)
    params = {**model.init(config)}
    params["unembed.weight"] = params["unembed.weight"].at[3].set(jnp.nan)
    with pytest.raises(ValueError, match="logits are not finite"):
        model.generate(params, np.ones((1, 3), int), config, 2)
