"""`tmm agree`: what it computes, that it fails where a backend is wrong, and what it says of those not there."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.requirements import import_or_skip

from tmm_core import causal_toeplitz_matmul
from tmm_lab.agree import compare as comparing
from tmm_lab.agree import configurations as configuring
from tmm_lab.agree import inputs, measures
from tmm_lab.agree.compare import compare, count
from tmm_lab.agree.configurations import Configuration, configurations
from tmm_lab.agree.measures import TOPICS, Key, Measured, measure
from tmm_lab.agree.reference import Reference, units
from tmm_lab.agree.results import ROWS, Result, judge
from tmm_lab.cli import main
from tmm_lab.progress import nothing

pytestmark = pytest.mark.usefixtures("one_thread")

NUMPY, NUMBA, TORCH = (Configuration(*names) for names in (("numpy", "numpy"), ("numpy", "numba"), ("torch", "torch")))


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let three models and ten steps stand for all."""
    inputs.models.cache_clear()
    chosen = {name: inputs.VARIANTS[name] for name in ("heads", "later", "frozen_lags")}
    monkeypatch.setattr(inputs, "VARIANTS", chosen)
    few = dataclasses.replace(inputs.TRAINING, steps=10)
    monkeypatch.setitem(inputs.CASES, "train", lambda: {"training": few})
    yield
    inputs.models.cache_clear()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["agree", *arguments])
    return code, capsys.readouterr().out


def change_products(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Let products of PyTorch's tensors come out wrong."""
    right = TOPICS["product"]

    def wrong(framework: Any, case: Any) -> dict[str, Any]:
        found = right(framework, case)
        return {part: change(y) for part, y in found.items()} if framework.library.name == "torch" else found

    monkeypatch.setitem(measures.TOPICS, "product", wrong)


# --- The verdict ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_backends_that_agree_pass_and_the_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["numpy", "torch", "torch+numba"]
    code, out = run(capsys, *names)
    assert code == 0, out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line[:1] == "|"]
    assert rows[0] == ["float32 float64", *names, "verdict"]
    assert [row[0] for row in rows[2:]] == list(ROWS)
    assert {row[-1] for row in rows[2:]} == {"ok"}
    for row in rows[2:]:
        assert (row[1] == "-") == ("gradient" in row[0] or row[0] == "training"), "NumPy has none"
        for name, cell in zip(names, row[1:-1], strict=True):
            reference = (name, row[0]) in (("numpy", "logits"), ("torch", "training"))
            assert cell == "-" or re.fullmatch(rf"(<\.01|0\.\d\d) {'ref' if reference else '(<.01|0.[0-9]{2})'}", cell)
    assert re.search(r"^ok: all \d+ results, in \d+ s$", out, re.MULTILINE)
    assert max(len(line) for line in out.splitlines() if line[:1] == "|") <= 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda y: y * (1 + 1e-4), r"FAIL product, torch, float32: [\d.]+ times what is allowed, in "),
        (lambda y: y[:1], r"FAIL product, torch, float32: .+: not finite, or misshapen"),
        (lambda y: y * np.nan, r"FAIL product, torch, float64: .+: not finite, or misshapen"),
        (lambda y: 1 / 0, r"FAIL product, torch, float64: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_backend_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: Callable[[Any], Any], said: str
) -> None:
    change_products(monkeypatch, change)
    code, out = run(capsys, "numpy", "torch")
    assert code == 1, out
    assert re.search(said, out), out
    assert len(re.findall("^FAIL [^:]+,", out, re.MULTILINE)) == 2, "in two dtypes, the wrong one only"


def test_json_holds_every_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    change_products(monkeypatch, lambda y: y * np.nan)
    code, out = run(capsys, "--json", "numpy", "torch")
    told = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (code, told["ok"], told["missing"]) == (1, False, {})
    assert set(told["machine"]) == {"processor", "versions"}
    assert len(told["results"]) == len(ROWS) * 2 * 2
    assert {frozenset(result) for result in told["results"]} == {frozenset(f.name for f in dataclasses.fields(Result))}
    by_name = {(r["row"], r["configuration"], r["dtype"]): r for r in told["results"]}
    assert 0 < by_name["adjoint", "torch", "float64"]["units"] < 1
    wrong = by_name["product", "torch", "float32"]
    assert (wrong["status"], wrong["units"]) == ("FAIL", None)
    assert by_name["all gradients", "numpy", "float32"]["status"] == "none"


