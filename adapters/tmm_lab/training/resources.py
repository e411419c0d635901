"""What computes: the engine of the Toeplitz products, and how much memory a run took."""

from __future__ import annotations

import platform
import sys

from tmm_core import choose_engine
from tmm_core.backend import Request

__all__ = ["engine_name", "peak_memory"]


def engine_name(library: str, device: str, dtype: str) -> str:
    """Return the engine that the Toeplitz products of a model will be computed by.

    Parameters
    ----------
    library : str
        Whose arrays the model computes on: `torch` or `jax`.
    device : str
        Kind of device, as in `tmm_core`'s requests.
    dtype : str
        Of the signals.

    Raises
    ------
    LookupError, ValueError
        If the engine that the user chose is unknown, is not installed, or cannot serve the device.
    """
    return choose_engine(None, library, Request(dtype, device)).name


def peak_memory() -> str:
    """Return the most memory that this process has held."""
    if sys.platform == "win32":
        return "unknown on Windows"
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024  # Linux counts in KiB
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20:,.0f} MiB"
