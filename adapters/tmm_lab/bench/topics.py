"""The topics of `tmm bench`: what each measures, against what, and at which lengths; a table each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .decoding import DECODED, DECODING, MEASURED, ONLY, Decoding, measure_decoding
from .measure import HEADS, LENGTHS, Case, compare_gradients, compare_products, product_memory
from .packing import PACKED, PACKED_MODELS, compare_packing
from .rivals import HISTORIES, RIVALS
from .streaming import STREAMED, Stream, compare_streams, slowest_step, stream_memory
from .training import CONTEXTS, OTHERS, TRAINING, compare_training
from .turns import FULL, QUICK, Pace, Ratio

__all__ = ["TOPICS", "Task", "Topic"]


@dataclass(frozen=True)
class Task:
    """One figure to measure: a cell of a table."""

    topic: str
    """A name in `TOPICS`."""
    n: int
    heads: int
    column: str
    backend: str
    quick: bool = False

    def run(self) -> Ratio | int | float:
        """Return the ratio, or the bytes where memory is measured, or the seconds where there is no rival.

        Raises
        ------
        NotImplementedError
            If there is nothing to measure.
        """
        return TOPICS[self.topic].measure(self)

    @property
    def case(self) -> Case:
        """The arrays of a product."""
        return Case(self.n, self.heads)

    @property
    def pace(self) -> Pace:
        """How long a product takes turns."""
        return QUICK if self.quick else FULL

    @property
    def tokens(self) -> int:
        """Tokens of a step of training."""
        return max(self.n, 1024 if self.quick else 8192)


def _milliseconds(task: Task, seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _tokens_a_second(task: Task, seconds: float) -> str:
    return f"{task.tokens / seconds:.0f} tokens/s"


def _product(task: Task) -> Ratio:
    return compare_products(task.case, task.column, task.backend, task.pace)


def _gradients(task: Task) -> Ratio:
    return compare_gradients(task.case, task.backend, task.pace)


def _memory(task: Task) -> int:
    return product_memory(task.case, task.backend if task.column == "ours" else None)


def _training(task: Task) -> Ratio:
    pace = QUICK if task.quick else TRAINING
    return compare_training(task.n, task.heads, task.column, task.backend, pace, task.tokens)


def _microseconds_a_token(task: Task, seconds: float) -> str:
    return f"{1e6 * seconds / task.n:.3g} us/token"


def _streaming(task: Task) -> Ratio | int | float:
    case = Stream(task.n, task.heads)
    if task.column == "slowest step":
        return slowest_step(case, task.backend)
    if task.column == "MiB":
        return stream_memory(case, task.backend)
    return compare_streams(case, task.column, task.backend, task.pace)


def _decoding(task: Task) -> Ratio | int | float:
    pace = QUICK if task.quick else DECODING
    return measure_decoding(Decoding(task.n, task.heads, task.backend, pace), task.column)


def _packing(task: Task) -> Ratio:
    return compare_packing(task.n, task.column, task.backend, QUICK if task.quick else TRAINING, task.tokens)


_HOW = """\
Earlier tokens went through the mixing of each layer alone: tapes and tiles are those of a text from scratch.
Against others: tokens out of the last 1000 before n, or out of the second half of a shorter text.
Our first tokens: all of the last 1000 against the first 1000, so that less than 0.67 means 1.5 times as slow.
The whole text: ours with all its tiles, theirs as in its middle, since its time is linear in the position.
First token after n: plan and cache included; more than 1024 tokens go through fewer blocks, scaled to ten.
The slowest step is that of the largest tile, with its spectra."""


@dataclass(frozen=True)
class Topic:
    """What is measured, and how its table looks."""

    title: str
    columns: tuple[str, ...]
    """What the table has a column for, beside our own time."""
    measure: Callable[[Task], Ratio | int | float]
    lengths: Sequence[int]
    heads: Sequence[int]
    quick_lengths: Sequence[int] = (1024,)
    usual: bool = True
    """Whether it is measured where no topic is named."""
    once: bool = False
    """Whether under one allocator only."""
    ours: Callable[[Task, float], str] | None = _milliseconds
    """What the table says of our seconds; None where time is not measured."""
    only: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Columns that are measured at some of the usual lengths."""
    listed: bool = False
    """Whether columns, each with a time of its own, are lines of the table."""
    note: str = ""
    """What there is to know of how it is measured; printed below the title."""

    def columns_at(self, n: int, *, usual: bool) -> list[str]:
        """Return what is measured at a length, which is one of the usual ones or asked for."""
        return [name for name in self.columns if not usual or n in self.only.get(name, (n,))]


TOPICS = {
    "product": Topic(
        "product, as much of it as (8, 1024, 512): how many times as fast as the others ours is",
        columns=tuple(RIVALS),
        measure=_product,
        lengths=LENGTHS,
        heads=HEADS,
    ),
    "gradients": Topic(
        "product with both gradients: how many times as fast as the same under autograd ours is",
        columns=("torch.fft",),
        measure=_gradients,
        lengths=(1024, 2048, 4096, 8192),
        heads=HEADS,
    ),
    "memory": Topic(
        "memory of the product beyond its input and output, in MiB",
        columns=("ours", "torch.fft"),
        measure=_memory,
        lengths=LENGTHS,
        heads=HEADS,
        once=True,  # pages that are kept hide what a call takes
        ours=None,
    ),
    "training": Topic(
        "training (d 512, 4 layers, vocabulary 8000): times as fast as with another mixing, and as in JAX",
        columns=tuple(OTHERS),
        measure=_training,
        lengths=CONTEXTS,
        heads=(4,),
        usual=False,  # it takes longer than all others
        once=True,
        ours=_tokens_a_second,
    ),
    "streaming": Topic(
        "streaming one row of d 512 from the first token on: how many times as fast as with the history ours is",
        columns=(*HISTORIES, "slowest step", "MiB"),
        measure=_streaming,
        lengths=STREAMED,
        heads=HEADS,
        usual=False,
        once=True,
        ours=_microseconds_a_token,
    ),
    "decoding": Topic(
        "decoding one text (d 512, 4 heads, 10 layers, vocabulary 8000): how many times as fast a token after n is",
        columns=tuple(MEASURED),
        measure=_decoding,
        lengths=DECODED,
        heads=(4,),
        usual=False,
        once=True,
        only=ONLY,
        listed=True,
        note=_HOW,
    ),
    "packing": Topic(
        "training on packed documents kept apart: how many times as fast as on joined ones",
        columns=tuple(PACKED_MODELS),
        measure=_packing,
        lengths=PACKED,
        heads=(4,),
        usual=False,
        once=True,
        listed=True,
    ),
}
"""By name, in the order of the tables."""
