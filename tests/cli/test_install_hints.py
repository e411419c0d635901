"""What is said to install a library that is missing."""

from __future__ import annotations

import re

import pytest

from tmm_adapters.extras import how_to_install


@pytest.mark.parametrize(
    ("libraries", "extras"),
    [
        (["torch"], ["train"]),
        (["torch", "accelerate"], ["train"]),
        (["optax", "orbax.checkpoint"], ["train-jax"]),
        (["orbax"], ["train-jax"]),
        (["matplotlib"], ["train", "train-jax"]),
        (["safetensors.torch"], ["train", "train-jax"]),
        (["pyarrow.parquet"], ["texts"]),
        (["datasets"], ["hub"]),
        (["asv"], ["bench"]),
    ],
)
def test_the_smallest_extras_that_bring_it_all_are_offered(libraries: list[str], extras: list[str]) -> None:
    assert re.findall(r"pip install 'tmm-core\[([\w-]+)\]'", how_to_install(*libraries)) == extras


def test_what_no_extra_brings_is_installed_by_its_name() -> None:
    assert how_to_install("sandwich.cheese") == "pip install sandwich"
