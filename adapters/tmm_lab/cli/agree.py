"""`tmm agree`: every backend computes the same things; a table says how far each is from NumPy in float64."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..tables import filled, terminal_width

if TYPE_CHECKING:
    from ..agree.results import Result

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "agree",
        help="prove that all backends compute the same: products, gradients, models, training",
        description="Compute the same products, adjoints, correlations, gradients, streams, models of every variant "
        "and 200 steps of training with every backend that is here, in float32 and float64, and hold them against "
        "NumPy in float64. The exit code is 1 where one differs by more than is allowed. Takes minutes, and says how "
        "far it is.",
    )
    parser.add_argument(
        "configurations",
        nargs="*",
        metavar="CONFIGURATION",
        help="only these: numpy, numba, torch, torch+numba, jax, jax+numba, cupy, … (default: all that are here)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table, or JSON; return 1 if a result fails."""
    from ..agree.compare import compare, count
    from ..agree.configurations import configurations
    from ..bench.machine import describe
    from ..progress import waiting

    chosen, missing = configurations(arguments.configurations)
    machine = {name: text for name, text in describe().items() if name in ("processor", "versions")}
    start = time.perf_counter()
    with waiting("comparing", count(chosen)) as advance:
        found = compare(chosen, advance)
    seconds = time.perf_counter() - start
    compared, failed = _counted(found)
    ok = compared > 0 and not failed
    if arguments.json:
        report = {
            "ok": ok,
            "seconds": round(seconds, 1),
            "machine": machine,
            "missing": missing,
            "units": _units(found),
        }
        print(json.dumps({**report, "results": [result.as_json() for result in found]}, indent=1))
    else:
        _print(found, machine, missing, seconds)
    return 0 if ok else 1


def _print(found: Sequence[Result], machine: Mapping[str, str], missing: Mapping[str, str], seconds: float) -> None:
    from ..agree.table import failures, table

    notes = [f"{name}: {text}" for name, text in machine.items()]
    notes += [
        f"missing: {', '.join(name for name in missing if missing[name] == reason)}: {reason}"
        for reason in dict.fromkeys(missing.values())
    ]
    print(table(found, width=terminal_width()), filled(_units(found)), filled("\n".join(notes)), sep="\n\n")
    for line in failures(found):
        print(filled(line))
    compared, failed = _counted(found)
    verdict = f"FAIL: {failed} of {compared} results" if failed else f"ok: all {compared} results"
    verdict = verdict if compared else "FAIL: nothing was compared"
    print(f"{verdict}, in {seconds:.0f} s")


def _counted(found: Sequence[Result]) -> tuple[int, int]:
    """Return how many results were compared, and how many of them failed."""
    counts = Counter(result.status for result in found)
    return counts["ok"] + counts["FAIL"], counts["FAIL"]


def _units(found: Sequence[Result]) -> str:
    from ..agree.table import legend

    return legend(jax=any(result.configuration.startswith("jax") for result in found))
