"""Entry points of backends, and the libraries that are installed; nothing is imported to find either."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from ..errors import NotFoundError

__all__ = ["BUILT_IN", "GROUP", "entries", "is_installed", "remedy"]

GROUP = "tmm_core.backends"
BUILT_IN = ("array_api", "numpy")
"""The backends of the core: the definition, in the arrays' own namespace or in NumPy."""


@functools.cache
def entries() -> dict[str, EntryPoint]:
    """Return the entry points by name; two that claim one name are an error, since a choice must be clear."""
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP)):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value or entry.name in ("auto", *BUILT_IN):
            raise NotFoundError(
                f"backend name {entry.name!r} is taken: {entry.value} cannot register it in {GROUP!r}; uninstall one"
            )
    return found


def is_installed(library: str) -> bool:
    """Return whether a library can be found by its import name."""
    try:
        return find_spec(library) is not None
    except (ImportError, ValueError):  # a part of a missing library, or a module without a spec
        return False


def remedy(name: str, libraries: tuple[str, ...]) -> str:
    """Return what installs the libraries of a backend: extras of its distribution that are named after it, or pip."""
    entry = entries().get(name)
    extras = [] if entry is None or entry.dist is None else entry.dist.metadata.get_all("Provides-Extra") or []
    fitting = [extra for extra in extras if extra.startswith(name)]
    if entry is None or entry.dist is None or not fitting:
        return f"pip install {' '.join(libraries)}"
    return " or ".join(f"pip install '{entry.dist.name}[{extra}]'" for extra in fitting)
