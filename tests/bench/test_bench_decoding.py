"""Benchmarks of decoding and of packing: rivals compute what they should, and what is timed is what is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tmm_core
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig
from tmm_lab.bench import decoders, decoding, figures, packing
from tmm_lab.bench.decoders import JoinedDecoder, Text, Transformer, model_of
from tmm_lab.bench.decoding import Decoding
from tmm_lab.bench.figures import Figure
from tmm_lab.bench.tables import heading, table_row
from tmm_lab.bench.topics import TOPICS, Task
from tmm_lab.bench.turns import Pace, Ratio
from tmm_lab.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = Decoding(64, 2, "numpy", Pace(0.0, 3), channels=8, blocks=2, vocabulary=11)
CONFIG = TMMConfig(d_model=8, n_layers=2, n_heads=2, vocab_size=11, max_len=24)


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    with tmm_core.use_backend("numpy"):
        yield


@pytest.mark.parametrize("changes", [{}, {"n_heads": 0}, {"n_lags": 5}, {"mix_layers": 2}, {"position_bias": False}])
def test_joined_decode_gives_the_logits_of_the_model(changes: dict[str, Any]) -> None:
    model = LanguageModel(replace(CONFIG, **changes)).eval().requires_grad_(False)
    tokens = torch.randint(11, (3, 24), generator=torch.Generator().manual_seed(0))
    decoder = JoinedDecoder(model)
    logits = torch.stack([decoder.step(tokens[:, t]) for t in range(24)], dim=1)
    torch.testing.assert_close(logits, model(tokens)["logits"], rtol=1e-4, atol=1e-5)


def test_joined_decode_can_begin_late() -> None:
    decoder = JoinedDecoder(model_of(CONFIG))
    decoder.begin_after(7)
    decoder.step(torch.tensor([1]))
    decoder.mix(torch.ones(1, 8))
    assert {history.shape for layer in decoder.layers.values() for history in layer.history} == {(1, 9, 4)}


@pytest.mark.parametrize("prompt", [1, 9])
def test_the_transformer_gives_the_same_logits_with_its_cache_as_without(prompt: int) -> None:
    """And an attention written out gives them, too."""
    model = model_of(CONFIG, Transformer)
    tokens = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(2, 24)
    logits = [model(tokens[:, :prompt], cache)]
    logits += [model(tokens[:, t : t + 1], cache, t) for t in range(prompt, 20)]
    for t, found in enumerate(logits, prompt):
        torch.testing.assert_close(found, written_out(model, tokens[:, :t]), rtol=1e-4, atol=1e-5)


def written_out(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Return the Transformer's logits after the last token by softmax(q k' / sqrt(d/h)) v, a head at a time."""
    n, d, heads = tokens.shape[1], 8, 2
    x = model.embed(tokens) + model.positions.weight[:n]
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
    """Its tapes hold what steps leave there, so that the next token meets the same tiles."""
    model = model_of(replace(CONFIG, position_bias=False))
    inputs = torch.randn(22, 1, 8, generator=torch.Generator().manual_seed(0))
    text = Text(model, 40, "numpy")
    seconds = text.mix_to(20, inputs)
    assert seconds.shape == (20,)
    assert (seconds > 0).all()
    text.mix(inputs[20])
    later = text.copy()
    assert text.state.position == later.state.position == 21
    for name, (lags, _) in model.filters().items():
        y, _ = tmm_core.stream_step(text.plan.layers[name], text.state.layers[name], inputs[21])
        whole = tmm_core.mix_tokens(lags, inputs[:, 0])
        torch.testing.assert_close(y[0], whole[-1], rtol=1e-4, atol=1e-5)
    assert [state.at for state in later.state.layers.values()] == [21, 21]
    assert later.step().shape == (1, 11)


