"""`tmm backends`: every registered backend, and what it can do here, or why it cannot run."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from tmm_core import get_backend, registered_backends

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "backends",
        help="list the backends, and what those that cannot run here need",
        description="List every registered backend with its version, its devices and the arrays that it serves, or "
        "the reason why it cannot run here.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one row a backend; a backend that cannot run is a row, not an error."""
    rows = [("backend", "version", "devices", "serves"), *map(_row, registered_backends())]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    indent = " " * (sum(widths) + 2 * len(widths))
    columns = shutil.get_terminal_size().columns
    for row in rows:
        start = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  "
        print(textwrap.fill(row[3], max(columns, len(indent) + 40), initial_indent=start, subsequent_indent=indent))
    note = "Choose one by backend=…, tmm_core.use_backend(…) or TMM_BACKEND; 'auto' is the fastest for the arrays."
    print("\n" + textwrap.fill(note, columns, break_long_words=False))
    return 0


def _row(name: str) -> tuple[str, str, str, str]:
    try:
        backend = get_backend(name)
    except LookupError as error:
        return name, "-", "none", str(error)
    return name, backend.version, ", ".join(backend.devices) or "none", backend.serves
