"""The benchmarks for asv: it finds them, and they measure what `tmm bench` does."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import tmm_core
from tmm_lab import bench
from tmm_lab.bench.topics import TOPICS
from tmm_lab.bench.turns import Ratio

pytestmark = pytest.mark.usefixtures("one_thread")

ASV = Path(__file__).parent.parent.parent / "asv_bench"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the asv benchmarks as asv does."""
    monkeypatch.syspath_prepend(ASV)
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def modules() -> list[str]:
    return sorted(path.stem for path in (ASV / "benchmarks").glob("*.py") if path.stem != "__init__")


def test_asv_benchmarks_use_public_names_only() -> None:
    """So that they measure older commits as well."""
    public = {"tmm_lab.bench": bench.__all__, "tmm_core": tmm_core.__all__}
    assert len(modules()) >= 6
    for name in ["__init__", *modules()]:
        for node in ast.walk(ast.parse((ASV / "benchmarks" / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.startswith("tmm_"):
                assert {alias.name for alias in node.names} <= set(public[node.module]), name
            elif isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("tmm_") and a.name != "tmm_core"], name
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tmm_core":
                assert node.attr in tmm_core.__all__, name


def test_asv_takes_no_constant_for_a_setup(suite: Callable[[str], ModuleType]) -> None:
    """It calls whatever is named `setup` in any mixture of cases, in a module or a class."""
    for name in modules():
        for holder in (suite(name), *(thing for thing in vars(suite(name)).values() if isinstance(thing, type))):
            for member in dir(holder):
                assert member.lower() not in ("setup", "teardown", "setup_cache") or callable(getattr(holder, member))


def test_lengths_differ_in_nothing_but_length(suite: Callable[[str], ModuleType]) -> None:
    scaling = suite("scaling")
    sizes = {
        (w.shape[0], x.shape[0] * x.shape[1], x.shape[2])
        for w, x in (scaling.product_of(n).args for n in scaling.LENGTHS)
    }
    assert sizes == {(1, scaling.LENGTHS[-1], 64)}


def test_growth_is_measured_against_log_n(suite: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of 2^20 may take twice as long as one of 2^10."""
    scaling = suite("scaling")
    monkeypatch.setattr(scaling, "product_of", lambda n: n)
    monkeypatch.setattr(scaling, "compare", lambda long, short: Ratio.of([2.0] * 3, [1.0] * 3))
    assert scaling.Scaling().track_growth(2**20) == {"samples": [1.0] * 3, "number": 1}
    assert scaling.Scaling().track_growth(2**10) == {"samples": [2.0] * 3, "number": 1}


def test_first_calls_are_programs(suite: Callable[[str], ModuleType]) -> None:
    """One with a cache folder of its own, in the folder that asv removes, and one with that of all."""
    benchmark = suite("first_call").FirstCall()
    for run, own in ((benchmark.timeraw_empty_cache, True), (benchmark.timeraw_filled_cache, False)):
        statement, preparation = run()
        for text in (statement, preparation):
            compile(text, "<benchmark>", "exec")
        assert ("NUMBA_CACHE_DIR" in preparation) == own


def test_asv_skips_what_is_missing_and_less_is_better(
    suite: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    product = suite("product")
    package = sys.modules["benchmarks"]
    monkeypatch.setattr(package, "prepare", lambda *_: None)
    with pytest.raises(NotImplementedError, match="'none' is not installed"):
        product.Product().setup(64, 1, "none")
    assert package.samples(Ratio.of([1.0, 1.0], [8.0, 4.0])) == {"samples": [0.125, 0.25], "number": 1}


def test_the_quick_set_has_every_topic(suite: Callable[[str], ModuleType]) -> None:
    """Of `tmm bench`, and the import; what grows with length, or compiles, is not quick."""
    quick = suite("quick")
    topics = {*TOPICS, "importing"}
    bases = {
        base.__module__.split(".")[1]
        for thing in vars(quick).values()
        if isinstance(thing, type)
        for base in [thing.__base__]
    }
    assert bases == topics
    for thing in vars(quick).values():
        if isinstance(thing, type) and hasattr(thing, "params"):
            assert all(set(few) <= set(many) for few, many in zip(thing.params, thing.__base__.params, strict=True))


def test_asv_finds_its_benchmarks_and_the_repository() -> None:
    text = re.sub(r"^ *//.*$", "", (ASV / "asv.conf.json").read_text(), flags=re.M)
    conf = json.loads(text)
    assert (ASV / conf["benchmark_dir"] / "__init__.py").is_file()
    assert (ASV / conf["repo"] / "pyproject.toml").is_file()
    ignored = (ASV.parent / ".gitignore").read_text().splitlines()
    assert {f"/asv_bench/{conf[key]}/" for key in ("results_dir", "html_dir")} <= set(ignored)
