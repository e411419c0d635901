"""Configurations: what a field may hold is refused or kept as it is, and all of them are plain data."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from tmm_core import TMMConfig
from tmm_core.fields import Bounds, Configuration, Count, Size
from tmm_lab.data.config import DataConfig
from tmm_lab.training.options import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Example(Configuration):
    count: Count = 1
    size_or_none: Size | None = None
    share: Annotated[float, Bounds(above=0, below=1.5)] = 0.5
    name: str = "x"
    on: bool = False
    kind: Literal["a", "b"] = "a"
    level: Literal[1, 2] = 1
    files: tuple[str, ...] = ()


VALUES = [
    0,
    1,
    -1,
    2,
    0.0,
    0.5,
    1.0,
    1.5,
    math.nan,
    math.inf,
    "",
    "a",
    "c",
    True,
    False,
    None,
    (),
    ("a",),
    (1,),
    [],
    {},
]
TAKEN: dict[str, list[Any]] = {
    "count": [1, 2],
    "size_or_none": [0, 1, 2, None],
    "share": [1, 0.5, 1.0],
    "name": ["", "a", "c"],
    "on": [True, False],
    "kind": ["a"],
    "level": [1, 2],
    "files": [(), ("a",)],
}


def same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("value", [*VALUES, np.int64(1), np.float64(0.5)], ids=repr)
def test_a_field_holds_what_its_type_and_bounds_say_and_nothing_else(name: str, value: Any) -> None:
    if any(same(value, taken) for taken in TAKEN[name]):
        assert getattr(Example(**{name: value}), name) is value
    else:
        with pytest.raises((TypeError, ValueError), match=f"^{name} must be .*, and is ") as caught:
            Example(**{name: value})
        assert str(value) in str(caught.value)


@pytest.mark.parametrize("cls", [Example, TMMConfig, DataConfig, TrainingOptions])
def test_every_field_of_every_configuration_is_checked(cls: type[Configuration]) -> None:
    for field in dataclasses.fields(cls):
        with pytest.raises((TypeError, ValueError), match=f"^{field.name} must be "):
            cls(**{field.name: object()})


@pytest.mark.parametrize(
    "config", [Example(files=("a", "b")), TMMConfig(), DataConfig(text=("a", "b")), TrainingOptions()]
)
def test_configurations_go_through_json(config: Configuration) -> None:
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config


def test_unknown_fields_are_refused_and_missing_ones_have_their_defaults() -> None:
    assert Example.from_dict({"count": 3}) == Example(count=3)
    with pytest.raises(
        ValueError, match=r"unknown fields \['3', 'colour'\] of Example: the known ones are count, size_or"
    ):
        Example.from_dict({"colour": 1, 3: 4})
