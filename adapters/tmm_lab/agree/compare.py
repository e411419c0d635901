"""The whole comparison: everything in every configuration, and the verdict."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import product

from ..progress import Advance
from .configurations import Configuration
from .inputs import DTYPES
from .measures import TOPICS, Measured, measure
from .reference import Reference
from .results import Result, judge

__all__ = ["compare", "count"]

OWN_PROCESS = "jax"
"""The library that has a process for each dtype: it has one width of numbers a process, and compiles on one core."""


def count(chosen: Sequence[Configuration]) -> int:
    """Return how many parts `compare` has."""
    return 1 + len(chosen) * len(DTYPES) * len(TOPICS)


def compare(chosen: Sequence[Configuration], advance: Advance) -> list[Result]:
    """Compute everything in the configurations that are `chosen`, and hold it against the reference.

    Parameters
    ----------
    chosen : sequence of Configuration
        The first framework among them is the reference of what the definition does not tell.
    advance : callable
        Called with 1 when a part is through, from any thread.

    Returns
    -------
    list of Result
        Row by row.
    """
    found: dict[tuple[Configuration, str, str], Measured | Future[Measured]] = {}
    with ExitStack() as stack:
        pools = {}
        if any(configuration.library == OWN_PROCESS for configuration in chosen):
            for dtype in DTYPES:
                pools[dtype] = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
                stack.callback(pools[dtype].shutdown, cancel_futures=True)
        everything = list(product(chosen, DTYPES, TOPICS))
        for configuration, dtype, topic in everything:
            if configuration.library == OWN_PROCESS:
                future = pools[dtype].submit(measure, configuration, dtype, topic)
                future.add_done_callback(lambda _: advance(1))
                found[configuration, dtype, topic] = future
        reference = Reference()
        advance(1)
        for configuration, dtype, topic in everything:
            if configuration.library != OWN_PROCESS:
                found[configuration, dtype, topic] = measure(configuration, dtype, topic)
                advance(1)
        return judge({key: _waited(found[key]) for key in everything}, reference)


def _waited(measured: Measured | Future[Measured]) -> Measured:
    """Return what a process gives; if it died, that is the fault of every topic that was to come."""
    try:
        return measured.result() if isinstance(measured, Future) else measured
    except Exception as error:  # a broken pool, or what cannot travel
        return Measured(fault=f"{type(error).__name__}: {error}")
