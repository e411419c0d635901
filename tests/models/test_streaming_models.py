"""Models of every framework one token at a time: the logits of the whole text at every position."""

import dataclasses

import numpy as np
import pytest
from support.frameworks import FRAMEWORKS, MODELS, variants
from support.model_variants import VARIANTS, random_ids, random_params

from tmm_core import lm
from tmm_core._arrays import properties as arrays
from tmm_core._definition import streaming as definition

pytestmark = pytest.mark.usefixtures("double")

HEADS = VARIANTS["heads"]
N = 12
TIGHT = {"atol": 1e-10, "rtol": 1e-9}


@pytest.fixture(autouse=True)
def small_leaf(monkeypatch, request):
    """Texts of a few tokens then meet tiles; in JAX each tile is a program of its own."""
    if "jax" not in request.node.name:
        monkeypatch.setattr(definition, "LEAF", 2)


def model_of(framework, config):
    """Return a model and what its logits are held to: those of `lm.forward` in NumPy."""
    if framework == "jax":
        config = dataclasses.replace(config, n_layers=min(config.n_layers, 1))
    return MODELS[framework](config), MODELS["numpy"](config).logits, config


def begin(model, batch_size=2, capacity=N):
    plan = model.plan(capacity)
    return plan, model.init(plan, batch_size)


@pytest.mark.parametrize(("framework", "name"), variants(*FRAMEWORKS))
def test_a_prompt_and_then_steps_give_the_logits_of_the_whole_text(framework, name):
    model, forward, config = model_of(framework, VARIANTS[name])
    ids = random_ids(config)
    expected = forward(ids)
    plan = model.plan(N)
    for prompt in (0, 1, 5, N) if framework != "jax" else (0, 5):
        state = model.init(plan, 2)
        if prompt:
            logits, state = model.prefill(plan, state, ids[:, :prompt])
            np.testing.assert_allclose(logits, expected[:, prompt - 1], **TIGHT)
        if prompt < N:
            logits, state = model.steps(plan, state, ids[:, prompt:])
            np.testing.assert_allclose(logits, expected[:, prompt:], **TIGHT)
        assert state.position == N


@pytest.mark.parametrize(("framework", "name"), variants(*FRAMEWORKS))
def test_padded_rows_give_what_each_gives_alone(framework, name):
    model, forward, config = model_of(framework, VARIANTS[name])
    ids = random_ids(config, (4, N))
    mask = np.ones((4, 7), int)
    mask[0, :3] = mask[1, 4:] = mask[2, :2] = mask[2, 5:] = mask[3, 6:] = 0  # left, right, both, right; all lack one
    plan, state = begin(model, 4)
    prompts = np.where(mask == 1, ids[:, :7], 0 if framework != "numpy" else -7)  # no token at all
    logits, state = model.prefill(plan, state, prompts, mask)
    assert state.position == 6  # what all rows lack takes no place
    rows = [list(ids[row, :7][mask[row] == 1]) for row in range(4)]
    for t in range(7, N + 1):
        for row in range(4):
            np.testing.assert_allclose(logits[row], forward(np.asarray([rows[row]]))[0, -1], **TIGHT)
        if t < N:
            logits, state = model.step(plan, state, ids[:, t])
            rows = [[*rows[row], ids[row, t]] for row in range(4)]


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *variants("numpy", "torch", only=("two_layer_softplus_mean", "kernel_heads", "mean_banded", "no_blocks")),
        *variants("jax", only=("kernel_heads",)),
    ],
)
def test_a_conversation_takes_several_prompts(framework, name):
    model, forward, config = model_of(framework, VARIANTS[name])
    ids = random_ids(config)
    expected = forward(ids)
    plan, state = begin(model)
    mask = np.ones((2, 3), int)
    for first, last in ((0, 3), (6, 9)):
        given = mask if first and framework != "jax" else None
        logits, state = model.prefill(plan, state, ids[:, first:last], given)
        np.testing.assert_allclose(logits, expected[:, last - 1], **TIGHT)
        logits, state = model.steps(plan, state, ids[:, last : last + 3])
        np.testing.assert_allclose(logits, expected[:, last : last + 3], **TIGHT)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_beams_are_chosen_copied_and_go_on_by_themselves(framework):
    model, forward, config = model_of(framework, VARIANTS["two_layer_heads"])
    ids = random_ids(config, (3, N))
    plan, state = begin(model, 3)
    _, state = model.prefill(plan, state, ids[:, :5])
    order = np.asarray([2, 0, 0, 1])
    beams, copy = model.reorder(state, order), lm.stream_copy(state)
    expected = forward(ids)[:, 5:]
    np.testing.assert_allclose(model.steps(plan, beams, ids[order, 5:])[0], expected[order], **TIGHT)
    np.testing.assert_allclose(model.steps(plan, state, ids[:, 5:])[0], expected, **TIGHT)
    np.testing.assert_allclose(model.steps(plan, copy, ids[:, 5:])[0], expected, **TIGHT)


