"""JAX: an engine for every platform, and the bridge that differentiates, batches and traces any engine."""

from tmm_core.backend import Backend, Bridge, Engine

__all__ = ["backend"]


def _engine() -> Engine:
    from .engine import JaxEngine

    return JaxEngine()


def _bridge() -> Bridge:
    from .bridge import JaxBridge

    return JaxBridge()


backend = Backend(
    name="jax",
    requires=("jax",),
    serves="JAX arrays, traced too, of every floating and complex dtype",
    load_engine=_engine,
    load_bridge=_bridge,
    bridge_for="jax",
    ranks={"jax": 10},
)
