"""What is computed, topic by topic, in one column and dtype; whatever goes wrong is kept, not raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tmm_core import get_backend, use_backend
from tmm_core.backend import Request, device_kind

from .columns import Column
from .inputs import PRODUCTS, STREAM, TRAINING, models
from .sides import Side

__all__ = ["TOPICS", "Key", "Measured", "Topic", "cases", "measure"]

Numbers = NDArray[Any]


class Key(NamedTuple):
    """Which array it is."""

    topic: str
    case: str
    part: str
    """The name of a parameter, for example; empty where a case has but one array."""


@dataclass(frozen=True)
class Topic:
    """What is computed together."""

    run: Callable[[Side, Any, str], dict[str, Numbers]]
    cases: Callable[[], Mapping[str, Any]]


TOPICS = {
    "product": Topic(lambda side, case, dtype: side.product(case, dtype), lambda: PRODUCTS),
    "adjoint": Topic(lambda side, case, dtype: side.product(case, dtype, adjoint=True), lambda: PRODUCTS),
    "correlate": Topic(lambda side, case, dtype: side.correlate(case, dtype), lambda: PRODUCTS),
    "differentiate": Topic(lambda side, case, dtype: side.gradients(case, dtype), lambda: PRODUCTS),
    "stream": Topic(lambda side, case, dtype: side.stream(case, dtype), lambda: STREAM),
    "model": Topic(lambda side, case, dtype: side.model(case, dtype), models),
    "train": Topic(lambda side, case, dtype: side.train(case, dtype), lambda: {"loss": TRAINING}),
}


@dataclass
class Measured:
    """What a column gave in one dtype."""

    arrays: dict[Key, Numbers] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """By topic, the error that it ended with."""
    refusals: dict[str, str] = field(default_factory=dict)
    """By topic, why the engine does not serve it: said beforehand, and no error."""


def cases() -> Iterable[tuple[str, str, Any]]:
    """Return topic, name and numbers of every case."""
    return ((topic, name, case) for topic in TOPICS for name, case in TOPICS[topic].cases().items())


def measure(column: Column, dtype: str, done: Callable[[str], None]) -> Measured:
    """Compute all that a column has, in one dtype; `done` is told each topic that is through."""
    measured = Measured()
    for name, topic in TOPICS.items():
        try:
            if column.does(name):
                _measure(measured, name, topic, column, dtype)
        except Exception as error:  # of any library: it is one cell's failure, and the others are still to come
            first = (str(error).strip().splitlines() or [""])[0]
            measured.faults[name] = f"{type(error).__name__}: {first}"
        done(name)
    return measured


def _measure(measured: Measured, name: str, topic: Topic, column: Column, dtype: str) -> None:
    side = column.side()
    reason = _refusal(column, side, dtype, topic)
    if reason is not None:
        measured.refusals[name] = reason
        return
    with side.computing(), use_backend(column.engine):
        for case, numbers in topic.cases().items():
            found = topic.run(side, numbers, dtype)
            measured.arrays.update({Key(name, case, part): array for part, array in found.items()})


def _refusal(column: Column, side: Side, dtype: str, topic: Topic) -> str | None:
    sample = side.array(next(iter(PRODUCTS.values())).x, dtype)
    engine = get_backend(column.engine).engine
    return engine.unsupported(Request(dtype, device_kind(sample), shape=tuple(sample.shape)))
