"""Processes to measure in: threads, allocator and memory are what they should be, and a machine is described."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tmm_lab.bench import figures, machine, process
from tmm_lab.bench.figures import Figure
from tmm_lab.bench.topics import Task

pytestmark = pytest.mark.usefixtures("one_thread")


def test_an_allocator_that_keeps_its_pages_has_no_page_faults() -> None:
    if not process._has_glibc():
        pytest.skip("the C library is not glibc")
    code = (
        "import resource, sys, numpy as np; from tmm_lab.bench import prepare\n"
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
        f"import os; from tmm_lab.bench import prepare; {first}; prepare(2)\n"
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
