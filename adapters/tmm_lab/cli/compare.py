"""`tmm compare`: train models of several architectures at equal cost, and tell which is better."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tmm_adapters.architecture import architectures, get_architecture

from ..data.config import DataConfig
from ..tables import filled, terminal_width
from .fields import CommandParser, add_fields, given_fields, path

if TYPE_CHECKING:
    from ..compare.options import Arm, ComparisonOptions

__all__ = ["add_parser", "run", "run_comparison"]

HELD_OUT_BYTES = 131_072


def add_parser(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to `tmm`."""
    from ..compare.options import ComparisonOptions

    parser = commands.add_parser(
        "compare",
        help="compare architectures at equal cost",
        description="Train models of several architectures on the same text, in the same order, with learning rates "
        "from the same candidates, and compare what a held-out text costs them. The first architecture is the "
        "reference, to which the others are made equal. The same command takes an interrupted comparison up again.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--arch",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"architectures, the reference first (default: {' '.join(_all())})",
    )
    parser.add_argument(
        "--out", type=path, metavar="DIR", help="folder of the comparison (default: comparisons/equal-<what>)"
    )
    parser.stray = "--arch"
    add_fields(parser.add_argument_group("comparison"), ComparisonOptions)
    add_fields(
        parser.add_argument_group("text and tokens"), DataConfig, defaults=DataConfig(held_out_bytes=HELD_OUT_BYTES)
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, and show the table."""
    from ..compare.options import Arm, ComparisonOptions

    options = ComparisonOptions(**given_fields(arguments, ComparisonOptions))
    data = DataConfig(**{"held_out_bytes": HELD_OUT_BYTES, **given_fields(arguments, DataConfig)})
    arms = [Arm(label=name, architecture=name) for name in getattr(arguments, "arch", _all())]
    for arm in arms:
        get_architecture(arm.architecture)
    folder = getattr(arguments, "out", Path("comparisons") / f"equal-{options.equal}")
    return run_comparison(folder, arms, options, data)


def run_comparison(folder: Path, arms: Sequence[Arm], options: ComparisonOptions, data: DataConfig) -> int:
    """Compare models in a folder, show the table, and return the exit code."""
    from ..compare.comparison import InterruptedRun, compare
    from ..compare.results import table

    try:
        results = compare(folder, arms, options, data)
    except (InterruptedRun, KeyboardInterrupt) as stopped:
        print(f"finished runs are kept in {folder}: run the same command again to continue", flush=True)
        if isinstance(stopped, KeyboardInterrupt):
            raise
        return stopped.code
    print(f"\n{table(results, width=terminal_width())}\n\n{filled(results.sentence)}\n")
    print(f"picture: {folder / 'comparison.png'}")
    return 0


def _all() -> list[str]:
    """Return all architectures, the TMM first."""
    return ["tmm", *(name for name in architectures() if name != "tmm")]
