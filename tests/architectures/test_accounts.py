"""What models cost: formulas agree with what is counted, and what is counted with what is known."""

import pytest
import torch
from support.architectures import COMPARISONS, MODELS, small_config
from torch import nn

from tmm_lab.evaluation.accounts import cache_bytes, count_flops, count_parameters, peak_bytes, speeds, stored_bytes

SMALL = {"vocab_size": 257, "max_len": 64, "d_model": 64}


class TwoMaps(nn.Module):
    """A model whose costs are known: two linear maps of d channels between tables of 10 tokens."""

    def __init__(self, d):
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(10, d), nn.Linear(d, d), nn.Linear(d, 10, bias=False)

    def forward(self, ids, targets=None):
        logits = self.second(self.first(self.embed(ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize(("batch", "n"), [pytest.param(1, 64, marks=pytest.mark.slow), (3, 48)])
def test_formulas_agree_with_what_is_counted(name, batch, n):
    architecture, config = small_config(name, **SMALL)
    counted = count_flops(architecture.torch_model(config, seed=0), config.vocab_size, batch=batch, n=n)
    formula = architecture.flops(config, n, batch)
    assert formula.forward == pytest.approx(counted.forward, rel=0.02)
    assert formula.training == pytest.approx(counted.training, rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_operations_a_token_are_those_of_training_at_the_length_of_the_context(name):
    architecture, config = small_config(name, **SMALL)
    model = architecture.torch_model(config, seed=0)
    counted = count_flops(model, config.vocab_size, batch=16, n=config.max_len)
    assert architecture.flops_per_token(config) == pytest.approx(counted.training, rel=0.02)


def test_flops_parameters_and_memory_of_a_known_model():
    d, batch, n = 8, 2, 16
    model = TwoMaps(d)
    counted = count_flops(model, 10, batch=batch, n=n)
    assert (counted.forward, counted.training) == (2 * (d * d + 10 * d), 6 * (d * d + 10 * d))
    parameters = count_parameters(model, 10)
    assert (parameters.total, parameters.without_embeddings) == (10 * d + d * d + d + 10 * d, d * d + d)
    # Stored: the inputs of both maps, and the log-probabilities, in float32.
    stored = stored_bytes(model, 10, batch=batch, n=n)
    assert stored == pytest.approx(4 * (2 * d + 10), abs=4)  # and a number of the loss
    # At once, at least: parameters, their gradients and two moments, and what is stored.
    least = 4 * 4 * parameters.total + stored * batch * n
    assert least <= peak_bytes(model, 10, batch=batch, n=n) < 2 * least


def test_transforms_count_5_n_log2_n_and_half_of_it_for_reals():
    class Transforms(TwoMaps):
        def forward(self, ids, targets=None):
            torch.fft.fft(torch.randn(3, 64, dtype=torch.complex64))
            torch.fft.irfft(torch.fft.rfft(torch.randn(3, 64)))
            return super().forward(ids, targets)

    plain, more = (count_flops(model, 10, batch=2, n=4).forward for model in (TwoMaps(8), Transforms(8)))
    assert (more - plain) * 8 == 2 * 3 * 5 * 64 * 6


# Bytes that a text of n tokens leaves: keys and values of d channels, states, or a place of an exact stream.
CACHES = {
    "llama": lambda d, n: 2 * d * n,
    "window": lambda d, n: 2 * d * 8,
    "mamba2": lambda d, n: d * d + 4 * 10 * d,
    "hyena": lambda d, n: d * n + 2 * 3 * d,
    "linear-attention": lambda d, n: d * (d // 4 + 1),
    "masked-mixer": lambda d, n: d * n,
    "tmm": lambda d, n: d * (n - 1),
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_hold_what_they_must(name):
    architecture, config = small_config(name, **SMALL)
    found = cache_bytes(architecture.torch_model(config, seed=0), config.vocab_size, n=32)
    assert found == pytest.approx(2 * 4 * CACHES[name](64, 32), rel=0.1)


def test_speeds_are_those_of_each_model():
    pairs = {name: small_config(name, **SMALL) for name in ("llama", "tmm")}
    models = {name: architecture.torch_model(config, seed=0) for name, (architecture, config) in pairs.items()}
    measured = speeds(models, 257, batch=2, n=32, steps=4, turns=2)
    assert list(measured) == ["llama", "tmm"]
    for speed in measured.values():
        assert 0 < speed.training < speed.prefill
        assert speed.decoding > 0
