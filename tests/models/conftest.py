"""Fixtures of models: 64 bits in JAX, so that all frameworks are held to the same bound."""

import pytest


@pytest.fixture
def double():
    """Let JAX have 64 bits."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield
