"""`tmm backends`: every registered backend, what it can do here, and how to make the others run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tmm_core import get_backend, registered_backends
from tmm_core.backend import Request

from ..progress import waiting
from ..tables import filled

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "backends",
        help="list the engines that can compute here, and what the others need",
        description="List every registered backend: version, devices, what it serves; for one that cannot run, why.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tell of each backend; that one cannot run is no error."""
    found, names = [], registered_backends()
    with waiting("loading the libraries of backends", len(names)) as advance:
        for name in names:
            found.append(_told(name))
            advance(1)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    for backend in found:
        devices = ", ".join(backend["devices"]) or "cannot run here"
        print(" ".join(filter(None, (backend["name"], backend["version"]))), devices, sep=": ")
        print(filled(backend["serves"] if backend["devices"] else backend["reason"], indent="    "))
    print()
    print(filled("Choose one by backend=…, tmm_core.set_backend(…) or TMM_BACKEND; auto takes the fastest that fits."))
    return 0


def _told(name: str) -> dict[str, Any]:
    """Return what there is to say of a backend, as plain data; one that cannot run has no devices and a reason."""
    try:
        backend = get_backend(name)
    except LookupError as error:
        return {"name": name, "version": None, "devices": [], "serves": None, "reason": str(error)}
    devices = list(backend.engine.devices)
    reason = None if devices else backend.engine.unsupported(Request("float32", "cpu")) or backend.serves
    return {"name": name, "version": backend.version, "devices": devices, "serves": backend.serves, "reason": reason}
