"""The configuration: plain data, checked when made."""

import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from tmm_core import TMMConfig


@pytest.mark.parametrize("name", TMMConfig.presets)
def test_presets_go_through_json_and_pickle(name: str):
    config = TMMConfig.preset(name)
    assert TMMConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config
    again = pickle.loads(pickle.dumps(config))
    assert (again, hash(again)) == (config, hash(config))


def test_presets_take_changes():
    config = TMMConfig.preset("paper", n_layers=2)
    assert config == dataclasses.replace(TMMConfig.preset("paper"), n_layers=2)
    with pytest.raises(LookupError, match="TMMConfig has no preset 'papr': choose one of default, paper, paper-later"):
        TMMConfig.preset("papr")


def test_nothing_can_be_assigned():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TMMConfig().d_model = 3


@pytest.mark.parametrize(
    "fields",
    [
        {"vocab_size": 0},
        {"max_len": 0},
        {"d_model": -4},
        {"kernel_size": 0},
        {"n_layers": -1},
        {"n_heads": -1},
        {"n_heads": 3},
        {"n_lags": 0},
        {"d_mlp": 0},
        {"norm": np.asarray(["layer", "rms"])},
        {"mean": True},
        {"kernel_size": 2, "softplus": True, "mean": True},
        {"embed_std": -1.0},
    ],
)
def test_what_cannot_be_a_model_is_refused(fields: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(fields))):
        TMMConfig(**fields)
