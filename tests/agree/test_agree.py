"""`tmm agree`: what it computes, that it fails where a backend is wrong, and what it says of those not there."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.requirements import import_or_skip
from support.strangers import forget_backends, registering

from tmm_core import TMMConfig, lm
from tmm_core.backend import (
    Backend,
    LayerStream,
    Request,
    StreamLayer,
    _registry,
    definition_correlate,
    definition_matmul,
)
from tmm_lab.agree import inputs, measures, table, worker
from tmm_lab.agree.by_hand import loss_and_gradients
from tmm_lab.agree.cells import ROWS, Cell, cells
from tmm_lab.agree.columns import Column, columns
from tmm_lab.agree.compare import compare, count
from tmm_lab.agree.measures import TOPICS, Key, Measured, measure
from tmm_lab.agree.reference import TOLERANCES, Reference, units
from tmm_lab.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def few_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three models and ten steps stand for all."""
    inputs.models.cache_clear()
    chosen = {name: inputs.VARIANTS[name] for name in ("heads", "later", "frozen_lags")}
    monkeypatch.setattr(inputs, "VARIANTS", chosen)
    few = dataclasses.replace(inputs.TRAINING, steps=10)
    topics = {**TOPICS, "train": dataclasses.replace(TOPICS["train"], cases=lambda: {"loss": few})}
    monkeypatch.setattr(measures, "TOPICS", topics)
    yield
    inputs.models.cache_clear()


class WrongEngine:
    """The definition in NumPy, but for what a test has it do wrongly."""

    name = "wrong"
    devices = ("cpu",)

    def __init__(self) -> None:
        self.matmul_wrongly: Callable[[Any], Any] = lambda y: y
        self.refused = ""

    def owns(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)

    def receive(self, array: Any) -> Any:
        raise NotImplementedError

    def unsupported(self, request: Request) -> str | None:
        return "it has no float64" if request.dtype == self.refused else None

    def matmul(self, w: Any, x: Any, /, **options: Any) -> Any:
        return self.matmul_wrongly(definition_matmul(w, x, **options))

    def correlate(self, x: Any, g: Any, /, **options: Any) -> Any:
        return definition_correlate(x, g, **options)

    def stream(self, layer: StreamLayer) -> LayerStream:
        return LayerStream(layer)


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WrongEngine]:
    """A backend of somebody else's, registered as `wrong`."""
    engine = WrongEngine()
    registration = registering(tmp_path, monkeypatch)
    next(registration)("wrong", Backend("wrong", (), "NumPy arrays, wrongly", lambda: engine))
    yield engine
    next(registration, None)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["agree", *arguments])
    return code, capsys.readouterr().out


# --- The verdict ------------------------------------------------------------------------------------------------------


def test_backends_that_agree_pass_and_the_table_says_so(capsys: pytest.CaptureFixture[str]):
    code, out = run(capsys, "numpy", "numba", "torch", "torch+numba")
    assert code == 0, out
    lines = out.splitlines()
    assert re.split(r" *\| *", lines[0])[1:-2] == ["float32 float64", "numpy", "numba", "torch", "torch+numba"]
    assert [line.split("|")[1].strip() for line in lines[2 : 2 + len(ROWS)]] == list(ROWS)
    numbers = re.findall(r"<\.01|\d\.\d\d", "".join(lines[2 : 2 + len(ROWS)]))
    assert len(numbers) == 2 * (4 * 6 + 2 * 3) - 2, "two dtypes in four columns, and in two for gradients"
    references = re.findall(r"\| (\w+) +\| +[\d<.]+ ref +\|", out)
    assert references == ["logits", "training"], "NumPy is not held against itself"
    assert re.search(r"^ok: all 58 cells, in \d+ s$", out, re.MULTILINE)
    assert "FAIL" not in out
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("spoil", "status", "named"),
    [
        (lambda y: y * (1 + 1e-4), 1, r"FAIL product, wrong, float32: [\d.]+ times what is allowed, in "),
        (lambda y: y[:1], 1, r"FAIL product, wrong, float32: ValueError"),
        (lambda y: np.where(np.arange(y.shape[-1]) == 3, np.nan, y).astype(y.dtype), 1,
         r"FAIL adjoint, wrong, float64: .+: not finite, or misshapen"),
        (lambda y: y, 0, r"ok: all 22 cells"),
    ],
)  # fmt: skip
def test_a_wrong_backend_fails_and_its_cell_is_named(
    wrong: WrongEngine, capsys: pytest.CaptureFixture[str], spoil: Callable[[Any], Any], status: int, named: str
):
    wrong.matmul_wrongly = spoil
    code, out = run(capsys, "numpy", "wrong")
    assert code == status, out
    assert re.search(named, out), out
    assert "numpy, float" not in out, "only the wrong one fails"
    assert ("FAIL" in out) == (status == 1)


