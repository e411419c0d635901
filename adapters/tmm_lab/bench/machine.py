"""The machine and the libraries that a result was measured with: without them it says nothing."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tmm_adapters.words import counted

__all__ = ["busy", "cores", "describe"]

LIBRARIES = ("tmm-core", "numpy", "numba", "torch", "jax", "scipy")
# What makes another allocator, or the same one behave otherwise.
ALLOCATOR_VARIABLES = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_CONF")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, str]:
    """Return the processor, its vector extensions, the system, versions, and variables that change the allocator."""
    libraries = [f"{name} {_version(name)}" for name in LIBRARIES]
    found = {
        "processor": f"{_processor()}, {counted(cores(), 'core')} for this process",
        "vectors": _vectors(),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver()) or 'another C library'}",
        "versions": ", ".join([f"Python {platform.python_version()}", *libraries]),
    }
    variables = [f"{name}={os.environ[name]}" for name in ALLOCATOR_VARIABLES if os.environ.get(name)]
    return {**found, "environment": " ".join(variables)} if variables else found


def busy() -> str | None:
    """Return a warning where other work holds a good part of the machine, which a ratio cannot make up for."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < 0.3 * cores():
        return None
    return f"the load average is {load:.1f} on {cores()} cores: other work is being done, and results will be off"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "missing"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _vectors() -> str:
    """Return the vector extensions that NumPy found: their widths decide a SIMD kernel's speed."""
    import numpy as np

    found = np.show_config(mode="dicts") or {}
    names = found.get("SIMD Extensions", {})
    return ", ".join([*names.get("baseline", []), *names.get("found", [])]) or "unknown"
