"""How the command line tells of an error: one line with the cause and the remedy, a traceback only with `--debug`."""

from __future__ import annotations

import sys

__all__ = ["report_error"]

# What our own code raises on purpose; their subclasses, such as KeyError, are raised by accident.
_DELIBERATE = (ValueError, TypeError, LookupError, NotImplementedError)
_WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_OURS = ("tmm_core", "tmm_adapters", "tmm_backends")


def report_error(error: Exception) -> int:
    """Print `error` as one line on stderr and return the exit code: 2 for bad input, 1 for anything else."""
    if _is_deliberate(error):
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


def _is_deliberate(error: Exception) -> bool:
    """Whether our own code refused the input; the same kinds of error out of another library mean a bug in ours."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = "" if frame is None else frame.tb_frame.f_globals.get("__name__", "")
    ours = module.split(".")[0] in _OURS
    if isinstance(error, _WRONG_PATHS):
        return ours and error.errno is None  # the system's own errors have a number
    return type(error) in _DELIBERATE and ours


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
