"""PyTorch: an engine on `torch.fft` and dense products, and the bridge that differentiates and traces any engine."""

from tmm_core.backend import Backend, Bridge, Engine

__all__ = ["backend"]


def _engine() -> Engine:
    from .engine import TorchEngine

    return TorchEngine()


def _bridge() -> Bridge:
    from .bridge import TorchBridge

    return TorchBridge()


backend = Backend(
    name="torch",
    requires=("torch",),
    serves="Torch tensors of every floating and complex dtype",
    load_engine=_engine,
    load_bridge=_bridge,
    bridge_for="torch",
    ranks={"torch": 10},
)