def test_what_a_backend_refuses_is_named_and_is_no_failure(wrong: WrongEngine, capsys: pytest.CaptureFixture[str]):
    wrong.refused = "float64"
    code, out = run(capsys, "wrong")
    assert code == 0, out
    assert "refused product, wrong, float64: it has no float64" in out
    assert re.search(r"\| product +\| \d\.\d\d refused \|", out)


def test_a_comparison_of_nothing_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(measures, "_refusal", lambda *_: "not today")
    code, out = run(capsys, "numpy")
    assert code == 1
    assert "refused product, numpy, float64: not today" in out
    assert re.search(r"^FAIL: nothing was compared, in \d+ s$", out, re.MULTILINE)


def test_json_holds_every_cell(wrong: WrongEngine, capsys: pytest.CaptureFixture[str]):
    wrong.matmul_wrongly = lambda y: y * np.nan
    code, out = run(capsys, "--json", "numba", "wrong")
    told = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (code, told["ok"], told["missing"]) == (1, False, {})
    assert set(told) == {"ok", "seconds", "machine", "missing", "units", "cells"}
    assert set(told["machine"]) == {"processor", "versions"}
    assert len(told["cells"]) == len(ROWS) * 2 * 2
    assert {frozenset(cell) for cell in told["cells"]} == {frozenset(f.name for f in dataclasses.fields(Cell))}
    by_name = {(c["row"], c["column"], c["dtype"]): c for c in told["cells"]}
    assert by_name["product", "numba", "float64"]["from_numba"] is None, "it is the second reference"
    assert 0 < by_name["product", "numba", "float32"]["from_numba"] < 1
    assert 0 < by_name["product", "numba", "float64"]["from_numpy"] < 1
    assert by_name["product", "wrong", "float32"]["status"] == "FAIL"
    assert by_name["product", "wrong", "float32"]["from_numpy"] is None
    assert by_name["all gradients", "numba", "float32"]["status"] == "none"


