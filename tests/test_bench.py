"""Benchmarks: ratios are computed rightly, of results that agree, and what is missing is told apart."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import tmm_core
from tmm_adapters import bench
from tmm_adapters.bench import figures, machine, measure, process, rivals, training
from tmm_adapters.bench.figures import Figure, Task
from tmm_adapters.bench.turns import FULL, QUICK, Pace, Ratio, compare, take_turns
from tmm_adapters.cli import main
from tmm_core import TMMConfig

pytestmark = pytest.mark.usefixtures("one_thread")

ASV = Path(__file__).parent.parent / "asv_bench"
SMALL = measure.Case(24, 2, elements=24 * 8 * 3)
NEEDS = {"torch.fft": "torch", "jnp.fft": "jax", "dense T @ x": "torch", "scipy.signal.fftconvolve": "scipy"}
RATIO = Ratio.of([0.001, 0.002, 0.001], [0.0155, 0.0312, 0.0149])


class Clock:
    """A clock that only computations move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: Callable[[], float]) -> Callable[[], float]:
        """Return a computation that takes as long as `seconds` says each time."""

        def compute() -> float:
            self.now += seconds()
            return self.now

        return compute


# Turns


def test_a_ratio_is_that_of_the_same_turn() -> None:
    """The machine becomes ten times as slow in the middle; medians of each side by itself would not be 3 apart."""
    clock = Clock()
    slow = iter([1.0, 1.0] + [1.0] * 2 * 3 + [10.0] * 2 * 4)
    sides = clock.taking(lambda: next(slow)), clock.taking(lambda: 3 * next(slow))
    ratio = compare(*sides, Pace(seconds=1.0, turns=7), clock=clock)
    assert ratio.turns == (3.0,) * 7
    assert (ratio.low, ratio.median, ratio.high) == (3.0, 3.0, 3.0)
    assert (ratio.ours, ratio.theirs) == (10.0, 30.0)


def test_quartiles_lie_within_the_turns() -> None:
    ratio = Ratio.of([2.0] * 5, [2.0, 4.0, 6.0, 8.0, 20.0])
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 3.0, 4.0)


def test_sides_take_turns_until_the_time_is_spent_and_warm_up_beforehand() -> None:
    clock, order = Clock(), []

    def side(name: str) -> Callable[[], float]:
        return clock.taking(lambda: order.append(name) or 1.0)

    assert take_turns([side("a"), side("b")], Pace(seconds=9.0, turns=2), clock=clock) == [[1.0] * 5] * 2
    assert order == ["a", "b"] * 5
    assert len(take_turns([side("a"), side("b")], Pace(seconds=0.0, turns=3), clock=clock)[0]) == 3
    order.clear()
    first = count()
    compiles = clock.taking(lambda: 100.0 if next(first) == 0 else 1.0)
    assert compare(compiles, side("b"), Pace(seconds=0.0, turns=3), clock=clock).ours == 1.0
    assert order == ["b"] * 4


def test_results_are_compared_before_anything_is_timed() -> None:
    with pytest.raises(RuntimeError, match="differ"):
        compare(lambda: 1.0, lambda: 2.0, check=lambda a, b: measure.agree("it", a, b), clock=lambda: 1 / 0)


# Rivals


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", rivals.RIVALS)
def test_rivals_agree_with_the_definition(name: str, heads: int) -> None:
    pytest.importorskip(NEEDS[name])
    rng = np.random.default_rng(heads)
    w, x = rng.standard_normal((heads, 33)), rng.standard_normal((2, 33, 6))
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    found = np.asarray(rivals.RIVALS[name](w.astype(np.float32), x.astype(np.float32))())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_gradients_agree_and_are_those_of_filters_and_signals() -> None:
    ours, theirs = (measure.gradients(SMALL, backend)() for backend in ("torch", None))
    assert [g.shape for g in theirs] == [(2, 24), SMALL.shape]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-4)


