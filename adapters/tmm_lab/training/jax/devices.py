"""The devices that JAX finds, by the names of `--device`."""

# mypy: allow-untyped-calls
from __future__ import annotations

import os

import jax

from tmm_core.errors import InputError

__all__ = ["devices_of"]


def devices_of(name: str) -> list[jax.Device]:
    """Return the devices that `--device name` stands for.

    Raises
    ------
    ValueError
        If there are none.
    """
    try:
        return list(jax.local_devices(backend=None if name == "auto" else name))
    except (RuntimeError, AssertionError) as error:  # JAX asserts that there are some on the platforms it may use
        allowed = os.environ.get("JAX_PLATFORMS")
        if allowed:
            raise InputError(
                f"JAX finds no device for --device {name} where JAX_PLATFORMS={allowed} lets it look: "
                "unset that variable"
            ) from error
        raise InputError(
            f"--device {name} is not available to JAX on this machine: leave it out, or take cpu"
        ) from error