@pytest.mark.parametrize(
    ("framework", "name"), [*variants("numpy"), *variants("torch", "jax", only=("later", "mean_banded"))]
)
def test_models_without_position_bias_run_on_and_others_end_with_it(framework, name):
    model, forward, config = model_of(framework, VARIANTS[name])
    ids = random_ids(config, (1, 20))
    plan, state = begin(model, 1, 20)
    if config.position_bias and config.n_layers:
        _, state = model.prefill(plan, state, ids[:, : config.max_len])
        with pytest.raises(ValueError, match=r"position bias ends at max_len=12, and 12 tokens .*position_bias=False"):
            model.step(plan, state, ids[:, 12])
    else:
        _, state = model.prefill(plan, state, ids[:, :3])
        logits, state = model.steps(plan, state, ids[:, 3:])
        np.testing.assert_allclose(logits, forward(ids)[:, 3:], **TIGHT)
        with pytest.raises(ValueError, match="the stream is full: 20 tokens have come and 1 would follow"):
            model.step(plan, state, ids[:, 0])


def test_rows_that_are_left_go_on_for_as_long_as_they_can():
    """The position bias ends a batch with the row of the least padding."""
    model = MODELS["torch"](HEADS)
    plan, state = begin(model, 2, 20)
    ids, mask = random_ids(HEADS, (2, N)), np.ones((2, N), int)
    mask[1, :3] = 0
    _, state = model.prefill(plan, state, ids, mask)
    with pytest.raises(ValueError, match="position bias ends"):
        model.step(plan, state, ids[:, 0])
    _, state = model.steps(plan, model.reorder(state, np.asarray([1])), ids[1:, :3])
    with pytest.raises(ValueError, match="position bias ends"):
        model.step(plan, state, ids[1:, 0])


def test_masks_are_looked_at_where_a_device_holds_them_too(monkeypatch):
    monkeypatch.setattr(arrays, "_is_queued", lambda array: True)
    model = MODELS["numpy"](HEADS)
    plan, state = begin(model)
    ids = random_ids(HEADS)
    with pytest.raises(ValueError, match="has a hole"):
        model.prefill(plan, state, ids[:, :3], np.asarray([[1, 0, 1], [1, 1, 1]]))
    logits, state = model.prefill(plan, state, ids[:, :4], np.asarray([[1, 1, 1, 0], [1, 1, 0, 0]]))
    assert state.position == 3  # nothing is kept of padding that all rows have
    expected = model.logits(ids)
    np.testing.assert_allclose(logits, [expected[0, 2], expected[1, 1]], **TIGHT)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_stream_cannot_take_is_refused(framework):
    model, forward, config = model_of(framework, HEADS)
    ids = random_ids(config)
    plan, state = begin(model)
    other, _ = begin(model)
    mask = np.ones((2, 3), int)
    array = "expected an array, got|must be an array of JAX or NumPy, got|must be a tensor of integers, got"
    integers = "input_ids must be (integers, numbers of tokens, not|an? (array|tensor) of integers, got)"
    for error, words, call in (
        (ValueError, r"input_ids must be \(2, n\) with a token", lambda: model.prefill(plan, state, ids[:, :0])),
        (ValueError, r"input_ids must be \(2, n\)", lambda: model.prefill(plan, state, ids[:1])),
        (ValueError, r"input_ids must be \(2,\)", lambda: model.step(plan, state, ids[:, :1])),
        (ValueError, r"input_ids must be \(2,\)", lambda: model.step(plan, state, ids[:1, 0])),
        (TypeError, array, lambda: model.step(plan, state, 3)),
        (TypeError, array, lambda: model.step(plan, state, [1, 2])),
        (TypeError, array, lambda: model.prefill(plan, state, [[1], [2]])),
        (TypeError, array, lambda: model.prefill(plan, state, ids[:, :1], [[1], [1]])),
        (TypeError, "expected an array, got list", lambda: model.reorder(state, [0, 1])),
        (ValueError, "another plan", lambda: model.step(other, state, ids[:, 0])),
        (ValueError, "another plan", lambda: model.prefill(other, state, ids)),
        (ValueError, "outside the vocabulary", lambda: model.step(plan, state, ids[:, 0] + 99)),
        (TypeError, integers, lambda: model.step(plan, state, ids[:, 0] / 2)),
        (ValueError, "row of padding only", lambda: model.prefill(plan, state, ids[:, :3], mask * [[0], [1]])),
        (ValueError, "has a hole", lambda: model.prefill(plan, state, ids[:, :3], mask * [1, 0, 1])),
        (ValueError, "the stream is full", lambda: model.prefill(plan, state, random_ids(config, (2, 13)))),
        (ValueError, "capacity must be at least 1", lambda: model.plan(0)),
        (ValueError, r"indices must be \(b,\)", lambda: model.reorder(state, np.asarray([[0, 1]]))),
        (ValueError, "rows of the batch, 0 to 1", lambda: model.reorder(state, np.asarray([2]))),
        (TypeError, "indices must be integers", lambda: model.reorder(state, np.asarray([1.0]))),
    ):
        with pytest.raises(error, match=words):
            call()
    logits, state = model.prefill(plan, state, ids[:, :3])  # none of them has changed it
    np.testing.assert_allclose(logits, forward(ids)[:, 2], **TIGHT)
    with pytest.raises(ValueError, match="padding comes before a stream's first token, and 3 have come"):
        model.prefill(plan, state, ids[:, :3], mask * [[0, 1, 1], [1, 1, 1]])


def test_parameters_that_are_missing_are_refused():
    with pytest.raises(ValueError, match="params are 0 arrays"):
        lm.stream_plan({}, HEADS, 3)


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