def test_what_a_backend_refuses_is_named_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But a comparison of nothing fails."""
    engine = type(measures.get_backend("torch").engine)
    monkeypatch.setattr(engine, "unsupported", lambda self, request: "no" if request.dtype == "float64" else None)
    code, out = run(capsys, "torch")
    assert code == 0, out
    assert "refused product, torch, float64: no" in out
    assert re.search(r"\| product +\| \d\.\d\d refused \|", out)
    assert re.search(r"\| training +\| ref refused +\|", out)
    monkeypatch.setattr(engine, "unsupported", lambda self, request: "not today")
    code, out = run(capsys, "torch")
    assert code == 1
    assert re.search(r"^FAIL: nothing was compared, in \d+ s$", out, re.MULTILINE)


def test_a_gradient_that_is_wrong_or_missing_fails() -> None:
    right, reference, name = measure(TORCH, "float64", "model").arrays, Reference(), "blocks.0.mix.lags"
    lags = Key("model", "heads", name)

    def verdict(changed: dict[Key, Any], reference: Reference = reference) -> Result:
        results = judge({(TORCH, "float64", topic): Measured(changed) for topic in TOPICS}, reference)
        return next(result for result in results if result.row == "all gradients")

    assert verdict(right).status == "ok"
    for against in (reference, Reference()):  # a framework's that is right, and the definition alone
        scaled = verdict({**right, lags: right[lags] * (1 + 1e-6)}, against)
        assert (scaled.status, scaled.worst) == ("FAIL", f"heads, {name}")
    missing = verdict({key: array for key, array in right.items() if key != lags})
    assert (missing.status, missing.reason) == ("FAIL", f"missing: heads, {name}")
    more = verdict({**right, Key("model", "heads", "blocks.7"): right[lags]})
    assert (more.status, more.reason) == ("FAIL", "not in the reference: heads, blocks.7")
    assert verdict({**right, lags: right[lags][:1]}).status == "FAIL"


def test_training_that_differs_fails_even_where_every_framework_begins_wrong() -> None:
    """The first framework's curve is what others are held against, and its beginning against the definition."""
    other = Configuration("jax", "jax")
    right = measure(TORCH, "float64", "train").arrays
    curve, first = (Key("train", "training", part) for part in ("curve", "first loss"))

    def statuses(one: dict[Key, Any], two: dict[Key, Any]) -> list[str]:
        found = {(c, "float64", t): Measured(a) for c, a in ((TORCH, one), (other, two)) for t in TOPICS}
        return [result.status for result in judge(found, Reference()) if result.row == "training"]

    same = {key: array.copy() for key, array in right.items()}
    assert statuses(right, same) == ["reference", "ok"]
    assert statuses(right, {**same, curve: same[curve] + 1e-6 * (np.arange(10) > 8)}) == ["reference", "FAIL"]
    wrong = {curve: right[curve] + 1e-6, first: right[first] + 1e-6}
    assert statuses(wrong, {**wrong, curve: wrong[curve].copy()}) == ["FAIL", "FAIL"]


def test_what_gave_nothing_fails_in_every_row_that_it_has() -> None:
    found = {(c, "float64", topic): Measured() for c in (TORCH, NUMPY) for topic in TOPICS}
    said = {(result.configuration, result.row): result.status for result in judge(found, Reference())}
    lacks = {"gradient for x", "gradient for w", "all gradients", "training"}
    assert {row for row in ROWS if said["torch", row] == "FAIL"} == set(ROWS)
    assert {row for row in ROWS if said["numpy", row] == "FAIL"} == set(ROWS) - lacks
    assert {said["numpy", row] for row in lacks} == {"none"}


@pytest.mark.parametrize("bad", [np.full(3, np.nan), np.full(3, np.inf), np.zeros(2)])
def test_numbers_that_cannot_be_compared_are_infinitely_far(bad: Any) -> None:
    assert units(bad, np.zeros(3), 1.0) == math.inf
    assert units(np.zeros(3), np.zeros(3), 0.0) == 0
    assert units(np.asarray([0, 3e-4]), np.zeros(2), 1e-4) == pytest.approx(3)


# --- Configurations ---------------------------------------------------------------------------------------------------


def test_configurations_are_named_by_library_and_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's engine computes on NumPy's arrays."""
    names = (*configuring.registered_backends(), "stranger")
    monkeypatch.setattr(configuring, "registered_backends", lambda: names)
    monkeypatch.setattr(configuring, "get_backend", lambda name: None)
    found, missing = configurations()
    assert {c.name for c in found} | set(missing) == {*names, "torch+numba", "jax+numba"} - {"array_api"}
    assert Configuration("numpy", "stranger") in found


def test_what_is_not_there_is_said_and_asking_for_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def get(name: str) -> None:
        if name != "numpy":
            raise LookupError(f"{name} is not installed")

    monkeypatch.setattr(configuring, "get_backend", get)
    code, out = run(capsys)
    assert code == 0
    assert "missing: torch, torch+numba: torch is not installed" in out
    assert re.search(r"\| gradient for x +\| - +\| - +\|", out)
    assert main(["agree", "torch"]) == 2
    assert "torch cannot be compared here: torch is not installed" in capsys.readouterr().err
    assert main(["agree", "fortran"]) == 2
    assert "there is no configuration 'fortran': choose from numpy, " in capsys.readouterr().err


# --- The processes of JAX ---------------------------------------------------------------------------------------------


def test_all_that_is_announced_is_done_and_a_process_computes_what_this_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the other process has all cases
    inputs.models.cache_clear()
    monkeypatch.setattr(comparing, "OWN_PROCESS", "numpy")
    told: list[int] = []
    results = compare([NUMPY], told.append)
    assert sum(told) == count([NUMPY])
    assert {result.status for result in results} == {"ok", "reference", "none"}


@pytest.mark.slow
def test_jax_computes_what_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import_or_skip("jax")
    configuration, later = Configuration("jax", "numba"), inputs.models()["later"]
    assert later.whole
    monkeypatch.setitem(inputs.CASES, "model", lambda: {"later": later})
    measured = measure(configuration, "float64", "model")
    results = judge({(configuration, "float64", topic): measured for topic in TOPICS}, Reference())
    assert {result.row for result in results if result.status == "ok"} == {"logits", "all gradients"}


def end_process(*_: object) -> None:
    os._exit(3)


def test_a_process_that_dies_fails_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "OWN_PROCESS", "numpy")
    monkeypatch.setattr(comparing, "measure", end_process)
    failed = [result for result in compare([NUMPY], nothing) if result.status != "none"]
    assert {result.status for result in failed} == {"FAIL"}
    assert {result.reason.partition(":")[0] for result in failed} == {"BrokenProcessPool"}


def test_the_products_of_the_cases_are_those_that_users_call() -> None:
    (case,) = inputs.CASES["stream"]().values()
    streamed = measure(NUMPY, "float64", "stream").arrays[Key("stream", "two heads", "")]
    np.testing.assert_allclose(streamed, causal_toeplitz_matmul(case.w.astype(float), case.x.astype(float)), atol=1e-12)
