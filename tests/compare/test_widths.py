"""Models of every architecture can be made as expensive as a TMM, in each account of the cost."""

from __future__ import annotations

import pytest

from tmm_adapters.architecture import architectures, get_architecture
from tmm_lab.compare.models import TOLERANCES, build_model, equal_models
from tmm_lab.compare.options import Arm, ComparisonOptions
from tmm_lab.compare.widths import at_cost

NAMES = sorted(set(architectures()) - {"tmm"})


def cost_of(name):
    return lambda config: getattr(get_architecture(config.model_type), name)(config)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("equal", "method"), [("parameters", "n_parameters"), ("flops", "flops_per_token")])
@pytest.mark.parametrize("d_model", [128, 200])
def test_models_cost_what_the_reference_does(name, equal, method, d_model):
    options = ComparisonOptions(equal=equal, d_model=d_model)
    arms = [Arm(label="reference", architecture="tmm"), Arm(label="other", architecture=name)]
    models = equal_models(arms, options, 257, "cpu")
    reference, other = (cost_of(method)(config) for config in models.values())
    assert abs(other / reference - 1) <= TOLERANCES[options.equal]
    assert models["reference"].d_model == d_model


@pytest.mark.parametrize("name", ["llama", "masked-mixer"])
def test_memory_is_that_of_a_training_step(name):
    from tmm_lab.evaluation.accounts import peak_bytes

    options = ComparisonOptions(equal="memory", d_model=32, n_layers=1, max_len=32, batch=2)
    arms = [Arm(label="reference", architecture="tmm"), Arm(label="other", architecture=name)]
    models = equal_models(arms, options, 257, "cpu")
    reference, other = (peak_bytes(build_model(config, "cpu"), 257, batch=2, n=32) for config in models.values())
    assert abs(other / reference - 1) <= TOLERANCES[options.equal]


def test_equal_width_is_equal_width():
    options = ComparisonOptions(equal="width", d_model=96)
    models = equal_models(
        [Arm(label=name, architecture=name) for name in ("tmm", "llama", "hyena")], options, 257, "cpu"
    )
    assert {config.d_model for config in models.values()} == {96}


def test_a_width_that_cannot_be_is_refused_with_the_model():
    options = ComparisonOptions(equal="width", d_model=100)  # eight heads of a TMM do not divide it
    arms = [Arm(label=name, architecture=name) for name in ("hyena", "tmm")]
    with pytest.raises(ValueError, match="tmm: n_heads=8 does not divide d_model=100"):
        equal_models(arms, options, 257, "cpu")


def test_what_cannot_be_reached_is_refused_with_the_nearest():
    config = get_architecture("tmm").config_class.preset("default")
    with pytest.raises(
        ValueError, match=r"no tmm comes within 2% of that cost: the nearest, of 8 channels, costs \d+ times"
    ):
        at_cost(config, cost_of("n_parameters"), 50, tolerance=0.02)


@pytest.mark.parametrize("equal", ["parameters", "flops", "memory", "seconds"])
def test_a_model_that_cannot_be_as_cheap_is_refused_by_name_in_each_account(equal, monkeypatch):
    from tmm_lab.compare import models

    monkeypatch.setattr(models, "_cost", lambda *arguments: lambda config: 1000.0 + config.d_model)
    options = ComparisonOptions(equal=equal, d_model=8, n_layers=1)
    reference = Arm(label="reference", architecture="tmm")
    monkeypatch.setattr(models, "at_cost", lambda config, cost, target, **more: at_cost(config, cost, 500.0, **more))
    with pytest.raises(ValueError, match=rf"other at equal {equal}: no hyena .* costs 2 times .*--d-model"):
        equal_models([reference, Arm(label="other", architecture="hyena")], options, 257, "cpu")
