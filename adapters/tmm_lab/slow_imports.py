"""Tells of libraries that take seconds to import, wherever in a program they are imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

from .progress import waiting

__all__ = ["TITLES", "slow_imports_shown"]

TITLES = {
    "accelerate": "Accelerate",
    "cupy": "CuPy",
    "datasets": "Datasets",
    "jax": "JAX",
    "matplotlib": "Matplotlib",
    "numba": "Numba",
    "numpy": "NumPy",
    "optax": "Optax",
    "orbax": "Orbax",
    "scipy": "SciPy",
    "torch": "PyTorch",
    "transformers": "Transformers",
}
"""What is told of, with the names for people; all modules of these packages are, for some are imported late."""


@contextmanager
def slow_imports_shown() -> Iterator[None]:
    """Let every import of such a library in the block be a wait."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and has them loaded in a wait; what they import belongs to it."""

    def __init__(self) -> None:
        self.loading = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of these libraries is loaded; None leaves it to the other finders."""
        title = TITLES.get(fullname.partition(".")[0])
        if title is None or self.loading or threading.current_thread() is not threading.main_thread():
            return None
        others = (other.find_spec(fullname, path, target) for other in sys.meta_path if other is not self)
        found = next((spec for spec in others if spec is not None), None)
        if found is None or found.origin is None or not isinstance(found.loader, SourceFileLoader):
            return found
        loader = _Loader(fullname, found.origin, self, title)
        return spec_from_file_location(
            fullname, found.origin, loader=loader, submodule_search_locations=found.submodule_search_locations
        )


class _Loader(SourceFileLoader):
    """Loads a module, and says so meanwhile."""

    def __init__(self, fullname: str, path: str, finder: _Finder, title: str) -> None:
        super().__init__(fullname, path)
        self._finder, self._title = finder, title

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of the module."""
        if self._finder.loading:  # a cycle of imports has begun meanwhile
            super().exec_module(module)
            return
        self._finder.loading = True
        try:
            with waiting(f"loading {self._title}"):
                super().exec_module(module)
        finally:
            self._finder.loading = False
