"""`tmm bench`: how fast products and training are here, against what people write today."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tmm_core.errors import InputError

if TYPE_CHECKING:
    from ..bench.figures import Figure

__all__ = ["add_parser"]

ALLOCATORS = {"default": "default", "keep": "keeps pages"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "bench",
        help="measure products, training, streaming and decoding here, against what people write today",
        description="Measure in float32 how many times as fast as others an engine is. Both sides take turns within "
        "one process; a figure is the median over turns with its quartiles, under the C library's allocator as it is "
        "and told to keep its pages. Four minutes on two cores, as many for streaming, six for decoding; training "
        "takes more than ten.",
    )
    parser.add_argument(
        "topics",
        nargs="*",
        metavar="TOPIC",
        help="product, gradients, memory, training, streaming, decoding, packing (default: the first three)",
    )
    parser.add_argument("--quick", action="store_true", help="one length and fewer turns: half a minute")
    parser.add_argument("--backend", metavar="NAME", help="the engine measured (default: TMM_BACKEND, else numba)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each side (default: 2, or 1 on one core)")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help="positions; in training, contexts")
    parser.add_argument("--allocator", choices=ALLOCATORS, help="one of the two (default: both)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a table a topic and allocator, row by row as they are measured; or JSON at the end."""
    from ..bench.figures import figures, plan
    from ..bench.machine import busy, describe
    from ..bench.process import check_allocator, cores, default_backend, default_threads
    from ..bench.topics import TOPICS

    topics = _topics(arguments)
    _check_lengths(arguments.lengths)
    backend = arguments.backend or default_backend()
    _check_backend(backend)
    threads = default_threads() if arguments.threads is None else arguments.threads
    if not 1 <= threads <= cores():
        raise InputError(f"--threads must be between 1 and {cores()}, the cores of this process, and is {threads}")
    machine, warning = describe(threads, backend), busy()
    if warning is not None:
        print(f"tmm: warning: {warning}", file=sys.stderr)
    if not arguments.json:
        print("\n".join(f"{field}: {text}" for field, text in machine.items()), flush=True)
    found: list[dict[str, Any]] = []
    missing: dict[str, None] = {}  # an ordered set
    allocators = [ALLOCATORS[arguments.allocator]] if arguments.allocator else list(ALLOCATORS.values())
    for allocator in allocators:
        try:
            check_allocator(allocator)
        except NotImplementedError as error:
            missing[f"allocator that {allocator}: {error}"] = None
            continue
        chosen = [topic for topic in topics if not TOPICS[topic].once or allocator == allocators[0]]
        topic = ""
        for row in figures(plan(chosen, arguments.lengths, backend, quick=arguments.quick), threads, allocator):
            found += [figure.as_json(allocator) for figure in row]
            missing.update((f"{f.task.column}: {f.missing}", None) for f in row if f.missing is not None)
            if not arguments.json:
                _print_row(row, allocator, new=row[0].task.topic != topic)
            topic = row[0].task.topic
    if arguments.json:
        print(
            json.dumps({"machine": machine, "warning": warning, "figures": found, "missing": list(missing)}, indent=1)
        )
    elif missing:
        print("\nn/a: " + "\n     ".join(missing))
    return 0


def _topics(arguments: argparse.Namespace) -> Sequence[str]:
    from ..bench.topics import TOPICS

    for topic in arguments.topics:
        if topic not in TOPICS:
            raise InputError(f"there is no topic {topic!r}: choose from {', '.join(TOPICS)}")
    usual = [name for name, topic in TOPICS.items() if topic.usual]
    if arguments.allocator == "keep":
        if "memory" in arguments.topics:
            raise InputError("memory is measured with --allocator default: pages that are kept hide what a call takes")
        usual.remove("memory")
    return arguments.topics or usual


def _check_lengths(lengths: Sequence[int] | None) -> None:
    from ..bench.measure import LONGEST

    for n in lengths or ():
        if not 2 <= n <= LONGEST:
            raise InputError(f"--lengths must be between 2 and {LONGEST}, got {n}")


def _check_backend(name: str) -> None:
    """Refuse a backend that is unknown or not installed at once, and import none: that is for other processes."""
    from tmm_core import available_backends, get_backend

    if name not in available_backends():
        get_backend(name)


def _print_row(row: Sequence[Figure], allocator: str, *, new: bool) -> None:
    from ..bench.tables import heading, table_row
    from ..bench.topics import TOPICS

    topic = row[0].task.topic
    if new:
        print(f"\n{TOPICS[topic].title}; allocator: {allocator}\n")
        if TOPICS[topic].note:
            print(f"{TOPICS[topic].note}\n")
        print("\n".join(heading(topic)))
    print(table_row(row), flush=True)
