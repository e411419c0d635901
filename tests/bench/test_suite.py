"""`tmm bench`: asv finds the benchmarks and runs them, and tables and JSON tell what it found."""

from __future__ import annotations

import ast
import importlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmarks
import pytest
from support.requirements import import_or_skip, skip_without

import tmm_core
from tmm_lab import bench
from tmm_lab.bench import machine, suite
from tmm_lab.bench.suite import Result
from tmm_lab.bench.tables import table
from tmm_lab.cli import main
from tmm_lab.cli.bench import TOPICS

FOLDER = Path(benchmarks.__file__).parent
MODULES = {path.stem: importlib.import_module(f"benchmarks.{path.stem}") for path in FOLDER.glob("[!_]*.py")}
CLASSES = {
    f"{name}.{thing.__name__}": thing
    for name, module in MODULES.items()
    for thing in vars(module).values()
    if isinstance(thing, type) and thing.__module__ == module.__name__
}


# --- The benchmarks ---------------------------------------------------------------------------------------------------


def test_benchmarks_use_public_names_only() -> None:
    """So that they measure other commits as well."""
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.startswith("tmm_"):
                assert {alias.name for alias in node.names} <= set(importlib.import_module(node.module).__all__), path
            elif isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("tmm_") and a.name != "tmm_core"], path
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tmm_core":
                assert node.attr in tmm_core.__all__, path
    assert set(bench.__all__) >= {"compare", "take_turns"}


def test_asv_takes_no_constant_for_a_setup() -> None:
    """It calls whatever is named `setup` in any mixture of cases, in a module or a class."""
    for holder in (*MODULES.values(), *CLASSES.values()):
        for member in dir(holder):
            assert member.lower() not in ("setup", "teardown", "setup_cache") or callable(getattr(holder, member))


def test_the_quick_set_is_a_part_of_the_others() -> None:
    quick = {name: thing for name, thing in CLASSES.items() if name.startswith("quick.")}
    assert len(quick) > 6
    for thing in quick.values():
        few, many = (getattr(cls, "params", ()) for cls in (thing, thing.__base__))
        assert all(set(some) <= set(every) for some, every in zip(few, many, strict=True)), thing


def test_every_topic_has_benchmarks_whose_parameters_are_named() -> None:
    for topic in TOPICS:
        assert any(name.startswith(f"{topic}.") for name in CLASSES)
    for name, thing in CLASSES.items():
        assert len(getattr(thing, "params", ())) == len(getattr(thing, "param_names", ())), name


def test_lengths_differ_in_nothing_but_length() -> None:
    scaling = MODULES["scaling"]
    calls = [scaling.product_of(n).args for n in scaling.LENGTHS]
    assert {(w.shape[0], x.shape[0] * x.shape[1], x.shape[2]) for w, x in calls} == {(1, scaling.LENGTHS[-1], 64)}