def test_a_gradient_that_is_wrong_or_missing_fails(monkeypatch: pytest.MonkeyPatch):
    torch = Column("torch", "torch")
    side = torch.side()
    right = {name: side.model(case, "float64") for name, case in inputs.models().items()}
    reference = Reference()
    name = "blocks.0.mix.lags"

    def verdict(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Cell:
        found = {
            Key("model", case, part): array
            for case, parts in right.items()
            for part, array in (change(parts) if case == "heads" else parts).items()
        }
        measured = Measured(found)
        return next(c for c in cells({(torch, "float64"): measured}, reference) if c.row == "all gradients")

    assert verdict(lambda parts: parts).status == "ok"
    scaled = verdict(lambda parts: {**parts, name: parts[name] * (1 + 1e-6)})
    assert (scaled.status, scaled.worst) == ("FAIL", f"heads, {name}")
    missing = verdict(lambda parts: {key: a for key, a in parts.items() if key != name})
    assert (missing.status, missing.reason) == ("FAIL", f"missing: heads, {name}")
    model = verdict(lambda parts: {})
    assert model.status == "FAIL"
    assert re.fullmatch(r"missing: heads, [\w.]+ and \d+ more", model.reason or "")
    more = verdict(lambda parts: {**parts, "blocks.7": parts[name]})
    assert (more.status, more.reason) == ("FAIL", "not in the reference: heads, blocks.7")
    assert verdict(lambda parts: {**parts, name: parts[name][:1]}).status == "FAIL"


def test_a_column_that_gave_nothing_fails_in_every_row_that_it_has():
    given = {Column(library, engine): Measured() for library, engine in (("torch", "torch"), ("numpy", "numpy"))}
    found = cells({(column, "float64"): measured for column, measured in given.items()}, Reference())
    said = {(cell.column, cell.row): cell.status for cell in found}
    gradients = {"gradient for x", "gradient for w", "all gradients"}
    assert {row for row in ROWS if said["torch", row] == "FAIL"} == set(ROWS)
    assert {row for row in ROWS if said["numpy", row] == "FAIL"} == set(ROWS) - gradients
    assert {said["numpy", row] for row in gradients} == {"none"}


@pytest.mark.parametrize("bad", [np.full(3, np.nan), np.full(3, np.inf), np.zeros(2)])
def test_numbers_that_cannot_be_compared_are_infinitely_far(bad: Any):
    assert units(bad, np.zeros(3), 1.0) == math.inf
    assert units(np.zeros(3), np.zeros(3), 0.0) == 0
    assert units(np.asarray([0, 3e-4]), np.zeros(2), 1e-4) == pytest.approx(3)


def test_the_gradients_by_hand_are_those_of_the_definition():
    config = TMMConfig(vocab_size=7, max_len=9, d_model=6, n_layers=2, n_heads=3, d_mlp=5)
    rng = np.random.default_rng(0)
    params = {name: p + 0.3 * rng.standard_normal(p.shape) for name, p in lm.init_params(config, rng).items()}
    ids = rng.integers(0, 7, (2, 8))
    loss, grads = loss_and_gradients(params, ids, config)
    assert loss == pytest.approx(float(lm.loss(params, ids, config)), rel=1e-13)
    assert set(grads) == set(params)
    for name, p in params.items():
        v, h = rng.standard_normal(p.shape), 1e-4
        ends = [float(lm.loss({**params, name: p + s * h * v}, ids, config)) for s in (-1, 1)]
        assert np.vdot(grads[name], v) == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=1e-5, abs=1e-8), name


# --- Columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_named_by_library_and_engine(wrong: WrongEngine):
    found, missing = columns()
    assert {c.name for c in found} | set(missing) == {
        "numpy", "numba", "torch", "torch+numba", "jax", "jax+numba", "cupy", "wrong"
    }  # fmt: skip
    assert [c.name for c in found][:4] == ["numpy", "numba", "torch", "torch+numba"]
    assert Column("numpy", "wrong") in found


def test_a_library_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    there = _registry.is_installed
    monkeypatch.setattr(_registry, "is_installed", lambda name: name not in ("torch", "jax", "numba") and there(name))
    forget_backends()
    code, out = run(capsys)
    forget_backends()
    assert code == 0
    told = " ".join(out.split())
    for names, library in (("numba", "numba"), ("torch, torch+numba", "torch"), ("jax, jax+numba", "jax")):
        assert f"missing: {names}: backend '{library}' needs the library '{library}'" in told, out
    assert re.search(r"\| gradient for x +\| - +\| - +\|", out)
    assert "pip install 'tmm-core[numba]'" in told
    assert "(Numba's engine in float64, the second reference, was not compared)" in told


def test_asking_for_what_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert main(["agree", "fortran"]) == 2
    assert "there is no column 'fortran': choose from numpy, " in capsys.readouterr().err
    monkeypatch.setattr(_registry, "is_installed", lambda name: name != "torch")
    forget_backends()
    assert main(["agree", "torch"]) == 2
    forget_backends()
    assert "torch cannot be compared here: backend 'torch' needs" in capsys.readouterr().err


def test_an_error_in_one_topic_leaves_the_others(wrong: WrongEngine):
    def stop(y: Any) -> Any:
        raise RuntimeError("out of order\nand more")

    wrong.matmul_wrongly = stop
    told: list[str] = []
    measured = measure(Column("numpy", "wrong"), "float32", told.append)
    assert told == list(measures.TOPICS)
    assert measured.faults["product"] == "RuntimeError: out of order"
    assert {key.topic for key in measured.arrays} == {"correlate"}


