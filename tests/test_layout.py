"""The shape of the project: what imports what, what is public, and that the documents name what exists."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tmm_core
from tmm_lab.cli import build_parser

TESTS = Path(__file__).parent
ROOT = TESTS.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def test_the_core_imports_no_array_library() -> None:
    heavy = ("numpy", "torch", "jax", "numba", "cupy", "dask", "scipy")
    code = f"import sys, tmm_core; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_roots_and_folders_of_tests_are_no_packages() -> None:
    shadowing = [*ROOT.glob("backends/__init__.py"), *ROOT.glob("adapters/__init__.py"), *TESTS.rglob("__init__.py")]
    assert not shadowing, "there are libraries that install packages of these names"


def test_every_test_lies_in_the_folder_of_its_subject() -> None:
    assert {path.name for path in TESTS.glob("*.py")} == {"conftest.py", Path(__file__).name}
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(names) == len(set(names)), "pytest imports test files by their names, so that two cannot have one"


def test_every_skip_can_be_forbidden() -> None:
    """By `TMM_TEST_REQUIRE`, which `support.requirements` reads."""
    files = set(TESTS.rglob("*.py")) - {TESTS / "support" / "requirements.py", Path(__file__)}
    skips = re.compile(r"importorskip\(|pytest\.skip\(|mark\.skip")
    assert not [path for path in files if skips.search(path.read_text())]


def public_modules() -> list[str]:
    names = ["tmm_core"]
    for package in ("tmm_core", "tmm_adapters", "tmm_lab"):
        path = importlib.import_module(package).__path__
        names += [m.name for m in pkgutil.walk_packages(path, package + ".") if "._" not in m.name]
    return names


@pytest.mark.parametrize("name", public_modules())
def test_public_modules_say_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    names = getattr(module, "__all__", None)
    assert names is not None or hasattr(module, "__path__"), f"{name} has no __all__"
    for public in names or ():
        assert hasattr(module, public), f"{name}.__all__ names {public!r}, which is not there"
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            assert thing.__doc__, f"{name}.{public} has no docstring"


def test_the_readme_names_what_exists() -> None:
    for public in set(re.findall(r"tmm_core\.(\w+)", README)) - {"backends"}:
        assert public in tmm_core.__all__ or importlib.util.find_spec(f"tmm_core.{public}"), f"tmm_core.{public}?"
    for module, name in re.findall(r"from (tmm_[\w.]+) import (\w+)", README):
        assert hasattr(importlib.import_module(module), name), f"from {module} import {name}?"
    for extra in {e for group in re.findall(r"\.\[([\w,]+)\]", README) for e in group.split(",")}:
        assert extra in EXTRAS, f"the README installs the extra {extra!r}, which does not exist"
    for path in re.findall(r"`((?:tests|docs|adapters|backends|tmm_core|asv_bench)/[\w/.]*)`|\]\(([\w/.]+)\)", README):
        assert (ROOT / "".join(path)).exists(), f"{''.join(path)}?"


@pytest.mark.parametrize("command", re.findall(r"^    tmm (.+)", README, re.MULTILINE))
def test_the_readmes_commands_have_their_options(command: str) -> None:
    build_parser().parse_args(shlex.split(command, comments=True))


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
