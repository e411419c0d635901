"""Random calls of the public operations against their definition: N cases, or the smallest that fails."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .trials import Failure

__all__ = ["main"]

BLOCK = 50
"""Cases between two looks at the clock."""


def main(arguments: list[str] | None = None) -> int:
    """Try cases, and return 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tmm_core.testing.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("--cases", type=int, default=1000, metavar="N", help="cases to try (default 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="what random numbers begin with (default 0)")
    parser.add_argument("--case", type=int, metavar="I", help="try this one alone, and print it")
    parser.add_argument("--library", action="append", help="only arrays of this library; may be given again")
    parser.add_argument("--all", action="store_true", help="go on after a failure, to one of each kind")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="processes that share the cases (default 1)")
    options = parser.parse_args(arguments)
    # Before JAX is imported: arrays spread over two devices are drawn, too. Threads that wait busily take each other's
    # cores, for products that are small.
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ..libraries import installed_libraries  # imports JAX

    names = [library.name for library in installed_libraries()]
    unknown = sorted(set(options.library or names) - set(names))
    if unknown:
        parser.error(f"--library {unknown[0]}: there is no such library here, choose from {', '.join(names)}")
    if options.case is not None:
        return _tried_alone(options.seed, options.case, options.library)
    failures: set[Failure] = set()
    drawn, begin, said = Counter[str](), time.monotonic(), 0.0
    for done, (block, found) in enumerate(_blocks(options), 1):
        drawn += block
        for failure, report in found.items():
            if failure not in failures:
                print(report, flush=True)
                failures.add(failure)
        if failures and not options.all:
            return 1
        now, count = time.monotonic() - begin, min(done * BLOCK, options.cases)
        if now - said > 10:
            said, left = now, now / count * (options.cases - count)
            print(f"{count} of {options.cases} cases, {left:.0f} s left", file=sys.stderr, flush=True)
    outcome = f"{len(failures)} kinds of failure" if failures else "no failure"
    print(f"{options.cases} cases of seed {options.seed}: {outcome}, {time.monotonic() - begin:.0f} s")
    print(textwrap.fill(", ".join(f"{kind} {count}" for kind, count in drawn.most_common()), 100))
    return int(bool(failures))


def _tried_alone(seed: int, number: int, libraries: Sequence[str] | None) -> int:
    """Print a case and what is wrong with it."""
    from . import draw, verdict

    case = draw(seed, number, libraries)
    print(case.code())
    what = verdict(case)
    print(f"# {what or 'right'}")
    return int(what is not None)


def _blocks(options: argparse.Namespace) -> Iterator[tuple[Counter[str], dict[Failure, str]]]:
    """Yield what `tried` returns for every block, in turn."""
    from .trials import tried

    blocks = [range(first, min(first + BLOCK, options.cases)) for first in range(0, options.cases, BLOCK)]
    block = partial(tried, options.seed, options.library, options.all)
    if options.jobs == 1:
        yield from map(block, blocks)
        return
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        try:
            yield from pool.map(block, blocks)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
