"""The command `python -m tmm_core.testing.fuzz`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import Case

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Try cases, and return 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tmm_core.testing.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("--cases", type=int, default=1000, metavar="N", help="cases to try (default 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="what random numbers begin with (default 0)")
    parser.add_argument("--case", type=int, metavar="I", help="try this one alone, and print it")
    parser.add_argument("--library", action="append", help="only arrays of this library; may be given again")
    parser.add_argument("--all", action="store_true", help="go on after a failure, to one of each kind")
    options = parser.parse_args(arguments)
    # Before JAX is imported: arrays spread over two devices are drawn, too.
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    from . import draw, verdict

    if options.case is not None:
        case = draw(options.seed, options.case, options.library)
        print(case.code())
        what = verdict(case)
        print(f"# {what or 'right'}")
        return int(what is not None)
    failures: set[tuple[str, ...]] = set()
    drawn, begin, said = Counter[str](), time.monotonic(), 0.0
    for number in range(options.cases):
        case = draw(options.seed, number, options.library)
        drawn[case.library] += 1
        what = verdict(case)
        if what is not None:
            kind = (case.operation, case.library, str(case.options.get("backend")), what.split(":")[0])
            if kind not in failures:
                failures.add(kind)
                print(f"# case {number} of seed {options.seed}:", end=" ")
                _report(case, what)
            if not options.all:
                return 1
        now = time.monotonic() - begin
        if now - said > 10:
            said, left = now, now / (number + 1) * (options.cases - number - 1)
            print(f"{number + 1} of {options.cases} cases, {left:.0f} s left", file=sys.stderr, flush=True)
    by_library = ", ".join(f"{library} {count}" for library, count in sorted(drawn.items()))
    outcome = f"{len(failures)} kinds of failure" if failures else "no failure"
    print(f"{options.cases} cases of seed {options.seed}: {outcome}, {time.monotonic() - begin:.0f} s ({by_library})")
    return int(bool(failures))


def _report(case: Case, what: str) -> None:
    """Print the smallest case that fails as this one does."""
    from . import shrunk, verdict

    print(what, flush=True)
    small = shrunk(case)
    print(f"{small.code()}\n# {verdict(small)}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
