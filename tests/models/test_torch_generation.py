"""The PyTorch model one token at a time: modes and modules, precisions, parameters that change, other architectures."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.model_variants import VARIANTS, random_ids, random_params
from support.processes import run_python
from torch import Tensor, nn

from tmm_adapters.generation import Sampling
from tmm_adapters.torch import ContextFullError, LanguageModel
from tmm_adapters.torch.generation import TextGeneration
from tmm_adapters.torch.sampling import sample
from tmm_adapters.torch.streaming import FilterStreaming
from tmm_core import TMMConfig, lm, mix_tokens

HEADS = VARIANTS["heads"]
ENDLESS = VARIANTS["no_position_bias"]
CONFIG = TMMConfig(vocab_size=11, max_len=8, d_model=8, n_layers=2, n_heads=2)
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def model_of(config: TMMConfig, dtype: Any = np.float64) -> LanguageModel:
    return LanguageModel.from_params(random_params(config, dtype), config)


def ids_of(config: TMMConfig, shape: tuple[int, ...] = (2, 12), seed: int = 1) -> Tensor:
    return torch.from_numpy(random_ids(config, shape, seed))


def test_generation_takes_no_memory_for_tokens_that_never_come():
    tokens = model_of(ENDLESS).new_tokens(IDS, 10**12)
    assert [next(tokens).shape for _ in range(3)] == [(2,)] * 3


# --- Precisions and modes ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_dtype_does_not_matter(model, default):
    expected = model.generate(IDS, 5, generator=torch.Generator().manual_seed(0))
    torch.set_default_dtype(default)
    try:
        assert torch.equal(model.generate(IDS, 5, generator=torch.Generator().manual_seed(0)), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_models_that_are_sharded_over_processes_continue_texts_alike(tmp_path):
    script = f"""
        import itertools, os, torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
        from tmm_adapters.torch import LanguageModel
        from tmm_core import TMMConfig

        torch.distributed.init_process_group(
            "gloo", init_method="file://{tmp_path}/store", rank=int(os.environ["RANK"]), world_size=2
        )
        mesh = init_device_mesh("cpu", (2,))
        config = TMMConfig(vocab_size=11, d_model=4, n_layers=2, n_heads=2, max_len=16)
        ids, mask = torch.arange(8).reshape(2, 4), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
        expected = LanguageModel(config).generate(ids, 6, attention_mask=mask, temperature=0)
        for parts, reshard in itertools.product(("blocks", "mixers", "none"), (True, False)):
            model = LanguageModel(config)
            for block in model.blocks:
                if parts != "none":
                    fully_shard(block if parts == "blocks" else block.mix, mesh=mesh, reshard_after_forward=reshard)
            fully_shard(model, mesh=mesh)
            register_fsdp_forward_method(model, "generate")
            for _ in range(2):
                assert torch.equal(model.generate(ids, 6, attention_mask=mask, temperature=0), expected)
                model(ids, labels=ids)["loss"].backward()
        torch.distributed.destroy_process_group()
        """
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda rank: run_python(script, RANK=rank), "01"))


def test_each_module_is_left_in_its_mode(model):
    model.train()
    model.blocks[0].eval()
    model.generate(IDS, 2)
    assert model.training
    assert model.blocks[1].training
    assert not model.blocks[0].training


@pytest.mark.parametrize("change", ["assigned", "replaced", "in place"])
def test_other_parameters_in_place_of_the_plan_s_are_refused(model, change):
    plan = model.stream_plan(8)
    _, state = model.stream_prefill(plan, model.stream_init(plan, 2), IDS)
    if change == "assigned":
        model.load_state_dict(LanguageModel(CONFIG, seed=1).state_dict(), assign=True)
    elif change == "replaced":
        model.blocks[0].mix.lags = copy.deepcopy(model.blocks[0].mix.lags)
    else:
        with torch.no_grad():
            model.blocks[0].mix.lags.mul_(2)
    with pytest.raises(ValueError, match="have changed since the plan was made"):
        model.stream_step(plan, state, IDS[:, 0])


def test_who_is_told_of_tokens_may_change_them(model):
    expected = model.generate(IDS, 4, temperature=0)
    assert torch.equal(model.generate(IDS, 4, temperature=0, on_token=lambda tokens: tokens.zero_()), expected)


def test_texts_are_those_of_the_tokens_that_a_model_of_ones_own_yields():
    class Forever(LanguageModel):
        def new_tokens(self, input_ids, max_new_tokens, *sampling, **options):
            return itertools.repeat(torch.full((len(input_ids),), 7), max_new_tokens)

    assert Forever(CONFIG).generate(IDS[0], 2).tolist() == [1, 2, 3, 4, 7, 7]


@pytest.mark.parametrize("temperature", [1e-320, 1.0, 1e300, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_draws_are_of_tokens_that_are_not_ruled_out(temperature, dtype):
    large = 1e300 if dtype == torch.float64 else 1e30
    logits = torch.tensor([[-large, -torch.inf, large, -torch.inf]], dtype=dtype)
    for u in (0.0, 0.5, 1 - 2.0**-53):
        for top_k, top_p in ((None, 1.0), (1, 1.0), (None, 0.5), (3, 1e-300)):
            uniform = torch.tensor([u], dtype=torch.float64)
            counts = torch.tensor([True])
            token = sample(logits, uniform, Sampling(temperature, top_k, top_p), counts=counts)
            assert int(token) in (0, 2)


def test_plans_of_other_models_are_refused():
    model, other = model_of(HEADS), model_of(HEADS)
    plan = model.stream_plan(12)
    for call in (
        lambda: other.stream_init(plan, 2),
        lambda: other.stream_prefill(plan, model.stream_init(plan, 2), ids_of(HEADS)),
    ):
        with pytest.raises(ValueError, match="the plan belongs to another model"):
            call()


# --- Other architectures ----------------------------------------------------------------------------------------------


class Smoother(FilterStreaming, TextGeneration, nn.Module):
    """Embedding, one filter for all channels, output: a `tmm_core.lm.StreamedModel` of ten lines."""

    vocab_size, longest_text = 7, 20.0

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(7, 4, generator=generator, dtype=torch.float64))
        self.lags = nn.Parameter(torch.randn(1, 30, generator=generator, dtype=torch.float64))

    def checked_tokens(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return input_ids.long(), attention_mask

    def filters(self) -> dict[str, lm.Filter]:
        return {"only": lm.Filter(self.lags, None, 4)}

    def residual_stream(self, input_ids: Tensor, *, mix: Any) -> Tensor:
        return torch.tanh(mix("only", self.table[input_ids]))

    def logits_of(self, x: Tensor) -> Tensor:
        return x @ self.table.T

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.logits_of(self.residual_stream(input_ids, mix=lambda _, x: mix_tokens(self.lags, x)))


class Successor(TextGeneration):
    """A table of what follows each token: a model with a cache of its own, the number of tokens."""

    vocab_size, longest_text = 7, 12.0

    def checked_tokens(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return input_ids, attention_mask

    def stream_plan(self, capacity: int) -> int:
        return capacity

    def stream_init(self, plan: int, batch_size: int) -> int:
        return 0

    def stream_prefill(self, plan: int, state: int, input_ids: Tensor, attention_mask: Any) -> Any:
        return self._after(input_ids[:, -1]), state + input_ids.shape[1]

    def stream_step(self, plan: int, state: int, tokens: Tensor) -> Any:
        assert state < plan
        return self._after(tokens), state + 1

    def stream_reorder(self, state: int, indices: Tensor) -> int:
        return state

    def _after(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot((tokens + 1) % 7, 7).float()


def test_a_model_of_filters_streams_and_generates_by_saying_what_they_are():
    model = Smoother()
    prompt = torch.tensor([[1, 4, 2], [3, 3, 0]])
    text = model.generate(prompt, 15, temperature=0)
    assert torch.equal(text[:, 3:], model(text).argmax(-1)[:, 2:-1])
    with pytest.raises(ContextFullError, match="max_len=20"):
        model.generate(prompt, 30)


def test_a_model_with_a_cache_of_its_own_generates_too():
    text = Successor().generate(torch.tensor([[5], [2]]), 9, temperature=0, eos_token_id=1)
    assert text.tolist() == [[5, 6, 0, 1, 1, 1, 1], [2, 3, 4, 5, 6, 0, 1]]


@pytest.mark.slow
def test_blocks_that_are_compiled_stream_the_same():
    model, ids = model_of(ENDLESS), ids_of(ENDLESS, (2, 9))
    expected = model(ids)["logits"]
    for block in model.blocks:
        block.compile(backend="aot_eager")
    plan = model.stream_plan(9)
    logits, state = model.stream_prefill(plan, model.stream_init(plan, 2), ids[:, :3])
    for t in range(3, 9):
        assert torch.allclose(logits, expected[:, t - 1])
        logits, state = model.stream_step(plan, state, ids[:, t])