def test_a_comparison_times_ours_and_theirs() -> None:
    pace = Pace(seconds=0.0, turns=2)
    for ratio in (
        measure.compare_products(SMALL, "torch.fft", "torch", pace),
        measure.compare_gradients(SMALL, "torch", pace),
    ):
        assert len(ratio.turns) == 2
        assert min(ratio.turns) > 0


@pytest.mark.parametrize("wrong", [lambda y: y + 0.01, lambda y: y * np.float32(np.nan), lambda y: y * 1.01])
def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, wrong: Callable) -> None:
    right = rivals.RIVALS["torch.fft"]
    monkeypatch.setitem(rivals.RIVALS, "torch.fft", lambda w, x: lambda: wrong(right(w, x)()))
    with pytest.raises(RuntimeError, match=r"torch\.fft and ours differ by"):
        measure.compare_products(SMALL, "torch.fft", "torch", QUICK)


def test_arrays_have_as_many_elements_at_every_length() -> None:
    for n in (*measure.LENGTHS, 1021, measure.LONGEST):
        for heads in measure.HEADS:
            case = measure.Case(n, heads)
            assert case.shape[1] == n
            assert case.shape[2] % heads == 0 < case.shape[2]
            assert np.prod(case.shape) == pytest.approx(8 * 1024 * 512, rel=0.01)
    w, x = SMALL.arrays()
    assert (w.shape, x.shape, w.dtype, x.dtype) == ((2, 24), (1, 24, 24), np.float32, np.float32)


# Training


def test_training_steps_with_the_mixing_replaced() -> None:
    config = TMMConfig(d_model=8, n_layers=2, n_heads=2, vocab_size=16, max_len=12)
    given, dense, none = (
        training.training_step(config, mixing, tokens_a_step=24)
        for mixing in (None, training.dense_mixing, training.no_mixing)
    )
    first = given()
    assert dense() == pytest.approx(first, abs=1e-5), "the same model, by a matrix"
    assert abs(none() - first) > 1e-5, "another model"
    assert given() < first, "it learns"


@pytest.mark.parametrize("bias", [True, False])
def test_dense_mixing_agrees_with_the_definition(bias: bool) -> None:
    rng = np.random.default_rng(0)
    w, x, b = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((2, 9), (3, 7, 4), (2, 9)))
    b = b if bias else None
    expected = tmm_core.mix_tokens(w, x, b, backend="array_api")
    torch.testing.assert_close(training.dense_mixing(w, x, b), expected)


# What is missing


@pytest.mark.parametrize("name", rivals.RIVALS)
def test_a_missing_library_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == NEEDS[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, NEEDS[name], None)
    with pytest.raises(NotImplementedError, match=f"{NEEDS[name]} cannot be imported"):
        rivals.RIVALS[name](*SMALL.arrays())


def test_a_matrix_that_nobody_holds_is_nothing_to_measure() -> None:
    w, x = measure.Case(rivals.MOST_DENSE + 1, 1).arrays()
    with pytest.raises(NotImplementedError, match="8193 rows"):
        rivals.dense(w, x)
    with pytest.raises(NotImplementedError, match="16384 rows"):
        training.compare_training(16384, 4, "dense T @ x", "torch")


# Processes


def test_an_allocator_that_keeps_its_pages_has_no_page_faults() -> None:
    if not process._has_glibc():
        pytest.skip("the C library is not glibc")
    code = (
        "import resource, sys, numpy as np; from tmm_adapters.bench import prepare\n"
        "prepare(1, sys.argv[1])\n"
        "for _ in range(3):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    np.full(2**25, 1, np.int8); np.full(2**26, 1, np.int8)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    faults = [
        int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
        for how in process.ALLOCATORS
    ]
    assert faults[1] < 10 < faults[0], "96 MiB are 48 pages at the least, should the system make them huge"


