"""The language model one token at a time, in array-API calls: the logits of `lm.forward` at every position."""

import dataclasses

import numpy as np
import pytest
from support.model_variants import VARIANTS, random_ids, random_params

from tmm_core import lm
from tmm_core._arrays import properties as arrays
from tmm_core._definition import streaming as definition

HEADS = VARIANTS["heads"]
N = 12
TIGHT = {"atol": 1e-10, "rtol": 0}


@pytest.fixture(params=sorted(VARIANTS))
def config(request):
    return VARIANTS[request.param]


@pytest.fixture(autouse=True)
def small_leaf(monkeypatch):
    """Texts of a few tokens then meet tiles."""
    monkeypatch.setattr(definition, "LEAF", 2)


def begin(config, batch_size=2, capacity=N, params=None):
    plan = lm.stream_plan(params or random_params(config), config, capacity, backend="array_api")
    return plan, lm.stream_init(plan, batch_size)


def steps(plan, state, ids):
    logits = []
    for t in range(ids.shape[1]):
        found, state = lm.stream_step(plan, state, ids[:, t])
        logits.append(found)
    return np.stack(logits, axis=1), state


def test_a_prompt_and_then_steps_give_the_logits_of_the_whole_text(config):
    params, ids = random_params(config), random_ids(config)
    expected = lm.forward(params, ids, config)
    for prompt in (0, 1, 5, N):
        plan, state = begin(config)
        if prompt:
            logits, state = lm.stream_prefill(plan, state, ids[:, :prompt])
            np.testing.assert_allclose(logits, expected[:, prompt - 1], **TIGHT)
        if prompt < N:
            logits, state = steps(plan, state, ids[:, prompt:])
            np.testing.assert_allclose(logits, expected[:, prompt:], **TIGHT)
        assert state.position == N


def test_padded_rows_give_what_each_gives_alone(config):
    params, ids = random_params(config), random_ids(config, (4, N))
    mask = np.ones((4, 7), int)
    mask[0, :3] = mask[1, 4:] = mask[2, :2] = mask[2, 5:] = mask[3, 6:] = 0  # left, right, both, right; all lack one
    plan, state = begin(config, 4)
    prompts = np.where(mask == 1, ids[:, :7], -7)  # no token at all
    logits, state = lm.stream_prefill(plan, state, prompts, mask)
    assert state.position == 6  # what all rows lack takes no place
    rows = [list(ids[row, :7][mask[row] == 1]) for row in range(4)]
    for t in range(7, N + 1):
        for row in range(4):
            alone = lm.forward(params, np.asarray([rows[row]]), config)[0, -1]
            np.testing.assert_allclose(logits[row], alone, **TIGHT)
        if t < N:
            logits, state = lm.stream_step(plan, state, ids[:, t])
            rows = [[*rows[row], ids[row, t]] for row in range(4)]


@pytest.mark.parametrize("name", ["two_layer_softplus_mean", "kernel_heads", "mean_banded", "no_blocks"])
def test_a_conversation_takes_several_prompts(name):
    config = VARIANTS[name]
    params, ids = random_params(config), random_ids(config)
    expected = lm.forward(params, ids, config)
    plan, state = begin(config)
    mask = np.ones((2, 3), int)
    for first, last in ((0, 3), (6, 9)):
        logits, state = lm.stream_prefill(plan, state, ids[:, first:last], mask if first else None)
        np.testing.assert_allclose(logits, expected[:, last - 1], **TIGHT)
        logits, state = steps(plan, state, ids[:, last : last + 3])
        np.testing.assert_allclose(logits, expected[:, last : last + 3], **TIGHT)


def test_beams_are_chosen_copied_and_go_on_by_themselves():
    config, ids = VARIANTS["two_layer_heads"], random_ids(VARIANTS["two_layer_heads"], (3, N))
    plan, state = begin(config, 3)
    _, state = lm.stream_prefill(plan, state, ids[:, :5])
    order = np.asarray([2, 0, 0, 1])
    beams, copy = lm.stream_reorder(state, order), lm.stream_copy(state)
    expected = lm.forward(random_params(config), ids, config)[:, 5:]
    np.testing.assert_allclose(steps(plan, beams, ids[order, 5:])[0], expected[order], **TIGHT)
    np.testing.assert_allclose(steps(plan, state, ids[:, 5:])[0], expected, **TIGHT)
    np.testing.assert_allclose(steps(plan, copy, ids[:, 5:])[0], expected, **TIGHT)


def test_models_without_position_bias_run_on_and_others_end_with_it(config):
    params, ids = random_params(config), random_ids(config, (1, 20))
    plan, state = begin(config, 1, 20)
    if config.position_bias and config.n_layers:
        _, state = lm.stream_prefill(plan, state, ids[:, : config.max_len])
        with pytest.raises(ValueError, match=r"position bias ends at max_len=12, and 12 tokens .*position_bias=False"):
            lm.stream_step(plan, state, ids[:, 12])
    else:
        _, state = lm.stream_prefill(plan, state, ids[:, :3])
        logits, state = steps(plan, state, ids[:, 3:])
        np.testing.assert_allclose(logits, lm.forward(params, ids, config)[:, 3:], **TIGHT)
        with pytest.raises(ValueError, match="the stream is full: 20 tokens have come and 1 would follow"):
            lm.stream_step(plan, state, ids[:, 0])


