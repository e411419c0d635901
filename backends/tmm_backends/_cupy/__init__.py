"""CuPy: an engine on cuFFT for arrays on NVIDIA GPUs."""

import cupy

from tmm_core.backend import Backend

from .engine import CupyEngine
from .gpu import Gpu, missing

__all__ = ["backend"]

_reason = missing()

backend = Backend(
    name="cupy",
    version=cupy.__version__,
    devices=() if _reason else ("cuda",),
    serves=_reason or "CuPy arrays of every floating and complex dtype, on one GPU",
    engine=CupyEngine(Gpu()),
)
"""The backend as the registry knows it."""