@pytest.mark.parametrize("first", ["pass", "import torch, numba"])
def test_as_many_threads_are_used_as_asked_for(first: str) -> None:
    """By Torch and by the engine, whatever the user exported, and no thread of Numba's own is started."""
    pytest.importorskip("numba")
    code = (
        f"import os; from tmm_adapters.bench import prepare; {first}; prepare(2)\n"
        "import torch; from numba.np.ufunc import parallel; from tmm_backends._numba.threads import thread_count\n"
        "print(torch.get_num_threads(), thread_count(), os.environ['NPROC'], parallel._is_initialized)"
    )
    for exported in ("1", "8"):
        variables = {**os.environ, "OMP_NUM_THREADS": exported, "NUMBA_NUM_THREADS": exported}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
        assert done.stdout == "2 2 2 False\n", exported


def test_extra_memory_is_what_a_call_holds_beyond_its_result() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the system does not tell a process's peak since a moment")

    def call() -> np.ndarray:
        temporary = np.ones(2**25, np.int8)
        return np.concatenate([temporary[: 2**24], np.ones(2**24, np.int8)])  # 32, 16 and 32 MiB at once

    np.ones(2**28, np.int8)  # the peak so far is no matter
    assert process.extra_memory(call, 2**25) == pytest.approx(48 * 2**20, abs=2**21)


def test_the_processor_is_described() -> None:
    described = machine.describe(2, "torch")
    assert {"processor", "vectors", "system", "versions", "ours"} <= set(described)
    assert f"torch {torch.__version__}" in described["versions"]
    assert f"{process.cores()} cores" in described["processor"]


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0, 0.0, 0.0), raising=False)
    assert "load average is 5.0" in machine.busy()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 5.0, 5.0))
    assert machine.busy() is None


@pytest.mark.filterwarnings("default")  # what other libraries say when they are imported
def test_figures_are_measured_in_processes_of_their_own() -> None:
    def one(task: Task) -> Figure:
        return next(figures.figures([[task]], 1, "default"))[0]

    task = Task("memory", 2**20, 1, "ours", "torch", quick=True)
    figure = one(task)
    assert figure.task == task
    assert 0 < figure.bytes < 2**28, "or why it is missing"
    with pytest.raises(LookupError, match="unknown backend 'none'") as error:
        one(replace(task, backend="none"))
    assert "in product_memory" in error.value.__notes__[0], "where it happened over there"
    missing = one(Task("product", 16384, 1, "dense T @ x", "torch"))
    assert missing.ratio is None
    assert "16384 rows" in missing.missing


@pytest.mark.filterwarnings("default")
def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_measure", os._exit)  # fails on its arguments before anything is sent
    with pytest.raises(OSError, match="the measuring process died"):
        next(figures.figures([[Task("memory", 64, 1, "ours", "torch")]], 1, "default"))


