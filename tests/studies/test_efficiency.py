"""The study of training efficiency compares what it says."""

from __future__ import annotations

import pytest

from tmm_adapters.architecture import get_architecture
from tmm_lab.compare.models import equal_models
from tmm_lab.studies import efficiency


@pytest.mark.parametrize("options", [efficiency.QUICK, efficiency.FULL], ids=["quick", "full"])
def test_models_are_of_equal_flops_and_the_authors_pair_of_half_the_width(options):
    arms = efficiency.arms(options)
    models = equal_models(arms, options, 257, "cpu")
    flops = {label: get_architecture(config.model_type).flops_per_token(config) for label, config in models.items()}
    for arm in arms:
        if arm.solved:
            assert flops[arm.label] == pytest.approx(flops["TMM"], rel=0.02)
    wide = models["TMM twice as wide as Hyena"].d_model
    assert wide == pytest.approx(2 * models["Hyena"].d_model, rel=0.02)
    assert not {"llama", "masked-mixer"} & {arm.architecture for arm in arms if arm.decides}, "of quadratic cost"
