"""`tmm study`: put a claim of the paper to the test."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from ..data.config import DataConfig
from .compare import run_comparison
from .fields import CommandParser, add_fields, given_fields, path

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to `tmm`."""
    from ..studies import efficiency

    parser = commands.add_parser(
        "study",
        help="put a claim of the paper to the test",
        description=f"efficiency: {efficiency.CLAIM}. The same command takes an interrupted study up again.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("study", choices=("efficiency",), help="the claim")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--quick", action="store_true", help="small models, in about twenty minutes on two cores")
    size.add_argument("--full", action="store_true", help="larger models, for a GPU; days on two cores")
    parser.add_argument("--equal", choices=("flops", "seconds"), help="what is equal of a step (default: flops)")
    parser.add_argument("--minutes", type=float, metavar="X", help="another duration")
    parser.add_argument(
        "--out", type=path, metavar="DIR", help="folder of the study (default: studies/<name>-<size>-<what is equal>)"
    )
    data = DataConfig(held_out_bytes=efficiency.HELD_OUT_BYTES)
    add_fields(parser.add_argument_group("text and tokens"), DataConfig, defaults=data)
    parser.stray = "--text"
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the study, and show the table and the verdict."""
    from ..studies import efficiency

    size, options = ("quick", efficiency.QUICK) if "quick" in arguments else ("full", efficiency.FULL)
    if "equal" in arguments:
        options = dataclasses.replace(options, equal=arguments.equal)
    if "minutes" in arguments:
        options = dataclasses.replace(options, minutes=arguments.minutes, steps=None)
    data = DataConfig(**{"held_out_bytes": efficiency.HELD_OUT_BYTES, **given_fields(arguments, DataConfig)})
    folder = getattr(arguments, "out", Path("studies") / f"efficiency-{size}-{options.equal}")
    return run_comparison(folder, efficiency.arms(options), options, data)