# tmm bench


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Task, int, str]]:
    """Figures made up in place of measured ones; the tasks that were asked for."""
    asked = []

    def made_up(_: object, task: Task, threads: int, allocator: str) -> Figure:
        asked.append((task, threads, allocator))
        if task.column == "jnp.fft":
            return Figure(task, missing="jax cannot be imported: No module named 'jax'")
        return Figure(task, bytes=3 * 2**20) if task.topic == "memory" else Figure(task, ratio=RATIO)

    monkeypatch.setattr(figures, "_measured", made_up)
    monkeypatch.setattr(process, "_has_glibc", lambda: True)
    return asked


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_table_and_json_tell_the_same(measured: list, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--backend", "torch", "--lengths", "1024", "1021", "--threads", "1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    tables = [cells(line) for line in said.splitlines() if line.startswith("|") and "---" not in line]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    told = {}
    heading: list[str] = []
    order = iter([("default", topic) for topic in ("product", "gradients", "memory")] + [("keeps pages", "product")])
    for row in tables:
        if row[0] == "n":
            heading, (allocator, topic) = row, next(order, ("keeps pages", "gradients"))
            continue
        for name, cell in zip(heading[2:], row[2:], strict=True):
            told[topic, allocator, int(row[0]), int(row[1]), name] = cell
    times = [told.pop(key) for key in list(told) if key[-1] == "ours" and key[0] != "memory"]
    assert times
    assert set(times) == {"1.0 ms"}
    assert len(found["figures"]) == len(told) == len(measured) / 2
    for figure in found["figures"]:
        cell = told[figure["topic"], figure["allocator"], figure["n"], figure["heads"], figure["column"]]
        if "missing" in figure:
            assert cell == "n/a"
        elif figure["topic"] == "memory":
            assert cell == f"{figure['bytes'] / 2**20:.1f}"
        else:
            ratio = figure["ratio"]
            assert cell == f"{ratio['median']:.1f} ({ratio['low']:.1f} to {ratio['high']:.1f})"
            assert len(ratio["turns"]) == 3
    reason = "jnp.fft: jax cannot be imported: No module named 'jax'"
    assert found["missing"] == [reason]
    assert f"n/a: {reason}" in said
    assert found["machine"]["ours"] == "backend 'torch', float32, 1 threads each side"


def test_quick_and_full_cover_what_they_say(measured: list, capsys: pytest.CaptureFixture[str]) -> None:
    def lengths(*options: str) -> dict[str, set[tuple[int, int]]]:
        measured.clear()
        assert main(["bench", "--backend", "torch", *options]) == 0
        assert all(threads == process.default_threads() for _, threads, _ in measured)
        grid: dict[str, set[tuple[int, int]]] = {}
        for task, _, _ in measured:
            grid.setdefault(task.topic, set()).add((task.n, task.heads))
        return grid

    full = lengths()
    assert full["product"] == {(n, h) for n in (512, 1024, 2048, 4096, 8192, 32768, 131072) for h in (1, 4)}
    assert full["gradients"] == {(n, h) for n in (1024, 2048, 4096, 8192) for h in (1, 4)}
    assert {(column, where) for task, _, where in measured if task.topic == "product" for column in [task.column]} == {
        (rival, allocator) for rival in rivals.RIVALS for allocator in process.ALLOCATORS
    }
    assert set(lengths("--quick")) == {"product", "gradients", "memory"}
    assert all(task.quick and task.n == 1024 for task, _, _ in measured)
    assert lengths("training") == {"training": {(n, 4) for n in (512, 1024, 2048, 8192, 16384)}}
    assert {(task.column, where) for task, _, where in measured} == {
        (column, "default") for column in ("no mixing", "dense T @ x")
    }
    assert "8192000 tokens/s" in capsys.readouterr().out
    assert set(lengths("--allocator", "keep")) == {"product", "gradients"}
    assert {where for _, _, where in measured} == {"keeps pages"}


def test_another_c_library_is_measured_as_it_is(
    measured: list, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "_has_glibc", lambda: False)
    assert main(["bench", "product", "--backend", "torch", "--lengths", "64"]) == 0
    assert {where for _, _, where in measured} == {"default"}
    assert "only glibc's allocator" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["speed"], "there is no topic 'speed'"),
        (["--threads", "0"], "--threads must be between 1 and"),
        (["--threads", "4097"], "--threads must be between 1 and"),
        (["--lengths", "1024", "1"], "--lengths must be between 2 and"),
        (["--lengths", "1048577"], "--lengths must be between 2 and"),
        (["--backend", "none"], "unknown backend 'none'"),
        (["memory", "--allocator", "keep"], "hide what a call takes"),
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


# asv


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the asv benchmarks as asv does."""
    monkeypatch.syspath_prepend(ASV)
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_asv_benchmarks_use_public_names_only() -> None:
    files = list((ASV / "benchmarks").glob("*.py"))
    assert len(files) >= 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module != "__future__":
                assert node.module in ("typing", "tmm_adapters.bench"), file
                assert node.module == "typing" or {alias.name for alias in node.names} <= set(bench.__all__), file
            elif isinstance(node, ast.Import):
                assert [alias.name for alias in node.names] == ["tmm_core"], file


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
    quick = suite("quick")
    topics = {path.stem for path in (ASV / "benchmarks").glob("*.py")} - {"__init__", "quick"}
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


def test_paces_leave_a_spread() -> None:
    assert all(pace.turns >= 3 for pace in (FULL, QUICK, training.TRAINING))
