"""`tmm bench`: table and JSON tell the same, and bad options are one clear line."""

from __future__ import annotations

import json

import pytest

from tmm_lab.bench import figures, process, rivals
from tmm_lab.bench.figures import Figure
from tmm_lab.bench.topics import TOPICS, Task
from tmm_lab.bench.turns import Ratio
from tmm_lab.cli import main
from tmm_lab.cli.bench import ALLOCATORS

pytestmark = pytest.mark.usefixtures("one_thread")

RATIO = Ratio.of([0.001, 0.002, 0.001], [0.0155, 0.0312, 0.0149])


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
    assert lengths("training") == {"training": {(n, 4) for n in (512, 1024, 2048, 4096, 8192, 16384)}}
    assert {(task.column, where) for task, _, where in measured} == {
        (column, "default") for column in ("no mixing", "dense T @ x", "in JAX")
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


def test_help_names_every_topic_and_allocator(capsys: pytest.CaptureFixture[str]) -> None:
    """And which are measured unless told: help imports no benchmark."""
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{', '.join(TOPICS)} (default: the first three)" in shown
    assert [topic.usual for topic in TOPICS.values()] == [True] * 3 + [False] * 4
    assert tuple(ALLOCATORS.values()) == process.ALLOCATORS
