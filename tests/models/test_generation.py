"""Texts that models continue, in every framework: greedy and sampled, each row by itself, until it ends."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from support.frameworks import MODELS, variants
from support.model_variants import VARIANTS, random_ids, random_params
from support.requirements import import_or_skip

from tmm_adapters.generation import ContextFullError, Sampling
from tmm_core import lm

pytestmark = pytest.mark.usefixtures("double")

ONE = {name: dataclasses.replace(config, n_layers=min(config.n_layers, 1)) for name, config in VARIANTS.items()}
HEADS, ENDLESS = ONE["heads"], ONE["no_position_bias"]
EMPTY = dataclasses.replace(ENDLESS, n_layers=0)
LEFT = np.asarray([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])


@pytest.fixture(params=["torch", "jax"])
def framework(request):
    """What makes models of one framework."""
    import_or_skip(request.param)
    return MODELS[request.param]


def telling(logits):
    """Return parameters of a model without blocks that gives these logits (V,) after every token."""
    params = {name: np.zeros_like(p) for name, p in random_params(EMPTY).items()}
    params["embed.weight"][:, 0] = 1
    params["unembed.weight"][:, 0] = logits
    return params


# --- Greedy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variant"), [*variants("torch", only=("heads", "later", "no_blocks")), *variants("jax", only=("later",))]
)
def test_greedy_generation_takes_the_likeliest_token_each_time(name, variant):
    model = MODELS[name](ONE[variant])
    prompt, seen = random_ids(ONE[variant], (2, 3)), []
    tokens = model.generate(prompt, 6, temperature=0, on_token=lambda new: seen.append(np.asarray(new).copy()))
    expected = lm.forward(random_params(ONE[variant]), tokens, ONE[variant]).argmax(-1)
    assert np.array_equal(tokens[:, :3], prompt)
    assert np.array_equal(tokens[:, 3:], expected[:, 2:-1])
    assert np.array_equal(np.stack(seen, 1), tokens[:, 3:])
    seen.clear()
    alone = model.generate(prompt[1], 6, temperature=0, on_token=lambda new: seen.append(int(new)))
    assert np.array_equal(alone, tokens[1])
    assert seen == tokens[1, 3:].tolist()
    assert np.array_equal(model.generate(prompt, 0), prompt)


@pytest.mark.parametrize("options", [{"top_p": 1e-9}, {"top_p": 1e-300}, {"top_k": 1}, {"temperature": 1e-45}])
def test_the_likeliest_token_is_all_that_is_left_of_narrow_sampling(framework, options):
    model = framework(EMPTY)
    prompt = random_ids(EMPTY, (2, 3))
    assert np.array_equal(model.generate(prompt, 4, **options), model.generate(prompt, 4, temperature=0))


@pytest.mark.parametrize("right", [False, True])
def test_padded_prompts_are_continued_as_each_alone(framework, right):
    model, ids = framework(HEADS), random_ids(HEADS, (3, 5))
    mask = np.flip(LEFT, 1).copy() if right else LEFT
    tokens = model.generate(ids, 7, mask, temperature=0)
    assert np.array_equal(tokens[:, :5], ids)
    for row in range(3):
        alone = list(ids[row][mask[row] == 1])
        for token in tokens[row, 5:]:
            assert lm.forward(random_params(HEADS), np.asarray(alone), HEADS)[-1].argmax() == token
            alone.append(token)


def test_a_model_without_position_bias_generates_on(framework):
    tokens = framework(ENDLESS).generate(random_ids(ENDLESS, (1, 10)), 120, temperature=0)
    expected = lm.forward(random_params(ENDLESS), tokens, ENDLESS)[:, 9:-1].argmax(-1)
    assert np.array_equal(tokens[:, 10:], expected)


# --- Sampling ---------------------------------------------------------------------------------------------------------


def test_what_a_row_draws_depends_on_its_seed_and_not_on_the_others(framework):
    model, ids = framework(EMPTY), random_ids(EMPTY, (3, 2))
    options = {"temperature": 3.0, "top_k": 7}
    together = model.generate(ids, 70, **options)
    assert np.array_equal(together, model.generate(ids, 70, **options))
    assert np.array_equal(together[:, :40], model.generate(ids, 38, **options)), "fewer tokens are the beginning"
    others = model.generate(np.concatenate([ids[:2], random_ids(EMPTY, (2, 2), seed=9)]), 70, **options)
    assert np.array_equal(others[:2], together[:2])
    assert np.array_equal(model.generate(ids[:1], 70, **options), together[:1])
    assert not np.array_equal(model.generate(ids, 70, seed=1, **options), together)
    same = model.generate(ids[[0, 0, 0]], 20, **options)
    assert not np.array_equal(same[0], same[1]), "equal prompts draw different texts"


def test_draws_have_the_probabilities_of_the_logits(framework):
    logits = np.random.default_rng(0).standard_normal(11)
    model, p = framework(EMPTY, telling(logits)), np.exp(logits / 2) / np.exp(logits / 2).sum()
    order = np.argsort(-p)
    kept = int((np.cumsum(p[order]) < 0.5).sum()) + 1
    for options, count in (({}, 11), ({"top_p": 0.5}, kept), ({"top_k": 3}, 3), ({"top_k": 99}, 11)):
        options = {"temperature": 2.0, "top_p": 1.0, **options}
        drawn = model.generate(np.ones((250, 1), int), 16, **options)[:, 1:]
        found = np.bincount(drawn.ravel(), minlength=11) / drawn.size
        expected = np.zeros(11)
        expected[order[:count]] = p[order[:count]] / p[order[:count]].sum()
        assert np.abs(found - expected).max() < 0.04, options  # five standard deviations
        assert (found[order[count:]] == 0).all()


@pytest.mark.parametrize("temperature", [1e300, math.inf])
def test_the_hottest_texts_leave_out_what_is_ruled_out(framework, temperature):
    logits = np.where(np.arange(11) == 3, -np.inf, 0.0)
    text = framework(EMPTY, telling(logits)).generate(np.asarray([1]), 200, temperature=temperature, top_p=1.0)
    assert set(text.tolist()) == set(range(11)) - {3}


def test_interleaved_texts_do_not_disturb_each_other(framework):
    model, prompt = framework(ENDLESS), random_ids(ENDLESS, (2, 3))

    def text(row):
        return model.new_tokens(prompt[[row]], 24, Sampling(2.0), seed=row)

    lone = [np.concatenate(list(text(row)), axis=1) for row in (0, 1)]
    first, second = text(0), text(1)
    found = [[next(first)], []]
    for a, b in itertools.zip_longest(first, second):  # a piece of the one, a piece of the other
        found[0] += [] if a is None else [a]
        found[1] += [] if b is None else [b]
    for row in (0, 1):
        assert np.array_equal(np.concatenate(found[row], axis=1), lone[row])
    first, second = text(0), text(1)
    found = [next(first), next(second)]
    first.close()
    assert np.array_equal(np.concatenate([found[1], *second], axis=1), lone[1])


# --- Ends -------------------------------------------------------------------------------------------------------------


def test_each_row_ends_after_its_stop_token(framework):
    model, prompt = framework(ENDLESS), random_ids(ENDLESS, (3, 2))
    options = {"temperature": 1.5, "seed": 3}
    free = model.generate(prompt, 30, **options)
    stop = int(free[0, 4])
    ended = model.generate(prompt, 30, eos_token_id=stop, **options)
    ends = []
    for row, alone in zip(ended, free, strict=True):
        hits = np.flatnonzero(alone[2:] == stop)
        end = 2 + int(hits[0]) + 1 if hits.size else free.shape[1]
        assert np.array_equal(row[:end], alone[:end])
        assert (row[end:] == stop).all()
        ends.append(end)
    assert ended.shape[1] == max(ends), "all rows have ended then"


def test_generation_stops_clearly_where_the_position_bias_ends(framework):
    model, prompt = framework(HEADS), random_ids(HEADS, (2, 10))
    with pytest.raises(ContextFullError, match=r"ends at max_len=12.*position_bias=False") as caught:
        model.generate(prompt, 10**12, temperature=0)  # for which nothing is allocated
    assert tuple(caught.value.tokens.shape) == (2, 13)  # the last token needs no place of its own
    assert np.array_equal(np.asarray(caught.value.tokens), model.generate(prompt, 3, temperature=0))
    with pytest.raises(ContextFullError) as caught:
        model.generate(random_ids(HEADS, (13,)), 1)
    assert tuple(caught.value.tokens.shape) == (13,)
    mask = np.ones((2, 10), int)
    mask[1, :9] = 0
    pieces = list(model.new_tokens(prompt, 10**12, mask=mask, end_where_full=True))
    assert sum(piece.shape[1] for piece in pieces) == 12  # as many as the shorter prompt has place for


def test_an_error_where_texts_end_has_all_tokens_that_were_yielded(framework):
    model, prompt = framework(HEADS), random_ids(HEADS, (2, 10))
    tokens = [prompt]
    with pytest.raises(ContextFullError) as caught:
        tokens.extend(model.new_tokens(prompt, 5, Sampling(0)))
    assert np.array_equal(np.asarray(caught.value.tokens), np.concatenate(tokens, axis=1))
    assert len(tokens) > 1


def test_rows_that_have_ended_do_not_fill_the_context_of_others(framework):
    """The first row ends at the limit; the second, of two tokens, goes on for as long as it could alone."""
    model, ids = framework(HEADS), random_ids(HEADS, (2, 11), seed=6)
    mask = np.ones_like(ids)
    mask[1, :9] = 0
    stop = int(model.generate(ids[0], 1, temperature=0)[-1])
    alone = model.generate(ids[1, 9:], 11, temperature=0, eos_token_id=stop)
    count = len(alone) - 2
    assert count > 3, "the test would show nothing"
    together = model.generate(ids, count, mask, temperature=0, eos_token_id=stop)
    assert np.array_equal(together[1, 11:], alone[2:])
    assert (together[0, 11:] == stop).all()


# --- What is refused --------------------------------------------------------------------------------------------------


def test_logits_that_are_not_finite_are_refused(framework):
    params = random_params(EMPTY)
    params["unembed.weight"][3] = math.nan
    with pytest.raises(ValueError, match="logits are not finite"):
        framework(EMPTY, params).generate(np.ones((1, 3), int), 1)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 0), {}, "sequences with a token or more"),
        ((2, 1, 3), {}, r"sequences with a token or more|must have the shape \(batch, n\)"),
        ((1, 3), {"n": -1}, "max_new_tokens >= 0"),
        ((1, 3), {"temperature": -1.0}, "temperature >= 0"),
        ((1, 3), {"temperature": math.nan}, "temperature=nan"),
        ((1, 3), {"top_p": 0.0}, "0 < top_p <= 1"),
        ((1, 3), {"top_p": 1.5}, "0 < top_p <= 1"),
        ((1, 3), {"top_k": 0}, "top_k >= 1"),
        ((1, 3), {"eos_token_id": 11}, "eos_token_id 11 is outside the vocabulary of 11"),
        ((1, 3), {"mask": np.asarray([[1, 0, 1]])}, "attention_mask has a hole"),
        ((1, 3), {"mask": np.ones((1, 2), int)}, "must have the shape of input_ids"),
    ],
)
def test_bad_prompts_and_options_are_refused(framework, shape, options, message):
    with pytest.raises(ValueError, match=message):
        framework(EMPTY).generate(random_ids(EMPTY, shape), **{"n": 2, **options})
