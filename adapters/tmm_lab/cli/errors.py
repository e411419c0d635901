"""How the command line tells of an error: one line with the cause and the remedy, a traceback only with `--debug`."""

from __future__ import annotations

import sys

from tmm_core.errors import TMMError

__all__ = ["report_error"]

_OURS = ("tmm_core", "tmm_backends", "tmm_adapters", "tmm_lab")


def report_error(error: Exception) -> int:
    """Print `error` as one line on stderr and return the exit code: 2 for bad input, 1 for anything else."""
    if isinstance(error, TMMError):
        code, text = 2, str(error)
    elif isinstance(error, OSError):
        code, text = 1, str(error)
    elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        code, text = 1, f"out of memory: try a smaller --batch, --max-len or model ({_first_line(error)})"
    elif isinstance(error, ImportError) and (error.name or "").split(".")[0] not in _OURS:
        code = 1
        text = f"{error}: install what is missing, pip install 'tmm-core[train]', or 'tmm-core[train-jax]' for JAX"
    else:
        code = 1
        text = f"a bug ({type(error).__name__}: {_first_line(error)}); please report it with the output of --debug"
    print(f"tmm: error: {' '.join(text.split())}", file=sys.stderr)
    return code


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
