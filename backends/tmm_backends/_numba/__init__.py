"""Numba: an engine for CPUs, transforms in SIMD registers by kernels that LLVM compiles for this very machine."""

import ml_dtypes  # noqa: F401  (without it bfloat16 has no name in NumPy, and half of what is trained is bfloat16)
import numba

from tmm_core.backend import Backend

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
