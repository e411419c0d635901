"""The configuration: plain data, checked when made."""

import dataclasses
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from tmm_core import TMMConfig
from tmm_core.config import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_json_and_pickle(name: str):
    config = TMMConfig.preset(name)
    assert TMMConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config
    again = pickle.loads(pickle.dumps(config))
    assert (again, hash(again)) == (config, hash(config))


def test_presets_take_changes():
    config = TMMConfig.preset("paper", n_layers=2)
    assert config == dataclasses.replace(TMMConfig.preset("paper"), n_layers=2)
    with pytest.raises(LookupError, match="unknown preset 'papr': choose one of default, paper, paper-later"):
        TMMConfig.preset("papr")


def test_missing_fields_have_their_defaults_and_unknown_ones_are_refused():
    assert TMMConfig.from_dict({}) == TMMConfig()
    with pytest.raises(ValueError, match=r"unknown configuration fields \['3', 'heads'\]: the known ones are \['activ"):
        TMMConfig.from_dict({"heads": 4, 3: 4})


def test_nothing_can_be_assigned():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TMMConfig().d_model = 3


@pytest.mark.parametrize(
    "field",
    [
        {"d_model": np.int64(64)},
        {"d_model": 64.0},
        {"n_heads": True},
        {"n_lags": "4"},
        {"softplus": 1},
        {"mean": None},
        {"embed_std": "1"},
        {"embed_std": True},
        {"embed_std": np.float64(1)},
    ],
)
def test_other_types_are_refused(field: dict[str, Any]):
    ((name, value),) = field.items()
    with pytest.raises(TypeError) as caught:
        TMMConfig(**field)
    assert str(caught.value).startswith(f"{name} must be ")
    assert repr(value) in str(caught.value)


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
        {"mix_layers": 3},
        {"mix_layers": True},
        {"norm": "batch"},
        {"norm": ["layer"]},
        {"norm": np.asarray(["layer", "rms"])},
        {"mean": True},
        {"kernel_size": 2, "softplus": True, "mean": True},
        {"embed_std": -1.0},
        {"embed_std": math.nan},
        {"embed_std": math.inf},
    ],
)
def test_what_cannot_be_a_model_is_refused(fields: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(fields))):
        TMMConfig(**fields)
