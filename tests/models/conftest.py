"""Fixtures of models: 64 bits in JAX, so that all frameworks are held to the same bound."""

import pytest
from support.requirements import import_or_skip


@pytest.fixture
def double():
    """Let JAX have 64 bits."""
    jax = import_or_skip("jax")
    with jax.enable_x64(True):
        yield
