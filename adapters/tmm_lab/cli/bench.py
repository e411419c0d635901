"""`tmm bench`: how fast products, training and decoding are here, and how fast other libraries are."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence

from tmm_core.errors import InputError, did_you_mean

from ..progress import note
from ..tables import filled, terminal_width

__all__ = ["TOPICS", "add_parser"]

TOPICS = (
    *("product", "gradients", "memory", "training", "streaming"),
    *("decoding", "packing", "loop", "scaling", "first_call"),
)
USUAL = 3
"""How many of the topics are measured where none is named."""
ALLOCATORS = {"default": "default", "keep": "keeps pages"}
LONGEST = 2**20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "bench",
        help="measure products, training, streaming and decoding here, and how fast other libraries are",
        description="Run benchmarks of asv_bench/ in float32 and print tables. Ours and another's take turns within "
        "one process; a number is the median of the turns, with the quartiles. Products are measured under the C "
        "library's allocator as it is and set to keep its pages. Five minutes on two cores, as many for streaming "
        "and for decoding; training takes twenty. asv itself keeps the results of a commit and compares commits.",
    )
    parser.add_argument(
        "topics",
        nargs="*",
        metavar="TOPIC",
        help=f"{', '.join(TOPICS)} (default: the first three)",
    )
    parser.add_argument("--quick", action="store_true", help="one length and fewer turns: half a minute")
    parser.add_argument("--backend", metavar="NAME", help="the engine measured (default: TMM_BACKEND, else numba)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of ours and of each baseline (default: 2, or 1 on one core)"
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", action="extend", metavar="N", help="positions; in training, contexts"
    )
    parser.add_argument("--allocator", choices=ALLOCATORS, help="one of the two (default: both)")
    parser.add_argument("--json", action="store_true", help="print JSON, with all samples, in place of tables")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a table a benchmark, or JSON; return 1 if one failed."""
    from dataclasses import asdict
    from itertools import groupby

    from ..bench.machine import busy, describe
    from ..bench.suite import run_benchmarks
    from ..bench.tables import table

    environment = _environment(arguments)
    patterns = _patterns(arguments)
    machine, warning = describe(), busy()
    if warning is not None:
        note(warning)
    results, reasons = run_benchmarks(patterns, environment)
    if arguments.json:
        conditions = {"machine": machine, "settings": environment, "warning": warning, "skipped": reasons}
        print(json.dumps({**conditions, "results": [asdict(result) for result in results]}, indent=1))
    else:
        settings = [f"{name}={value}" for name, value in environment.items()]
        for field, text in {**machine, "settings": " ".join(settings)}.items():
            print(filled(f"{field}: {text}"))
        for _, group in groupby(results, key=lambda result: result.benchmark):
            print("\n" + table(list(group), width=terminal_width()))
        if reasons:
            print("\n" + filled("\n".join(f"n/a: {reason}" for reason in reasons)))
    return int(any(result.value is None for result in results))


def _patterns(arguments: argparse.Namespace) -> Sequence[str]:
    """Return what selects the topics' benchmarks by name, a regular expression each."""
    for topic in arguments.topics:
        if topic not in TOPICS:
            raise InputError(
                f"there is no topic {topic!r}: choose from {', '.join(TOPICS)}{did_you_mean(topic, TOPICS)}"
            )
    other = next((text for name, text in ALLOCATORS.items() if arguments.allocator not in (None, name)), None)
    condition = "" if other is None else f"(?!.*{re.escape(repr(other))})"
    topics = arguments.topics or TOPICS[:USUAL]
    return [f"^quick.{topic.title()}{condition}" if arguments.quick else f"^{topic}[.]{condition}" for topic in topics]


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the settings as the benchmarks read them."""
    import os

    from tmm_core import available_backends, get_backend

    from ..bench.machine import cores

    backend = arguments.backend or os.environ.get("TMM_BACKEND", "").strip() or "numba"
    if backend not in available_backends():
        get_backend(backend)  # says why
    threads = min(2, cores()) if arguments.threads is None else arguments.threads
    if not 1 <= threads <= cores():
        raise InputError(f"--threads must be between 1 and {cores()}, the cores of this process, and is {threads}")
    for n in arguments.lengths or ():
        if not 2 <= n <= LONGEST:
            raise InputError(f"--lengths must be between 2 and {LONGEST}, got {n}")
    lengths = {"TMM_BENCH_LENGTHS": " ".join(map(str, arguments.lengths))} if arguments.lengths else {}
    return {"TMM_BACKEND": backend, "TMM_BENCH_THREADS": str(threads), **lengths}
