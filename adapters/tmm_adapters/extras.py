"""How to install a library that is missing: by the extra of this distribution that brings it, or by itself."""

from __future__ import annotations

import functools
import re
from importlib.metadata import requires

__all__ = ["how_to_install"]

_DISTRIBUTION = "tmm-core"
_PURPOSES = ("train", "train-jax", "texts", "hub", "bench")
"""The extras that are named after what people do, an extra before those that include it."""


def how_to_install(*libraries: str) -> str:
    """Return the command that installs libraries, by their import names.

    Where several extras bring all of them, each is offered, but none that includes another.

    Examples
    --------
    >>> how_to_install("optax", "orbax.checkpoint")
    "pip install 'tmm-core[train-jax]'"
    """
    wanted = {_canonical(library) for library in libraries}
    fitting: list[str] = []
    for extra in _PURPOSES:
        brought = _brought_by(extra)
        if all(_brings(brought, name) for name in wanted) and not any(brought >= _brought_by(e) for e in fitting):
            fitting.append(extra)
    if not fitting:
        return f"pip install {' '.join(library.partition('.')[0] for library in libraries)}"
    return " or ".join(f"pip install '{_DISTRIBUTION}[{extra}]'" for extra in fitting)


@functools.cache
def _brought_by(extra: str) -> frozenset[str]:
    """Return the names of the distributions that an extra brings."""
    of = re.compile(rf"""extra == ['"]{extra}['"]""")
    requirements = [requirement for requirement in requires(_DISTRIBUTION) or () if of.search(requirement)]
    return frozenset(_canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements)


def _brings(brought: frozenset[str], name: str) -> bool:
    """Return whether a library is among the brought: a part of one, such as pyarrow.parquet, or what has only parts."""
    whole = name.split("-")[0]
    return bool({name, whole} & brought) or any(other.startswith(f"{name}-") for other in brought)


def _canonical(name: str) -> str:
    """Return an import name, or that of a distribution, in the spelling of package indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()
