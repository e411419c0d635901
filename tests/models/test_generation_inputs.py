"""Generation in PyTorch under conditions that are legal but rare."""

import copy

import pytest
import torch

from tmm_adapters.torch import ContextFullError, LanguageModel
from tmm_adapters.torch.sampling import sample
from tmm_core import TMMConfig

CONFIG = TMMConfig(vocab_size=11, max_len=8, d_model=8, n_layers=2, n_heads=2)
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.fixture
def model():
    return LanguageModel(CONFIG)


def test_more_tokens_than_memory_has_room_for_end_with_the_position_bias(model):
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 1]])
    with pytest.raises(ContextFullError):
        model.generate(IDS, 10**12)
    assert len(list(model.new_tokens(IDS, 10**12, attention_mask=mask, end_where_full=True))) == 8


def test_the_default_device_does_not_matter(model):
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    expected = model.generate(IDS, 3, temperature=0, attention_mask=mask)
    with torch.device("meta"):
        assert torch.equal(model.generate(IDS, 3, temperature=0, attention_mask=mask), expected)
        assert model.generate(IDS, 3, generator=torch.Generator("cpu")).shape == (2, 7)


def test_each_module_is_left_in_its_mode(model):
    model.train()
    model.blocks[0].eval()
    model.generate(IDS, 2)
    assert model.training
    assert model.blocks[1].training
    assert not model.blocks[0].training


@pytest.mark.parametrize("change", ["assigned", "replaced"])
def test_other_parameters_in_place_of_the_plan_s_are_refused(model, change):
    plan = model.stream_plan(8)
    _, state = model.stream_prefill(plan, model.stream_init(plan, 2), IDS)
    if change == "assigned":
        model.load_state_dict(LanguageModel(CONFIG, seed=1).state_dict(), assign=True)
    else:
        model.blocks[0].mix.lags = copy.deepcopy(model.blocks[0].mix.lags)
    with pytest.raises(ValueError, match="have changed since the plan was made"):
        model.stream_step(plan, state, IDS[:, 0])


def test_who_is_told_of_tokens_may_change_them(model):
    expected = model.generate(IDS, 4, temperature=0)
    assert torch.equal(model.generate(IDS, 4, temperature=0, on_token=lambda tokens: tokens.zero_()), expected)


@pytest.mark.parametrize("temperature", [1e-320, 1.0, 1e300, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_draws_are_of_tokens_that_are_not_ruled_out(temperature, dtype):
    large = 1e300 if dtype == torch.float64 else 1e30
    logits = torch.tensor([[-large, -torch.inf, large, -torch.inf]], dtype=dtype)
    for u in (0.0, 0.5, 1 - 2.0**-53):
        for top_k, top_p in ((None, 1.0), (1, 1.0), (None, 0.5), (3, 1e-300)):
            uniform = torch.tensor([u], dtype=torch.float64)
            counts = torch.tensor([True])
            token = sample(logits, uniform, counts=counts, temperature=temperature, top_k=top_k, top_p=top_p)
            assert int(token) in (0, 2)