def test_masks_are_looked_at_where_a_device_holds_them_too(monkeypatch):
    monkeypatch.setattr(arrays, "_valued", set())
    monkeypatch.setattr(arrays, "_is_queued", lambda array: True)
    plan, state = begin(HEADS)
    ids = random_ids(HEADS)
    with pytest.raises(ValueError, match="has a hole"):
        lm.stream_prefill(plan, state, ids[:, :3], np.asarray([[1, 0, 1], [1, 1, 1]]))
    logits, state = lm.stream_prefill(plan, state, ids[:, :4], np.asarray([[1, 1, 1, 0], [1, 1, 0, 0]]))
    assert state.position == 3  # nothing is kept of padding that all rows have
    expected = lm.forward(random_params(HEADS), ids, HEADS)
    np.testing.assert_allclose(logits, [expected[0, 2], expected[1, 1]], **TIGHT)


def test_what_a_stream_cannot_take_is_refused():
    ids = random_ids(HEADS)
    plan, state = begin(HEADS)
    other, _ = begin(HEADS)
    mask = np.ones((2, 3), int)
    for error, words, call in (
        (ValueError, r"input_ids must be \(2, n\) with a token", lambda: lm.stream_prefill(plan, state, ids[:, :0])),
        (ValueError, r"input_ids must be \(2, n\)", lambda: lm.stream_prefill(plan, state, ids[:1])),
        (ValueError, r"tokens must be \(2,\)", lambda: lm.stream_step(plan, state, ids[:, :1])),
        (TypeError, "expected an array, got int", lambda: lm.stream_step(plan, state, 3)),
        (TypeError, "expected an array, got list", lambda: lm.stream_step(plan, state, [1, 2])),
        (TypeError, "expected an array, got list", lambda: lm.stream_prefill(plan, state, [[1], [2]])),
        (TypeError, "expected an array, got list", lambda: lm.stream_prefill(plan, state, ids[:, :1], [[1], [1]])),
        (TypeError, "expected an array, got list", lambda: lm.stream_reorder(state, [0, 1])),
        (ValueError, "another plan", lambda: lm.stream_step(other, state, ids[:, 0])),
        (ValueError, "another plan", lambda: lm.stream_prefill(other, state, ids)),
        (ValueError, "outside the vocabulary", lambda: lm.stream_step(plan, state, ids[:, 0] + 99)),
        (TypeError, "expected integers for each token", lambda: lm.stream_step(plan, state, ids[:, 0] / 2)),
        (ValueError, "row of padding only", lambda: lm.stream_prefill(plan, state, ids[:, :3], mask * [[0], [1]])),
        (ValueError, "has a hole", lambda: lm.stream_prefill(plan, state, ids[:, :3], mask * [1, 0, 1])),
        (ValueError, "the stream is full", lambda: lm.stream_prefill(plan, state, random_ids(HEADS, (2, 13)))),
        (ValueError, "capacity must be at least 1", lambda: begin(HEADS, capacity=0)),
        (ValueError, "indices must be", lambda: lm.stream_reorder(state, np.asarray([[0, 1]]))),
        (ValueError, "params are 0 arrays", lambda: lm.stream_plan({}, HEADS, 3)),
    ):
        with pytest.raises(error, match=words):
            call()
    logits, state = lm.stream_prefill(plan, state, ids[:, :3])  # none of them has changed it
    np.testing.assert_allclose(logits, lm.forward(random_params(HEADS), ids, HEADS)[:, 2], **TIGHT)
    with pytest.raises(ValueError, match="padding comes before a stream's first token, and 3 have come"):
        lm.stream_prefill(plan, state, ids[:, :3], mask * [[0, 1, 1], [1, 1, 1]])


@pytest.mark.parametrize("name", ["later", "two_layer_heads"])
@pytest.mark.parametrize("xp", ["array_api_strict", "torch"], indirect=True)
def test_every_library_streams_the_same(xp, name):
    config = dataclasses.replace(VARIANTS[name], n_layers=1)
    params, ids = random_params(config), random_ids(config)
    given = {key: xp.asarray(p, "float64") for key, p in params.items()}
    plan = lm.stream_plan(given, config, N)
    tokens = xp.asarray(ids, "uint8")
    logits, state = lm.stream_prefill(
        plan, lm.stream_init(plan, 2), tokens[:, :5], xp.asarray(np.ones((2, 5)), "int32")
    )
    expected = lm.forward(params, ids, config)
    for t in range(5, N):
        np.testing.assert_allclose(xp.to_numpy(logits), expected[:, t - 1], **TIGHT)
        logits, state = lm.stream_step(plan, state, tokens[:, t])
