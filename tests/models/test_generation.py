"""The PyTorch model one token at a time: it streams what it computes whole, and what it writes follows rules."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.model_variants import VARIANTS, random_ids, random_params
from torch import Tensor

from tmm_adapters.torch import ContextFullError, LanguageModel, stream_copy, stream_reorder
from tmm_adapters.torch.sampling import RowGenerators, sample
from tmm_core import TMMConfig, lm

HEADS = VARIANTS["heads"]
ENDLESS = VARIANTS["no_position_bias"]
LEFT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])


def model_of(config: TMMConfig, dtype: Any = np.float64) -> LanguageModel:
    return LanguageModel.from_params(random_params(config, dtype), config)


def ids_of(config: TMMConfig, shape: tuple[int, ...] = (2, 12), seed: int = 1) -> Tensor:
    return torch.from_numpy(random_ids(config, shape, seed))


# --- Streaming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_streamed_logits_are_those_of_the_whole(name: str):
    model, ids = model_of(VARIANTS[name]), ids_of(VARIANTS[name])
    whole = model(ids)["logits"]
    plan = model.stream_plan(12)
    for prompt in (1, 5, 12):
        state = model.stream_init(plan, 2)
        logits, state = model.stream_prefill(plan, state, ids[:, :prompt])
        assert torch.allclose(logits, whole[:, prompt - 1], rtol=1e-9, atol=1e-10)
        for t in range(prompt, 12):
            logits, state = model.stream_step(plan, state, ids[:, t])
            assert torch.allclose(logits, whole[:, t], rtol=1e-9, atol=1e-10), (prompt, t)
    assert not logits.requires_grad


@pytest.mark.parametrize("name", ["heads", "later", "two_layer_heads", "kernel", "no_blocks"])
@pytest.mark.parametrize("right", [False, True])
def test_padded_prompts_stream_as_each_alone(name: str, right: bool):
    model, ids = model_of(VARIANTS[name]), ids_of(VARIANTS[name], (3, 5))
    mask = LEFT.flip(1) if right else LEFT
    following = ids_of(VARIANTS[name], (3, 4), seed=2)
    plan = model.stream_plan(9)
    logits, state = model.stream_prefill(plan, model.stream_init(plan, 3), ids, mask)
    streamed = [logits]
    for t in range(4):
        logits, state = model.stream_step(plan, state, following[:, t])
        streamed.append(logits)
    for row in range(3):
        alone = torch.cat([ids[row][mask[row] == 1], following[row]])
        expected = model(alone[None])["logits"][0, -5:]
        assert torch.allclose(torch.stack(streamed)[:, row], expected, rtol=1e-9, atol=1e-10), row


@pytest.mark.parametrize("name", ["heads", "later"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_stream_as_float64_would_within_two_roundings(name: str, dtype: torch.dtype):
    """At every position, also after tiles: one that is lost costs 77 roundings and more."""
    config = replace(VARIANTS[name], max_len=150)
    model, ids = model_of(config).to(dtype), ids_of(config, (2, 150))
    exact = LanguageModel.from_params({key: p.double() for key, p in model.state_dict().items()}, config)
    expected = exact(ids)["logits"][:, 3:].detach()
    plan = model.stream_plan(150)
    logits, state = model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :4])
    streamed = [logits]
    for t in range(4, 150):
        logits, state = model.stream_step(plan, state, ids[:, t])
        streamed.append(logits)
    assert logits.dtype == dtype
    error = (torch.stack(streamed, 1) - expected).abs().max()
    assert error < 2 * torch.finfo(dtype).eps * expected.abs().max()


def test_mixed_precision_streams_too():
    model, ids = model_of(HEADS, np.float32), ids_of(HEADS)
    with torch.autocast("cpu", torch.bfloat16):
        plan = model.stream_plan(12)
        logits, state = model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :11])
        logits, state = model.stream_step(plan, state, ids[:, 11])
        whole = model(ids)["logits"]
    assert (logits - whole[:, -1]).abs().max() < 0.05 * whole.abs().max()


def test_later_prompts_go_on():
    model, ids = model_of(ENDLESS), ids_of(ENDLESS, (2, 20))
    plan = model.stream_plan(20)
    state = model.stream_init(plan, 2)
    for part in (ids[:, :3], ids[:, 3:10], ids[:, 10:20]):
        logits, state = model.stream_prefill(plan, state, part)
    assert torch.allclose(logits, model(ids)["logits"][:, -1])


def test_streams_do_not_disturb_each_other_and_can_be_copied_and_reordered():
    model, ids = model_of(HEADS), ids_of(HEADS, (3, 12))
    whole = model(ids)["logits"]
    plan = model.stream_plan(12)
    _, first = model.stream_prefill(plan, model.stream_init(plan, 3), ids[:, :4])
    other = stream_copy(first)
    chosen = stream_reorder(first, torch.tensor([2, 2, 0, 1]))
    for t in range(4, 12):
        logits, first = model.stream_step(plan, first, ids[:, t])
        noise, other = model.stream_step(plan, other, (ids[:, t] + 1) % 11)
        beams, chosen = model.stream_step(plan, chosen, ids[[2, 2, 0, 1], t])
        assert torch.allclose(logits, whole[:, t])
        assert torch.allclose(beams, whole[[2, 2, 0, 1], t])
    assert not torch.allclose(noise, logits)


def test_rows_are_named_by_a_tensor_of_integers():
    model = model_of(HEADS)
    state = model.stream_init(model.stream_plan(12), 2)
    with pytest.raises(TypeError, match="list"):
        stream_reorder(state, [0, 1])
    with pytest.raises(ValueError, match=r"indices must be \(b,\)"):
        stream_reorder(state, torch.tensor([[0, 1]]))


def test_states_of_others_are_refused():
    model, ids = model_of(HEADS), ids_of(HEADS)
    other = model_of(HEADS)
    plan, again = model.stream_plan(12), model.stream_plan(12)
    state = model.stream_init(plan, 2)
    with pytest.raises(ValueError, match="the plan belongs to another model"):
        other.stream_init(plan, 2)
    with pytest.raises(ValueError, match="the plan belongs to another model"):
        other.stream_prefill(plan, state, ids)
    with pytest.raises(ValueError, match="the state belongs to another plan"):
        model.stream_prefill(again, state, ids)
    with pytest.raises(ValueError, match=r"input_ids must be \(2, n\)"):
        model.stream_prefill(plan, state, ids[:1])
    with pytest.raises(ValueError, match=r"with a token or more"):
        model.stream_prefill(plan, state, ids[:, :0])
    with pytest.raises(ValueError, match=r"tokens must be \(2,\)"):
        model.stream_step(plan, state, ids[:1, 0])
    with pytest.raises(ValueError, match="token 11 is outside the vocabulary"):
        model.stream_step(plan, state, torch.tensor([1, 11]))
    with pytest.raises(ValueError, match="row of padding only"):
        model.stream_prefill(plan, state, ids, torch.zeros_like(ids))
    _, state = model.stream_prefill(plan, state, ids)
    with pytest.raises(ValueError, match="the stream is full: 12 tokens have come"):
        model.stream_step(plan, state, ids[:, 0])
    stale = model.stream_init(plan, 2)
    with torch.no_grad():
        model.blocks[0].mix.lags.mul_(2)
    with pytest.raises(ValueError, match="parameters have changed since the plan was made"):
        model.stream_prefill(plan, stale, ids)


def test_the_position_bias_ends_a_stream():
    model = model_of(HEADS)
    plan = model.stream_plan(30)
    _, state = model.stream_prefill(plan, model.stream_init(plan, 1), ids_of(HEADS, (1, 12)))
    with pytest.raises(ValueError, match="position bias ends at max_len=12"):
        model.stream_step(plan, state, torch.tensor([1]))


# --- Greedy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heads", "later", "no_blocks"])
def test_greedy_generation_takes_the_likeliest_token_each_time(name: str):
    model, prompt = model_of(VARIANTS[name]), ids_of(VARIANTS[name], (2, 3))
    seen: list[Tensor] = []
    tokens = model.generate(prompt, 6, temperature=0, on_token=seen.append)
    assert tokens.shape == (2, 9)
    assert torch.equal(tokens[:, :3], prompt)
    for t in range(3, 9):
        assert torch.equal(tokens[:, t], model(tokens[:, :t])["logits"][:, -1].argmax(-1))
    assert torch.equal(torch.stack(seen, 1), tokens[:, 3:])
    seen.clear()
    assert torch.equal(model.generate(prompt[1], 6, temperature=0, on_token=seen.append), tokens[1])
    assert [int(token) for token in seen] == tokens[1, 3:].tolist()
    for options in ({"top_p": 1e-9}, {"top_p": 1e-300}, {"top_k": 1}, {"temperature": 1e-45}):
        assert torch.equal(model.generate(prompt, 6, **options), tokens)
    assert torch.equal(model.generate(prompt, 0), prompt)


@pytest.mark.parametrize("right", [False, True])
def test_padded_prompts_are_continued_as_each_alone(right: bool):
    model, ids = model_of(HEADS), ids_of(HEADS, (3, 5))
    mask = LEFT.flip(1) if right else LEFT
    tokens = model.generate(ids, 7, attention_mask=mask, temperature=0)
    assert torch.equal(tokens[:, :5], ids)
    for row in range(3):
        alone = ids[row][mask[row] == 1]
        assert torch.equal(model.generate(alone, 7, temperature=0)[len(alone) :], tokens[row, 5:])


def test_generation_computes_as_in_evaluation_and_leaves_the_mode():
    model, prompt = model_of(HEADS), ids_of(HEADS, (1, 3))
    expected = model.generate(prompt, 5, temperature=0)
    whole = model(torch.cat([prompt, prompt], 1))["logits"]
    model.blocks[0].mlp.activation = torch.nn.Sequential(model.blocks[0].mlp.activation, torch.nn.Dropout(0.9))
    model.train()
    assert torch.equal(model.generate(prompt, 5, temperature=0), expected)
    plan = model.stream_plan(6)
    logits, state = model.stream_prefill(plan, model.stream_init(plan, 1), prompt)
    assert torch.allclose(logits, whole[:, 2])
    for t in range(3):
        logits, state = model.stream_step(plan, state, prompt[:, t])
        assert torch.allclose(logits, whole[:, 3 + t])
    assert model.training
    assert model.blocks[0].mlp.activation[1].training


# --- Sampling ---------------------------------------------------------------------------------------------------------


def sampled(model: LanguageModel, prompt: Tensor, n: int, seed: int, **options: Any) -> Tensor:
    return model.generate(prompt, n, generator=torch.Generator().manual_seed(seed), **options)


def test_sampling_follows_its_generator():
    model, prompt = model_of(ENDLESS), ids_of(ENDLESS, (1, 2))
    first = sampled(model, prompt, 70, 5, temperature=2.0)
    assert torch.equal(first, sampled(model, prompt, 70, 5, temperature=2.0))
    assert not torch.equal(first, sampled(model, prompt, 70, 6, temperature=2.0))
    assert torch.equal(first[:, :40], sampled(model, prompt, 38, 5, temperature=2.0)), "fewer tokens are the beginning"
    torch.manual_seed(3)
    assert torch.equal(model.generate(prompt, 9), sampled(model, prompt, 9, 3)), "unless given, torch's own"


def test_what_a_row_draws_does_not_depend_on_the_others():
    model, ids = model_of(ENDLESS), ids_of(ENDLESS, (3, 2))
    together = sampled(model, ids, 70, 0, temperature=3.0)
    others = sampled(model, torch.cat([ids[:2], ids_of(ENDLESS, (2, 2), seed=9)]), 70, 0, temperature=3.0)
    assert torch.equal(others[:2], together[:2])
    assert torch.equal(sampled(model, ids[:1], 70, 0, temperature=3.0), together[:1])
    same = sampled(model, ids[[0, 0, 0]], 20, 0, temperature=3.0)
    assert not torch.equal(same[0], same[1]), "equal prompts draw different texts"


def test_draws_have_the_probabilities_of_the_logits():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(11, generator=generator)[None].expand(4000, -1)
    every = {"counts": torch.ones(4000, dtype=torch.bool)}
    uniform = RowGenerators(torch.Generator().manual_seed(1), 4000, torch.device("cpu")).uniform(0)

    def frequencies(**options: Any) -> Tensor:
        given = {"temperature": 2.0, "top_k": None, "top_p": 1.0, **options}
        return sample(logits, uniform, **every, **given).bincount(minlength=11) / 4000

    p = (logits[0] / 2).softmax(-1)
    assert torch.allclose(frequencies(), p, atol=0.04)  # five standard deviations
    order = p.argsort(descending=True)
    kept = int((p[order].cumsum(0) < 0.5).sum()) + 1
    for options, count in (({"top_p": 0.5}, kept), ({"top_k": 3}, 3), ({"top_k": 99}, 11)):
        found = frequencies(**options)
        expected = torch.zeros(11).index_put((order[:count],), p[order[:count]] / p[order[:count]].sum())
        assert torch.allclose(found, expected, atol=0.04), options
        assert (found[order[count:]] == 0).all()
    limits = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64).repeat_interleave(2000)
    ruled_out = torch.where(torch.arange(11) % 2 == 0, -math.inf, logits)
    ends = sample(ruled_out, limits, **every, temperature=1.0, top_k=None, top_p=1.0)
    assert (ends[:2000] == 1).all(), "the first token that is not ruled out"
    assert (ends[2000:] == 9).all(), "and the last"


def test_logits_that_are_not_finite_are_refused():
    model = model_of(HEADS)
    model.unembed.weight.data[3] = -math.inf
    with pytest.raises(ValueError, match="logits are not finite"):
        model.generate(ids_of(HEADS, (1, 3)), 1)


@pytest.mark.parametrize("training", [False, True])
def test_interleaved_texts_do_not_disturb_each_other_nor_the_mode(training: bool):
    """Each is drawn as it would be alone, also where the other ends or is given up before it."""
    model, prompt = model_of(ENDLESS), ids_of(ENDLESS, (2, 3))
    lone = [sampled(model, prompt[[row]], 12, row, temperature=2.0)[:, 3:] for row in (0, 1)]
    dropout = torch.nn.Dropout(0.9)
    model.blocks[0].mlp.activation = torch.nn.Sequential(model.blocks[0].mlp.activation, dropout)
    model.train(training)

    def texts() -> list[Any]:
        generators = [torch.Generator().manual_seed(row) for row in (0, 1)]
        return [model.new_tokens(prompt[[i]], 12, temperature=2.0, generator=generators[i]) for i in (0, 1)]

    first, second = texts()
    found = [[next(first)], []]
    for tokens in second:  # which begins later and ends earlier
        found[1].append(tokens)
        assert model.training is dropout.training is training
        if len(found[0]) < 7:
            found[0].append(next(first))
    found[0] += list(first)
    assert [torch.stack(tokens, 1).tolist() for tokens in found] == [tokens.tolist() for tokens in lone]
    first, second = texts()
    found = [[next(first)], [next(second)]]
    first.close()
    found[1] += list(second)
    assert torch.stack(found[1], 1).tolist() == lone[1].tolist()
    assert model.training is dropout.training is training


# --- Ends -------------------------------------------------------------------------------------------------------------


def test_each_row_ends_after_its_stop_token():
    model, prompt = model_of(HEADS), ids_of(HEADS, (3, 2))
    free = model.generate(prompt, 8, temperature=0)
    stop = int(free[0, 4])
    ended = model.generate(prompt, 8, temperature=0, stop_token=stop)
    ends = []
    for row in range(3):
        found = (free[row, 2:] == stop).nonzero()
        end = 2 + int(found[0]) if len(found) else free.shape[1]
        assert torch.equal(ended[row, : end + 1], free[row, : end + 1][: ended.shape[1]])
        assert (ended[row, end:] == stop).all()
        ends.append(min(end + 1, free.shape[1]))
    assert ended.shape[1] == max(ends), "all rows have ended then"
    alone = model.generate(prompt[0], 8, temperature=0, stop_token=stop)
    assert torch.equal(alone, free[0, : ends[0]])


def test_generation_stops_clearly_where_the_position_bias_ends():
    model, prompt = model_of(HEADS), ids_of(HEADS, (2, 10))
    with pytest.raises(ContextFullError, match=r"ends at max_len=12") as caught:
        model.generate(prompt, 5, temperature=0)
    assert caught.value.tokens.shape == (2, 13)  # the last token needs no place of its own
    assert torch.equal(caught.value.tokens, model.generate(prompt, 3, temperature=0))
    with pytest.raises(ContextFullError) as caught:
        model.generate(ids_of(HEADS, (13,)), 1)
    assert caught.value.tokens.shape == (13,)


def test_rows_that_have_ended_do_not_fill_the_context_of_others():
    """The first row ends at the limit; the second, of two tokens, goes on for as long as it could alone."""
    model, ids = model_of(HEADS), ids_of(HEADS, (2, 11))
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    stop = int(model.generate(ids[0], 1, temperature=0)[-1])
    alone = model.generate(ids[1, 9:], 11, temperature=0, stop_token=stop)
    count = len(alone) - 2
    assert count > 3, "the test would show nothing"
    together = model.generate(ids, count, attention_mask=mask, temperature=0, stop_token=stop)
    assert torch.equal(together[1, 11:], alone[2:])
    assert (together[0, 11:] == stop).all()
    with pytest.raises(ContextFullError) as caught:
        model.generate(ids.flip(0), 8, attention_mask=mask.flip(0), temperature=0)
    assert caught.value.tokens.shape == (2, 13)


def test_a_model_without_position_bias_generates_on():
    model, prompt = model_of(ENDLESS), ids_of(ENDLESS, (1, 10))
    tokens = model.generate(prompt, 20, temperature=0)
    expected = lm.forward(model.params(), tokens.numpy(), ENDLESS)[:, 9:-1].argmax(-1)
    assert torch.equal(tokens[:, 10:], torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 0), {}, "sequences with a token or more"),
        ((2, 1, 3), {}, "sequences with a token or more"),
        ((1, 3), {"temperature": -1.0}, "temperature >= 0"),
        ((1, 3), {"temperature": math.nan}, "temperature=nan"),
        ((1, 3), {"top_p": 0.0}, "0 < top_p <= 1"),
        ((1, 3), {"top_p": 1.5}, "0 < top_p <= 1"),
        ((1, 3), {"top_k": 0}, "top_k >= 1"),
        ((1, 3), {"stop_token": 11}, "stop_token 11 is outside the vocabulary of 11"),
        ((1, 3), {"attention_mask": torch.tensor([[1, 0, 1]])}, "attention_mask has a hole"),
        ((1, 3), {"attention_mask": torch.ones(1, 2)}, "must have the shape of input_ids"),
    ],
)
def test_bad_prompts_and_options_are_refused(shape: tuple[int, ...], options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        model_of(HEADS).generate(ids_of(HEADS, shape), 2, **options)
