"""Texts that are read in parts give the logits of the whole, by every architecture: what generation rests on."""

import pytest
import torch
from support.architectures import MODELS, small_model

from tmm_core.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

# Filters and streams of transformers' cache are in float32.
CLOSE = {"rtol": 0, "atol": 2e-6}
N = 33


@pytest.fixture(params=MODELS)
def model(request):
    return small_model(request.param)


@pytest.fixture
def ids():
    return torch.randint(50, (4, N), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits_of(model, rows):
    """Return the logits after each row, all of it computed at once."""
    return torch.cat([model(row[None])["logits"][:, -1] for row in rows])


def begun(model, batch_size=4, capacity=40):
    plan = model.stream_plan(capacity)
    return plan, model.stream_init(plan, batch_size)


@pytest.mark.parametrize("lengths", [(17, *[1] * 9, 7), (1, 1, 31), (5, 11, 1, 16)])
def test_prompts_and_steps_give_the_logits_of_the_whole(model, ids, lengths):
    plan, state = begun(model)
    end = 0
    for part in ids.split(lengths, dim=1):
        end += part.shape[1]
        if part.shape[1] > 1:
            logits, state = model.stream_prefill(plan, state, part)
        else:
            logits, state = model.stream_step(plan, state, part[:, 0])
        torch.testing.assert_close(logits, logits_of(model, ids[:, :end]), **CLOSE)


def padded(ids):
    """Return prompts of four lengths, padded on the left, on the right and at both ends, with their mask."""
    mask = torch.ones(4, 20, dtype=torch.long)
    mask[0, :9] = mask[1, 14:] = mask[2, :3] = mask[2, 17:] = mask[3, 11:] = 0
    return torch.where(mask == 1, ids[:, :20], 0), mask, [ids[row, :20][mask[row] == 1] for row in range(4)]


def test_padding_at_either_end_is_as_if_it_were_not_there(model, ids):
    plan, state = begun(model)
    prompts, mask, rows = padded(ids)
    logits, state = model.stream_prefill(plan, state, prompts, mask)
    torch.testing.assert_close(logits, logits_of(model, rows), **CLOSE)
    logits, state = model.stream_step(plan, state, ids[:, 20])
    rows = [torch.cat([row, ids[i, 20:21]]) for i, row in enumerate(rows)]
    torch.testing.assert_close(logits, logits_of(model, rows), **CLOSE)
    logits, state = model.stream_prefill(plan, state, ids[:, 21:26], torch.ones(4, 5))
    rows = [torch.cat([row, ids[i, 21:26]]) for i, row in enumerate(rows)]
    torch.testing.assert_close(logits, logits_of(model, rows), **CLOSE)


def test_texts_are_chosen_copied_and_go_on_by_themselves(model, ids):
    plan, state = begun(model)
    prompts, mask, rows = padded(ids)
    _, state = model.stream_prefill(plan, state, prompts, mask)
    order = torch.tensor([2, 0, 0, 1, 2])
    chosen = model.stream_reorder(state, order)
    few = model.stream_reorder(chosen, torch.tensor([3]))
    for stream, origin in ((chosen, order), (few, order[3:4]), (state, torch.arange(4))):
        for t in (20, 21):
            logits, stream = model.stream_step(plan, stream, ids[: len(origin)].new_full((len(origin),), t))
        expected = [torch.cat([rows[i], torch.tensor([20, 21])]) for i in origin]
        torch.testing.assert_close(logits, logits_of(model, expected), **CLOSE)


def test_what_a_stream_cannot_take_is_refused_and_leaves_it_as_it_is(model, ids):
    plan, state = begun(model, capacity=10)
    mask = torch.ones(4, 3, dtype=torch.long)
    mask[0, 0] = 0
    for refused, message in (
        (lambda: model.stream_prefill(plan, state, ids[:2, :3]), r"input_ids must be \(4, n\)"),
        (lambda: model.stream_prefill(plan, state, ids[:, :0]), "a token or more"),
        (lambda: model.stream_prefill(plan, state, ids[:, :3] + 50), "outside the vocabulary"),
        (lambda: model.stream_step(plan, state, ids[:, 0] - 50), "outside the vocabulary"),
        (lambda: model.stream_prefill(plan, state, ids[:, :3], mask * 0), "row of padding only"),
        (lambda: model.stream_prefill(plan, state, ids[:, :11]), "11 would follow"),
        (lambda: model.stream_reorder(state, torch.tensor([0, 4])), "rows of the batch, 0 to 3"),
        (lambda: model.stream_reorder(state, torch.tensor([-1])), "rows of the batch, 0 to 3"),
    ):
        with pytest.raises(InputError, match=message):
            refused()
    with pytest.raises(TypeError, match="indices must be integers"):
        model.stream_reorder(state, torch.tensor([0.0]))
    _, state = model.stream_prefill(plan, state, ids[:, :4])
    with pytest.raises(InputError, match="padding comes before a"):
        model.stream_prefill(plan, state, ids[:, 4:7], mask)
    logits, state = model.stream_prefill(plan, state, ids[:, 4:10])
    torch.testing.assert_close(logits, logits_of(model, ids[:, :10]), **CLOSE)
    with pytest.raises(InputError, match="1 would follow"):
        model.stream_step(plan, state, ids[:, 10])


def test_tokens_outside_the_vocabulary_are_refused(model, ids):
    for options in ({}, {"targets": ids}, {"segment_ids": torch.zeros_like(ids)}):
        with pytest.raises(InputError, match="token 57 is outside the vocabulary of 50 tokens"):
            model(torch.full_like(ids, 57), **options)
