"""What a test needs that may be missing: it is skipped with its reason, or fails where it must run.

`TMM_TEST_REQUIRE` names, with commas between, the libraries, programs, the system (`linux`, `posix`) and the processor
(`x86_64`) that must be there; a missing one of those fails the run. Every test that depends on something optional asks
here, so every skip can be forbidden.
"""

import importlib
import importlib.util
import os
import platform
import shutil
import sys
from types import ModuleType
from typing import NoReturn

import pytest

from tmm_core.errors import NotFoundError
from tmm_core.testing import GPU_LIBRARIES, LIBRARIES, Library, get_library

REQUIRED = {name.strip() for name in os.environ.get("TMM_TEST_REQUIRE", "").split(",")} - {""}

SYSTEM = {sys.platform, os.name, platform.machine()}
"""What this system is called."""


def missing_requirements() -> list[str]:
    """Return what `TMM_TEST_REQUIRE` names and is neither a library, nor a program, nor this system."""
    here = {name for name in REQUIRED if importlib.util.find_spec(name) or shutil.which(name)} | SYSTEM
    return sorted(REQUIRED - here)


def skip_without(name: str, reason: object) -> NoReturn:
    """Skip the test, or the file, for want of a library, a program or a system; fail where that is required."""
    if name in REQUIRED:
        pytest.fail(f"TMM_TEST_REQUIRE asks for {name}: {reason}")
    pytest.skip(f"{name}: {reason}", allow_module_level=True)


def import_or_skip(module: str) -> ModuleType:
    """Import a library, or skip the test."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        skip_without(module.partition(".")[0], f"cannot be imported: {error}")


def library_or_skip(name: str) -> Library:
    """Return a library of `tmm_core.testing`."""
    try:
        return get_library(name)
    except NotFoundError as error:
        skip_without((LIBRARIES | GPU_LIBRARIES)[name].partition(".")[0], error)


def system_or_skip(name: str, reason: str) -> None:
    """Skip the test where the system or its processor is another."""
    if name not in SYSTEM:
        skip_without(name, reason)
