"""What models cost: formulas agree with what is counted, and what is counted with what is known."""

import pytest
import torch
from torch import nn

from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig, lm
from tmm_lab.architectures.hyena import Hyena, HyenaTuned
from tmm_lab.architectures.linear_attention import LinearAttention
from tmm_lab.architectures.llama import Llama
from tmm_lab.architectures.mamba2 import Mamba2
from tmm_lab.architectures.masked_mixer import MaskedMixer
from tmm_lab.architectures.window import Window
from tmm_lab.evaluation.accounts import cache_bytes, count_flops, count_parameters, peak_bytes, speeds, stored_bytes

SMALL = {"max_len": 64, "d_model": 64, "n_layers": 2}
ARCHITECTURES = {
    "llama": (Llama, {}),
    "window": (Window, {"window": 8}),
    "mamba2": (Mamba2, {}),
    "hyena": (Hyena, {}),
    "hyena-tuned": (HyenaTuned, {}),
    "linear-attention": (LinearAttention, {}),
    "linear-attention-exp": (LinearAttention, {"features": "exp"}),
    "masked-mixer": (MaskedMixer, {}),
    "masked-mixer-heads": (MaskedMixer, {"n_heads": 4, "kernel_size": 2}),
}


class TwoMaps(nn.Module):
    """A model whose costs are known: two linear maps of d channels between tables of 10 tokens."""

    def __init__(self, d):
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(10, d), nn.Linear(d, d), nn.Linear(d, 10, bias=False)

    def forward(self, ids, targets=None):
        logits = self.second(self.first(self.embed(ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("batch", "n"), [(1, 64), (3, 48)])
def test_formulas_agree_with_what_is_counted(name, batch, n):
    architecture, options = ARCHITECTURES[name]
    config = architecture().preset(**SMALL, **options)
    counted = count_flops(architecture().torch_model(config, seed=0), config.vocab_size, batch=batch, n=n)
    formula = architecture().flops(config, n, batch)
    assert formula.forward == pytest.approx(counted.forward, rel=0.02)
    assert formula.training == pytest.approx(counted.training, rel=0.02)


def test_the_formula_of_a_tmm_agrees_with_what_is_counted():
    config = TMMConfig.preset("default")
    counted = count_flops(LanguageModel(config), config.vocab_size, batch=4, n=config.max_len)
    assert lm.flops_per_token(config) == pytest.approx(counted.training, rel=0.02)


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
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_hold_what_they_must(name):
    architecture, options = ARCHITECTURES[name][0](), ARCHITECTURES[name][1]
    config = architecture.preset(**SMALL, **options)
    found = cache_bytes(architecture.torch_model(config, seed=0), config.vocab_size, n=32)
    assert found == pytest.approx(2 * 4 * CACHES[name](64, 32), rel=0.1)


def test_a_stream_of_a_tmm_holds_a_number_for_each_place_to_come_and_channel():
    config = TMMConfig(d_model=64, n_layers=2, max_len=64)
    assert cache_bytes(LanguageModel(config), config.vocab_size, n=32) == 2 * 4 * 64 * (32 - 1)


def test_speeds_are_those_of_each_model():
    models = {
        "llama": Llama().torch_model(Llama().preset(**SMALL), seed=0),
        "tmm": LanguageModel(TMMConfig(d_model=64, n_layers=2, max_len=64)),
    }
    measured = speeds(models, 257, batch=2, n=32, steps=4, turns=2)
    assert list(measured) == ["llama", "tmm"]
    for speed in measured.values():
        assert 0 < speed.training < speed.prefill
        assert speed.decoding > 0
