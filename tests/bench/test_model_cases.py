"""What is measured of whole models: baselines compute what they should, and what is timed is what is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import _decoders, decoding, loop, packing, training
from benchmarks._decoders import JoinedDecoder, Text, Transformer, model_of
from benchmarks.decoding import Decoding
from support.requirements import import_or_skip

import tmm_core
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig
from tmm_lab.bench import Schedule

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = Decoding(64, Schedule(0.0, 3), "numpy", heads=2, channels=8, blocks=2, vocabulary=11)
CONFIG = TMMConfig(d_model=8, n_layers=2, n_heads=2, vocab_size=11, max_len=24)


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    with tmm_core.use_backend("numpy"):
        yield


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


# --- Decoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"n_heads": 0}, {"n_lags": 5}, {"mix_layers": 2}, {"position_bias": False}])
def test_joined_decode_gives_the_logits_of_the_model(changes: dict[str, Any]) -> None:
    model, ids = LanguageModel(replace(CONFIG, **changes)).eval().requires_grad_(False), tokens(3, 24)
    decoder = JoinedDecoder(model)
    logits = torch.stack([decoder.step(ids[:, t]) for t in range(24)], dim=1)
    torch.testing.assert_close(logits, model(ids)["logits"], rtol=1e-4, atol=1e-5)


def test_joined_decode_can_begin_late() -> None:
    decoder = JoinedDecoder(model_of(CONFIG))
    decoder.begin_after(7)
    decoder.step(torch.tensor([1]))
    assert {history.shape for histories in decoder.histories.values() for history in histories} == {(1, 8, 4)}


@pytest.mark.parametrize("prompt", [1, 9])
def test_the_transformer_gives_the_same_logits_with_its_cache_as_without(prompt: int) -> None:
    """And an attention written out gives them, too."""
    model, ids = model_of(CONFIG, Transformer), tokens(2, 20)
    cache = model.new_cache(2, 24)
    logits = [model(ids[:, :prompt], cache)]
    logits += [model(ids[:, t : t + 1], cache, t) for t in range(prompt, 20)]
    for t, found in enumerate(logits, prompt):
        torch.testing.assert_close(found, written_out(model, ids[:, :t]), rtol=1e-4, atol=1e-5)


def written_out(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    """Return the Transformer's logits after the last token by softmax(q k' / sqrt(d/h)) v, a head at a time."""
    n, d, heads = ids.shape[1], 8, 2
    x = model.embed(ids) + model.positions.weight[:n]
    later = torch.ones(n, n).triu(1).bool()
    for i, attention in enumerate(model.attentions):
        q, k, v = attention.qkv(model.attention_norms[i](x)).split(d, dim=-1)
        parts = []
        for head in range(heads):
            own = slice(head * d // heads, (head + 1) * d // heads)
            scores = q[..., own] @ k[..., own].transpose(1, 2) / (d / heads) ** 0.5
            parts.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v[..., own])
        x = x + attention.out(torch.cat(parts, dim=-1))
        x = x + model.mlps[i](model.mlp_norms[i](x))
    return model.unembed(x[:, -1])


def test_a_text_that_mixing_alone_took_on_goes_on_as_if_written() -> None:
    """What it keeps is what steps leave, so that the next token meets the same tiles."""
    model = model_of(replace(CONFIG, position_bias=False))
    inputs = torch.randn(22, 1, 8, generator=torch.Generator().manual_seed(0))
    text = Text(model, 40, "numpy")
    text.mix(*inputs[:21])
    assert text.state.position == 21
    for name, (lags, *_) in model.filters().items():
        y, _ = text.plan.layers[name].step(text.state.caches[name], 21, 21, None, inputs[21])
        torch.testing.assert_close(y[0], tmm_core.mix_tokens(lags, inputs[:, 0])[-1], rtol=1e-4, atol=1e-5)
    other = Text(model, 40, "numpy")
    other.mix_to(21)
    assert other.step().shape == (1, 11)
    assert other.state.position == 22


# --- Decoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", decoding.BASELINES)
def test_every_baseline_of_decoding_takes_turns(name: str) -> None:
    ratios = decoding.BASELINES[name](SMALL)()
    assert len(ratios) >= 2
    assert min(ratios) > 0


def test_caches_hold_an_entry_a_time_and_channel() -> None:
    sizes = [decoding.cache_bytes(SMALL, whose) for whose in decoding.Cache.params[1]]
    assert sizes == [64 * 8 * 4, 32 * 8 * 4, 2 * 64 * 8 * 4]


@pytest.mark.parametrize("n", [16, 17, 64])
def test_short_texts_leave_some_turns(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    benchmark = decoding.Decode()
    benchmark.case = replace(SMALL, n=n)
    assert len(benchmark.track_token(n)["samples"]) >= 2
    with pytest.raises(NotImplementedError, match="16 tokens or more"):
        Decoding(15)


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of all steps of texts."""
    stepped = []
    step = Text.step

    def noted(text: Text) -> torch.Tensor:
        stepped.append(text.state.position)
        return step(text)

    monkeypatch.setattr(_decoders.Text, "step", noted)
    return stepped


