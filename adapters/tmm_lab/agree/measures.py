"""What is computed, topic by topic, in one configuration and dtype; whatever goes wrong is kept, not raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tmm_core import get_backend, use_backend
from tmm_core.backend import Request

from .configurations import Configuration
from .frameworks import Framework, framework
from .inputs import CASES

__all__ = ["TOPICS", "Key", "Measured", "measure"]

Numbers = NDArray[Any]

TOPICS: dict[str, Callable[[Framework, Any], dict[str, Numbers]]] = {
    "product": lambda framework, case: framework.product(case),
    "adjoint": lambda framework, case: framework.product(case, adjoint=True),
    "correlate": lambda framework, case: framework.correlate(case),
    "differentiate": lambda framework, case: framework.differentiate(case),
    "stream": lambda framework, case: framework.stream(case),
    "model": lambda framework, case: framework.model(case),
    "train": lambda framework, case: framework.train(case),
}


class Key(NamedTuple):
    """Which array it is."""

    topic: str
    case: str
    part: str
    """The name of a parameter, for example; empty where a case has but one array."""


@dataclass
class Measured:
    """What a configuration gave of a topic in one dtype."""

    arrays: dict[Key, Numbers] = field(default_factory=dict)
    fault: str | None = None
    """The error that it ended with."""
    refusal: str | None = None
    """Why the engine does not serve it: said beforehand, and no error."""


def measure(configuration: Configuration, dtype: str, topic: str) -> Measured:
    """Compute all cases of a topic, if the library has it."""
    measured = Measured()
    if not configuration.has(topic):
        return measured
    try:
        own = framework(configuration.library, dtype)
        measured.refusal = get_backend(configuration.engine).engine.unsupported(Request(dtype, own.device))
        if measured.refusal is None:
            with own.computing(), use_backend(configuration.engine):
                for name, case in CASES[topic]().items():
                    found = TOPICS[topic](own, case)
                    measured.arrays.update({Key(topic, name, part): array for part, array in found.items()})
    except Exception as error:  # of any library: it is one result's failure, and the others are still to come
        first = (str(error).strip().splitlines() or [""])[0]
        measured.fault = f"{type(error).__name__}: {first}"
    return measured
