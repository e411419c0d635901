"""`tmm runs`, and which run is taken where none is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import TINY, printed

from tmm_lab.cli import main
from tmm_lab.training.listing import newest_run
from tmm_lab.training.runs import Run

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def root(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, and three that began after it: two whose descriptions are empty and changed, and one that was
    killed after its second step, whose checkpoint is of the first."""
    monkeypatch.chdir(tmp_path)
    options = ["--steps", "2", "--text", str(text), "--evaluations", "1", "--held-out-bytes", "500"]
    assert main(["train", *TINY, *options, "--out", "runs/finished"]) == 0
    run = Run.open(Path("runs/finished"))
    fields = run.description
    for number, name in enumerate(("stopped", "empty", "changed")):
        (tmp_path / "runs" / name).mkdir()
        Run(Path("runs", name), {}).describe(**{**fields, "started": fields["started"] + number + 1, "finished": False})
    shutil.copytree(run.checkpoints, "runs/stopped/checkpoints")
    os.rename("runs/stopped/checkpoints/step-00000002", "runs/stopped/checkpoints/step-00000001")
    shutil.copyfile(run.metrics, "runs/stopped/metrics.jsonl")
    Path("runs/empty/run.json").write_bytes(b"")
    path = Path("runs/changed/run.json")
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    return tmp_path / "runs"


def test_runs_are_listed_and_a_damaged_one_stops_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    capsys.readouterr()
    assert main(["runs"]) == 0
    said = capsys.readouterr()
    cells = [line.split() for line in said.out.splitlines()]
    bits = Run.open(root / "finished").description["bits_per_byte"]
    assert cells[1:] == [
        ["runs/stopped", "stopped", "1", "of", "2", "-"],
        ["runs/finished", "finished", "2", "of", "2", f"{bits:.3f}"],
    ]
    found = json.loads(printed(capsys, "runs", root, "--json"))
    assert [(run["state"], run["step"], run["total_steps"], run["bits_per_byte"]) for run in found["runs"]] == [
        ("stopped", 1, 2, None),
        ("finished", 2, 2, bits),
    ]
    assert json.loads(printed(capsys, "runs", root / "finished", "--json"))["runs"] == found["runs"][1:]
    assert len(found["damaged"]) == 2
    with Run.open(root / "stopped").locked():
        training = json.loads(printed(capsys, "runs", root, "--json"))["runs"][0]
        assert (training["state"], training["step"], training["bits_per_byte"]) == ("training", 2, bits)
    for damaged in ("empty", "changed"):
        assert f"runs/{damaged}/run.json" in said.err
        assert f"runs/{damaged}/run.json" in refused("train", "--resume", f"runs/{damaged}")


def test_a_run_that_cannot_be_read_is_passed_over_aloud(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(run: Run) -> list[dict[str, float]]:
        if run.folder.name == "stopped":
            raise PermissionError(13, "Permission denied", "metrics.jsonl")
        return original(run)

    original = Run.records
    monkeypatch.setattr(Run, "records", records)
    capsys.readouterr()
    assert main(["runs"]) == 0
    said = capsys.readouterr()
    assert "runs/finished" in said.out
    assert "Permission denied: 'metrics.jsonl'" in said.err


def test_the_newest_run_is_the_newest_that_serves(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, skipped = newest_run()
    assert newest.folder.name == "stopped"
    assert len(skipped) == 2
    newest.describe(started=0.0)
    capsys.readouterr()
    assert main(["generate", "--prompt", "a", "--tokens", "1"]) == 0
    said = capsys.readouterr().err
    assert "runs/finished" in said
    assert said.count("tmm: skipped runs/") == 2
    assert newest_run(unfinished=True)[0].folder.name == "stopped", "to be resumed, though another began later"
    newest.describe(finished=True)
    with pytest.raises(FileNotFoundError, match=r"every run in .* is finished"):
        newest_run(unfinished=True)


def test_where_there_are_no_runs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no runs in" in printed(capsys, "runs")
    assert json.loads(printed(capsys, "runs", "--json")) == {"runs": [], "damaged": []}
    assert "there is no folder nowhere" in refused("runs", "nowhere")