def test_last_tokens_are_held_against_as_many_first_ones(positions: list[int]) -> None:
    assert len(decoding.first_tokens(replace(SMALL, n=160))()) == 4
    assert sorted(positions) == [*range(80), *range(80, 160)]


def test_the_slowest_step_is_that_of_the_largest_tile(positions: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tile is added by the step after which the largest power of two of tokens below n have come."""
    times = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(decoding, "mean_seconds", lambda call, count: (call(), next(times))[1])
    assert decoding.slowest_step(SMALL) == 2.0
    assert positions == [30, 31] * 3


# --- Training and packing ---------------------------------------------------------------------------------------------


def test_training_steps_with_the_mixing_replaced_and_in_jax() -> None:
    import_or_skip("jax")
    ours = training.torch_step(CONFIG, 24)
    no_mixing, dense, in_jax = (make(CONFIG, 24) for make in training.BASELINES.values())
    first = ours()
    assert dense() == pytest.approx(first, abs=1e-5), "the same model, by a matrix"
    assert in_jax() == pytest.approx(first, abs=1e-5), "the same model, in JAX"
    assert abs(no_mixing() - first) > 1e-5, "another model"
    second = ours()
    assert second < first, "it learns"
    assert in_jax() == pytest.approx(second, abs=1e-6), "and JAX with it"
    with pytest.raises(NotImplementedError, match="16384 rows"):
        training.dense_step(training.model_config(16384, 4), 8192)


@pytest.mark.parametrize("bias", [True, False])
def test_dense_mixing_agrees_with_the_definition(bias: bool) -> None:
    rng = np.random.default_rng(0)
    w, x, b = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, 9), (3, 7, 4), (2, 9)))
    b = b if bias else None
    torch.testing.assert_close(training.dense_mixing(w, x, b), tmm_core.mix_tokens(w, x, b, backend="array_api"))


def test_documents_are_of_a_few_hundred_tokens() -> None:
    ids = packing.documents(8, 512)
    assert ids.shape == (8, 512)
    assert set(np.diff(ids.reshape(-1)).tolist()) == {0, 1}
    lengths = np.bincount(ids.reshape(-1))[:-1]
    assert packing.SHORTEST <= lengths.min() <= lengths.max() < packing.LONGEST
    assert len(lengths) > 8


def test_packed_steps_keep_documents_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is the mean over that of each document by itself; joined, each sees those before it."""
    monkeypatch.setattr(packing, "SHORTEST", 4)
    monkeypatch.setattr(packing, "LONGEST", 9)
    monkeypatch.setitem(packing.MODELS, "small", CONFIG)
    monkeypatch.setattr(packing, "BACKEND", "numpy")
    benchmark = packing.PackingAgainst()
    benchmark.schedule, benchmark.tokens = Schedule(0.0, 2), 48
    benchmark.setup(24, "small")
    packed, joined = benchmark.ours(), benchmark.theirs()
    model, ids = LanguageModel(CONFIG), torch.from_numpy(training.token_ids(CONFIG, 48))
    numbers = torch.from_numpy(packing.documents(2, 24))
    documents = [ids[row, numbers[row] == number] for row in range(2) for number in numbers[row].unique()]
    alone = [(len(own) - 1, model(own[None], labels=own[None])["loss"].item()) for own in documents if len(own) > 1]
    assert packed == pytest.approx(sum(k * loss for k, loss in alone) / sum(k for k, _ in alone), rel=1e-5)
    assert abs(packed - joined) > 1e-4
    assert len(benchmark.track_step(24, "small")["samples"]) == 2


def test_both_loops_train_the_same_model_for_as_many_steps() -> None:
    import_or_skip("accelerate")
    benchmark = loop.LoopAgainst()
    benchmark.steps, benchmark.turns = 2, 2
    benchmark.setup("tmm")
    try:
        loops = benchmark.loops
        ours, theirs = loops.trainer.parameters(), loops.model.state_dict()
        assert all(np.array_equal(theirs[name], value) for name, value in ours.items())
        before = {name: value.copy() for name, value in ours.items()}
        ratios = benchmark.track_steps("tmm")["samples"]
        assert len(ratios) == 2
        assert min(ratios) > 0
        assert loops.state.step == 2 * 3
        for after in (loops.trainer.parameters(), theirs):
            assert any(not np.array_equal(after[name], value) for name, value in before.items())
    finally:
        benchmark.teardown("tmm")