# --- The process beside -----------------------------------------------------------------------------------------------


def test_results_go_through_a_file(tmp_path: Any):
    key = Key("model", "heads", "blocks.0.mix.lags")
    sent = {"jax": Measured({key: np.arange(3.0)}, {"train": "gone"}), "jax+numba": Measured({}, {}, {"product": "no"})}
    worker._write(tmp_path / "results.npz", sent)
    got = worker._read(tmp_path / "results.npz")
    assert list(got) == ["jax", "jax+numba"]
    assert np.array_equal(got["jax"].arrays[key], np.arange(3.0))
    assert (got["jax"].faults, got["jax+numba"].refusals) == ({"train": "gone"}, {"product": "no"})


def test_a_process_computes_what_this_one_does(tmp_path: Any):
    column, told = Column("numpy", "numpy"), []
    process = worker.Worker("float64", [column], tmp_path, lambda *done: told.append(done))
    try:
        found = process.results()[column]
    finally:
        process.stop()
    assert told == [(column, "float64", topic) for topic in TOPICS]
    assert not found.faults
    here = measure(column, "float64", lambda topic: None)
    assert {key.topic for key in here.arrays} == {"product", "adjoint", "correlate", "stream", "model", "train"}
    for key, array in here.arrays.items():
        if key.topic != "train":  # of fewer steps here
            assert np.array_equal(found.arrays[key], array), key


def test_jax_computes_what_the_others_do(monkeypatch: pytest.MonkeyPatch):
    jax, unoptimised = import_or_skip("jax"), []
    # How programs are compiled is for a whole process, and not for that of the tests.
    monkeypatch.setattr(jax.config, "update", lambda name, value: unoptimised.append((name, value)))
    column, models = Column("jax", "numba"), {"later": inputs.models()["later"]}
    assert models["later"].whole
    monkeypatch.setattr(measures, "TOPICS", {"model": dataclasses.replace(TOPICS["model"], cases=lambda: models)})
    measured = measure(column, "float32", lambda topic: None)
    found = cells({(column, "float32"): measured}, Reference())
    assert {cell.row for cell in found if cell.status == "ok"} == {"logits", "all gradients"}
    assert unoptimised[:2] == [("jax_disable_most_optimizations", value) for value in (True, False)]


def test_a_process_that_dies_fails_every_cell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LookupError, match="there is no column 'jax\\+nothing'"):
        worker._main("float32", str(tmp_path / "results.npz"), "jax+nothing")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'killed: no memory' >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(worker.sys, "executable", str(python))
    column = Column("jax", "jax")
    process = worker.Worker("float32", [column], tmp_path, lambda *_: None)
    try:
        faults = process.results()[column].faults
    finally:
        process.stop()
    assert set(faults) == set(TOPICS)
    assert faults["product"] == "its process ended with code 3: killed: no memory"


def test_all_that_is_announced_is_done(monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[Column | None, str, str]] = []
    compare([Column("numpy", "numpy")], lambda *done: told.append(done))
    assert len(told) == len(set(told)) == count([Column("numpy", "numpy")])


# --- Words ------------------------------------------------------------------------------------------------------------


def test_the_legend_names_the_tolerances():
    assert table.legend(numba=True, jax=False).count("1e-4 (1e-9 in float64)") == 2
    assert "JAX" not in table.legend(numba=True, jax=False)
    assert "JAX computes training and the model `later` as whole programs" in table.legend(numba=True, jax=True)
    assert TOLERANCES == {"float32": 1e-4, "float64": 1e-9}
    assert "3 models" in table.legend(numba=False, jax=False)


# --- tmm --------------------------------------------------------------------------------------------------------------


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    assert re.search(r"usage: tmm .*\n    agree +prove that", capsys.readouterr().out, re.DOTALL)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"tmm-core {version('tmm-core')}\n"
