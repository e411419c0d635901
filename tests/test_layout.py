"""The shape of the project: what imports what, what is public, and that the documents name what exists."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tmm_core
from tmm_core.backend._entries import GROUP

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def test_the_core_imports_no_array_library() -> None:
    heavy = ("numpy", "torch", "jax", "numba", "cupy", "dask", "scipy")
    code = f"import sys, tmm_core; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_source_roots_hold_no_package_of_their_own() -> None:
    for root in ("backends", "adapters", "tests"):
        assert not (ROOT / root / "__init__.py").exists(), f"{root}/__init__.py would shadow an installed library"


def public_modules() -> list[str]:
    names = ["tmm_core"]
    for package in ("tmm_core", "tmm_adapters"):
        path = importlib.import_module(package).__path__
        names += [m.name for m in pkgutil.walk_packages(path, package + ".") if "._" not in m.name]
    return names


@pytest.mark.parametrize("name", public_modules())
def test_public_modules_say_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    if hasattr(module, "__path__") and name != "tmm_core":
        return
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public!r}, which is not there"
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            assert thing.__doc__, f"{name}.{public} has no docstring"


def test_the_readme_names_what_exists() -> None:
    for public in set(re.findall(r"tmm_core\.(\w+)", README)) - {GROUP.removeprefix("tmm_core.")}:
        assert public in tmm_core.__all__ or importlib.util.find_spec(f"tmm_core.{public}"), f"tmm_core.{public}?"
    for extra in {e for group in re.findall(r"\.\[([\w,]+)\]", README) for e in group.split(",")}:
        assert extra in EXTRAS, f"the README installs the extra {extra!r}, which does not exist"


def test_constraints_pin_every_direct_requirement() -> None:
    def canonical(name: str) -> str:
        return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower()

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all("==" in line and "+" not in line for line in lines)
    pinned = {canonical(line) for line in lines}
    for extra, requirements in {"": PROJECT["project"]["dependencies"], **EXTRAS}.items():
        if extra.startswith("cupy"):  # needs a GPU, which continuous integration has not
            continue
        for requirement in requirements:
            assert canonical(requirement) in pinned | {"tmm-core"}, f"{requirement} of [{extra}] is not pinned"
