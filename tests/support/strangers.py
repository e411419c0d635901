"""Backends of other people, registered for one test: in distributions of their own, as entry points are found."""

from __future__ import annotations

import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tmm_core._dispatch import choice
from tmm_core.backend import _entries, _registry

__all__ = ["Register", "forget_backends", "install", "install_project", "registering"]

Register = Callable[[str, object], None]


def forget_backends() -> None:
    """Let the core read entry points, choose and load anew."""
    described = (_entries.entries, _registry._described, _registry._described_or_none, _registry._usable)
    for cached in (*described, choice._candidates, choice._engine_or_none, choice.bridge_of):
        cached.cache_clear()


def install_project(folder: Path, project: Path) -> str:
    """Write the metadata of the distribution in the folder `project`, and return the name of its one entry point."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    ((group, entries),) = described["entry-points"].items()
    ((name, value),) = entries.items()
    install(folder, name, value, group=group)
    return name


def install(folder: Path, name: str, value: str, *, group: str = _entries.GROUP) -> None:
    """Write the metadata of a distribution whose entry point `name` is the object `value`."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


def registering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Yield what registers an object as a backend, until the test ends; for a fixture to yield from."""

    def register(name: str, backend: object) -> None:
        module = types.ModuleType(f"stranger_{name}")
        module.backend = backend
        monkeypatch.setitem(sys.modules, module.__name__, module)
        install(tmp_path, name, f"{module.__name__}:backend")
        forget_backends()

    monkeypatch.syspath_prepend(tmp_path)
    yield register
    monkeypatch.undo()
    forget_backends()
