"""`tmm backends`: every registered backend, what it can do here, and how to make the others run."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from tmm_core import get_backend, registered_backends
from tmm_core.backend import Request

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "backends",
        help="list the engines that can compute here, and what the others need",
        description="List every registered backend: version, devices, what it serves; for one that cannot run, why.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one row a backend; a backend that cannot run is a row, not an error."""
    rows = [("backend", "version", "devices", "serves"), *map(_row, registered_backends())]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    indent = " " * (sum(widths) + 2 * len(widths))
    for row in rows:
        start = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  "
        width = max(shutil.get_terminal_size().columns, len(indent) + 40)
        print(textwrap.fill(row[3], width, initial_indent=start, subsequent_indent=indent))
    print("\nChoose one by backend=…, tmm_core.use_backend(…) or TMM_BACKEND; 'auto' takes the fastest that fits.")
    return 0


def _row(name: str) -> tuple[str, str, str, str]:
    try:
        backend = get_backend(name)
    except LookupError as error:
        return name, "-", "none", str(error)
    devices = backend.engine.devices
    serves = backend.serves if devices else backend.engine.unsupported(Request("float32", "cpu"))
    return name, backend.version, ", ".join(devices) or "none", serves or backend.serves
