"""The processor that LLVM compiles for: NUMBA_CPU_NAME and NUMBA_CPU_FEATURES where they are set, else this one."""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
import numba

__all__ = ["CONVERTS_HALVES", "FAST", "NAME", "REGISTER_BYTES"]

_config: Any = numba.config

NAME: str = _config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
"""The processor's name in LLVM."""


def _features() -> set[str]:
    """Return LLVM's names of the instruction sets that may be used."""
    if _config.CPU_FEATURES is not None:
        return {name[1:] for name in _config.CPU_FEATURES.split(",") if name.startswith("+")}
    return {name for name, present in llvmlite.binding.get_host_cpu_features().items() if present}


_FEATURES = _features()

REGISTER_BYTES = 64 if "avx512f" in _FEATURES else 32 if "avx" in _FEATURES else 16
"""Bytes of the widest SIMD register; 16 for NEON, and for processors without SIMD."""

CONVERTS_HALVES = "f16c" in _FEATURES or platform.machine() not in ("x86_64", "AMD64")
"""Whether the processor converts float16; without instructions LLVM calls library functions that are not linked."""

FAST = ("contract", "reassoc", "nsz", "arcp")
"""LLVM's fast-math flags of the kernels: without "nnan" and "ninf", which would delete checks for NaN."""
