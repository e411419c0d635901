"""Some cases in a row, as a process of several tries them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .draws import draw
from .kinds import kinds
from .shrinking import shrunk
from .verdict import verdict

__all__ = ["Failure", "tried"]

Failure = tuple[str, str, str, str]
"""What is told apart: operation, library, engine, and the first word of what is wrong."""


def tried(
    seed: int, libraries: Sequence[str] | None, every: bool, numbers: Iterable[int]
) -> tuple[Counter[str], dict[Failure, str]]:
    """Return how many cases of each kind were tried, and of each failure a case and the smallest like it.

    Parameters
    ----------
    seed, libraries
        As for `draw`.
    every : bool
        Whether to go on after a failure.
    numbers : iterable of int
        The cases.
    """
    drawn, failures = Counter[str](), dict[Failure, str]()
    for number in numbers:
        case = draw(seed, number, libraries)
        drawn.update(kinds(case))
        what = verdict(case)
        if what is None:
            continue
        failure = case.operation, case.library, str(case.options.get("backend")), what.split(":")[0]
        if failure not in failures:
            small = shrunk(case)
            failures[failure] = f"# case {number} of seed {seed}: {what}\n{small.code()}\n# {verdict(small)}\n"
        if not every:
            break
    return drawn, failures