@pytest.mark.parametrize("what", decoding.MEASURED)
def test_everything_can_be_measured(what: str) -> None:
    found = decoding.measure_decoding(SMALL, what)
    if isinstance(found, Ratio):
        assert min(found.ours, found.theirs, *found.turns) > 0
    sizes = {
        "cache of a layer": 64 * 8 * 4,
        "cache of a layer after n/2": 32 * 8 * 4,
        "Transformer's cache of a layer": 2 * 64 * 8 * 4,
    }
    assert found == sizes[what] if what in sizes else not isinstance(found, int)


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of all steps of texts."""
    stepped = []
    step = Text.step

    def noted(text: Text) -> torch.Tensor:
        stepped.append(text.state.position)
        return step(text)

    monkeypatch.setattr(decoders.Text, "step", noted)
    return stepped


def test_last_tokens_are_held_against_as_many_first_ones(positions: list[int]) -> None:
    case = replace(SMALL, n=160)
    assert len(decoding.first_tokens(case).turns) == 4
    assert sorted(positions) == [*range(80), *range(80, 160)]


def test_the_slowest_step_is_that_of_the_largest_tile(positions: list[int]) -> None:
    """The tile is added by the step after which the largest power of two of tokens below n have come."""
    times = iter([3.0, 1.0, 2.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "mean_of", lambda call, count: (call(), next(times))[1])
        assert decoding.slowest_step(SMALL) == 2.0
        assert positions == [30, 31] * 3


def test_a_long_text_of_theirs_takes_the_mean_of_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is late by as much as tiles add to a token, whoever measures."""
    monkeypatch.setattr(Decoding, "turns", lambda *_: Ratio.of([1.0] * 3, [4.0] * 3))
    began = []
    monkeypatch.setattr(decoding, "_joined", lambda text, count: began.append((text.state.position, count)))
    mix_to = Text.mix_to

    def ten_tiles(text: Text, position: int) -> Any:
        seconds = mix_to(text, position)
        seconds[:] = 0.5
        seconds[-2:] = 32.5
        return seconds

    monkeypatch.setattr(decoders.Text, "mix_to", ten_tiles)
    found = decoding.joined_run(SMALL)
    assert (found.ours, found.theirs, found.median) == (2.0, 4.0, 2.0)
    assert began == [(32, 32)]


# Packing


def test_documents_are_of_a_few_hundred_tokens() -> None:
    ids = packing.documents(8, 512)
    assert ids.shape == (8, 512)
    steps = ids.flatten().diff()
    assert set(steps.tolist()) == {0, 1}
    lengths = ids.flatten().bincount()[:-1]
    assert lengths.min() >= packing.SHORTEST
    assert lengths.max() < packing.LONGEST
    assert len(lengths) > 8


def test_packed_steps_keep_documents_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is that of each document by itself; joined, each sees those before it."""
    monkeypatch.setattr(packing, "SHORTEST", 4)
    monkeypatch.setattr(packing, "LONGEST", 9)
    packed, joined = (packing.packed_step(CONFIG, 48, packed=packed)() for packed in (True, False))
    model = LanguageModel(CONFIG)
    tokens, targets = torch.randint(11, (2, 2, 24), generator=torch.Generator().manual_seed(0))
    ids = packing.documents(2, 24)
    alone = [
        model(tokens[row, own][None], targets=targets[row, own][None])["loss"] * own.sum() / 48
        for row in range(2)
        for own in (ids[row] == number for number in ids[row].unique())
    ]
    assert packed == pytest.approx(float(sum(alone).detach()), rel=1e-5)
    assert abs(packed - joined) > 1e-4


def test_packing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACKED_MODELS", {"small": CONFIG})
    found = packing.compare_packing(32, "small", "numpy", Pace(0.0, 2), 32)
    assert len(found.turns) == 2


# Tables


def test_columns_with_times_of_their_own_are_lines() -> None:
    assert len(heading("decoding")) == 2
    ratio = Ratio.of([0.01, 0.01], [0.02, 0.03])

    def cells(line: str) -> list[str]:
        return [cell.strip() for cell in line.strip("|").split("|")]

    assert cells(heading("decoding")[0]) == ["n", "against", "times as fast", "ours", "theirs"]
    task = Task("decoding", 512, 4, "Transformer", "numba")
    expected = ["512", "Transformer", "2.5 (2.2 to 2.8)", "10.000 ms", "25.000 ms"]
    assert cells(table_row([Figure(task, ratio=ratio)])) == expected
    assert cells(table_row([Figure(task, seconds=0.5)])) == ["512", "Transformer", "", "500.000 ms", ""]
    assert cells(table_row([Figure(task, bytes=2**21)])) == ["512", "Transformer", "", "2.0 MiB", ""]
    assert cells(table_row([Figure(task, missing="no torch")])) == ["512", "Transformer", "", "n/a", ""]


def test_the_command_says_how_it_measures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(figures, "_measured", lambda _, task, *__: Figure(task, seconds=0.5))
    assert main(["bench", "decoding", "--backend", "numpy", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert said.count(TOPICS["decoding"].note) == 1
    assert said.count("500.000 ms") == len(figures.plan(["decoding"], None, "numpy"))


def test_what_takes_long_is_measured_where_it_was_asked_for() -> None:
    """Each line is a row of its own, and everything is measured at some length."""
    rows = figures.plan(["decoding"], None, "numba")
    assert all(len(row) == 1 for row in rows)
    usual = {(row[0].n, row[0].column) for row in rows}
    assert {column for _, column in usual} == set(decoding.MEASURED)
    assert (512, "our first tokens") not in usual
    assert {(32768, "our first tokens"), (512, "authors' decode"), (8192, "authors' decode")} <= usual
    assert len(figures.plan(["decoding"], [2048], "numba")) == len(decoding.MEASURED)
    assert TOPICS["packing"].columns == tuple(packing.PACKED_MODELS)
