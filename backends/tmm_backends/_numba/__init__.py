"""Numba: an engine for CPUs, transforms in SIMD registers by kernels that LLVM compiles for this very machine."""

import numba

from tmm_core._protocols import Backend

from .engine import NumbaEngine

__all__ = ["backend"]

backend = Backend(
    name="numba",
    version=numba.__version__,
    devices=("cpu",),
    serves="arrays on the CPU of every real floating dtype",
    engine=NumbaEngine(),
)
"""The backend as the registry knows it."""
