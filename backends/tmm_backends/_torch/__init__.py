"""PyTorch: an engine on `torch.fft` and dense products, and the bridge that differentiates and traces any engine."""

import torch

from tmm_core.backend import Backend

from .bridge import TorchBridge
from .engine import TorchEngine

__all__ = ["backend"]

backend = Backend(
    name="torch",
    version=torch.__version__,
    devices=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
    serves="Torch tensors of every floating and complex dtype",
    engine=TorchEngine(),
    bridge=TorchBridge(),
)
"""The backend as the registry knows it."""