def test_growth_is_measured_against_log_n(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of 2^20 may take twice as long as one of 2^10."""
    scaling = MODULES["scaling"]
    monkeypatch.setattr(scaling, "product_of", lambda n: n)
    monkeypatch.setattr(scaling, "compare", lambda long, short: [2.0] * 3)
    assert scaling.Scaling().track_growth(2**20)["samples"] == [1.0] * 3
    assert scaling.Scaling().track_growth(2**10)["samples"] == [2.0] * 3


def test_first_calls_are_programs() -> None:
    """One with a cache folder of its own, in the folder that asv removes, and one with that of all."""
    benchmark = MODULES["first_call"].FirstCall()
    for run, own in ((benchmark.timeraw_empty_cache, True), (benchmark.timeraw_filled_cache, False)):
        statement, preparation = run()
        for text in (statement, preparation):
            compile(text, "<benchmark>", "exec")
        assert ("NUMBA_CACHE_DIR" in preparation) == own


# --- Results ----------------------------------------------------------------------------------------------------------

PARAMS = {"n": "1024", "allocator": "default"}
RESULTS = [
    Result("product.Against", "product", "of its time", {**PARAMS, "baseline": "jnp.fft"}, 0.2, 0.1, 0.25, [0.1, 0.3]),
    Result("product.Against", "product", "of its time", {**PARAMS, "baseline": "torch.fft"}, None),
    Result("memory.Memory", "memory", "bytes", {**PARAMS, "n": "64", "backend": "numba"}, 3 * 2.0**20),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], dict[str, str]]]:
    """Results made up in place of measured ones; what was asked for."""
    asked = []
    monkeypatch.setattr(suite, "run_benchmarks", lambda *given: asked.append(given) or (RESULTS, ["no library"]))
    return asked


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_ratio_is_told_as_times_as_fast_with_its_quartiles_in_order() -> None:
    heading, _, row = cells(table(RESULTS[:2]))
    assert heading == ["n", "allocator", "jnp.fft", "torch.fft"]
    assert row == ["1024", "default", "5.0 (4.0 to 10.0)", "failed"]


def test_table_and_json_tell_the_same(measured: list, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "product", "--backend", "torch", "--threads", "1"]
    assert main(command) == 1, "one failed"
    said = capsys.readouterr().out
    assert [row[-1] for row in cells(said)] == ["torch.fft", "---", "failed", "numba", "---", "3"]
    assert "n/a: no library" in said
    assert main([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [result["value"] for result in told["results"]] == [result.value for result in RESULTS]
    assert [result["samples"] for result in told["results"]] == [[0.1, 0.3], None, None]
    assert told["skipped"] == ["no library"]
    assert told["settings"] == {"TMM_BACKEND": "torch", "TMM_BENCH_THREADS": "1"}
    assert set(told["machine"]) >= {"processor", "vectors", "system", "versions"}


def selected(patterns: Sequence[str]) -> dict[str, set[tuple[Any, ...]]]:
    """Return by class the parameters that asv selects, as asv selects them."""
    import itertools
    import re

    found: dict[str, set[tuple[Any, ...]]] = {}
    for name, thing in CLASSES.items():
        for case in itertools.product(*getattr(thing, "params", ())):
            if any(re.search(pattern, f"{name}.track_it({', '.join(map(repr, case))})") for pattern in patterns):
                found.setdefault(name, set()).add(case)
    return found


def test_options_select_benchmarks(measured: list) -> None:
    def asked(*options: str) -> tuple[dict[str, set[tuple[Any, ...]]], dict[str, str]]:
        assert main(["bench", *options, "--backend", "torch"]) == 1
        patterns, environment = measured.pop()
        return selected(patterns), environment

    def topics(found: dict[str, Any]) -> set[str]:
        return {name.partition(".")[0] for name in found}

    assert topics(asked()[0]) == set(TOPICS[:3])
    assert topics(asked("decoding", "packing")[0]) == {"decoding", "packing"}
    quick = asked("--quick", "product", "memory")[0]
    assert set(quick) == {"quick.Product", "quick.ProductAgainst", "quick.Memory"}
    kept = asked("--allocator", "keep")[0]
    assert {case[2] for case in kept["product.ProductAgainst"]} == {"keeps pages"}
    assert set(kept) >= {"product.Product", "memory.Memory"}, "which know of no allocator"
    environment = asked("--lengths", "64", "128", "--threads", "1")[1]
    assert environment == {"TMM_BACKEND": "torch", "TMM_BENCH_THREADS": "1", "TMM_BENCH_LENGTHS": "64 128"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["speed"], "there is no topic 'speed'"),
        (["--threads", "0"], "--threads must be between 1 and"),
        (["--threads", "4097"], "--threads must be between 1 and"),
        (["--lengths", "1024", "1"], "--lengths must be between 2 and"),
        (["--lengths", "1048577"], "--lengths must be between 2 and"),
        (["--backend", "none"], "unknown backend 'none'"),
    ],
)
def test_bad_options_are_one_clear_line(
    measured: list, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["bench", "--backend", "torch", *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("tmm: error: ")
    assert said in error
    assert not measured


def test_without_a_checkout_there_is_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "SUITE", tmp_path)
    assert main(["bench", "--backend", "torch"]) == 2
    assert "clone the repository" in capsys.readouterr().err


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (0.3 * machine.cores(), 0.0, 0.0), raising=False)
    assert "load average is" in (machine.busy() or "")
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (0.1, 5.0, 5.0))
    assert machine.busy() is None


@pytest.mark.slow
def test_asv_runs_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """As a whole: asv's command, its processes and its files."""
    import_or_skip("asv")
    if not (FOLDER.parents[1] / ".git").exists():
        skip_without("git", "asv names results by commits, and this is no repository")
    command = ["bench", "memory", "--quick", "--json", "--lengths", "65536", "--threads", "1", "--backend", "torch"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    found = {result["params"]["backend"]: result for result in told["results"]}
    assert {"torch", "torch.fft"} <= set(found)
    for result in found.values():
        assert (result["benchmark"], result["unit"]) == ("quick.Memory.track_product", "bytes")
        assert result["params"]["n"] == "65536"
        assert 0 < result["value"] < 2**30
        assert math.isfinite(result["value"])
