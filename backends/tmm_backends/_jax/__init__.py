"""JAX: an engine for every platform, and the bridge that differentiates, batches and traces any engine."""

import jax

from tmm_core.backend import Backend

from .bridge import JaxBridge
from .engine import JaxEngine, platforms

__all__ = ["backend"]

backend = Backend(
    name="jax",
    version=jax.__version__,
    devices=platforms(),
    serves="JAX arrays, traced too, of every floating and complex dtype",
    engine=JaxEngine(),
    bridge=JaxBridge(),
)
"""The backend as the registry knows it."""
