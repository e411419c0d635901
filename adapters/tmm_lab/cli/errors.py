"""How the command line reports an error: bad input in one line with its remedy, a bug with a file for its report."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from tmm_adapters.extras import how_to_install
from tmm_adapters.files import WriteError
from tmm_core.errors import TMMError

__all__ = ["report_error"]

_OURS = ("tmm_core", "tmm_backends", "tmm_adapters", "tmm_lab")


def report_error(error: Exception, command: Sequence[str]) -> int:
    """Print the `error` of a command as one line on stderr; return the exit code: 2 for bad input, 1 for the rest.

    What is raised on purpose is a `TMMError`; files, memory and missing libraries fail for reasons of the machine.
    Whatever else comes is a bug, and its traceback goes to a file.
    """
    code = 1
    if isinstance(error, TMMError):
        code, text = 2, str(error)
    elif isinstance(error, OSError):
        raw = error.filename is not None and not isinstance(error, WriteError)
        text = f"{os.fsdecode(error.filename)}: {error.strerror}" if raw else str(error)
    elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # PyTorch's
        text = f"out of memory: try a smaller --batch, --max-len or model ({_first_line(error)})"
    elif isinstance(error, ImportError) and (error.name or "").split(".")[0] not in _OURS:
        text = f"{error}: {how_to_install(error.name)}" if error.name else str(error)
    else:
        text = (
            f"this is a bug in tmm-core {version('tmm-core')}, not a mistake of yours ({type(error).__name__}: "
            f"{_first_line(error)}); please report it with {_traceback_file(error, command)}"
        )
    print(f"tmm: error: {' '.join(text.split())}", file=sys.stderr)
    return code


def _traceback_file(error: Exception, command: Sequence[str]) -> str:
    """Write what a report needs into the temporary directory; return what to send, in words."""
    lines = [
        f"tmm-core {version('tmm-core')}, Python {platform.python_version()}, {platform.platform()}\n",
        f"tmm {shlex.join(command)}\n\n",
        *traceback.format_exception(error),
    ]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="tmm-traceback-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.writelines(lines)
    except OSError:  # a full disk
        return "the output of --debug"
    return f"the file {file.name}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
