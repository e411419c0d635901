"""Sessions of runs: folders, locks, options and signals, whichever framework trains."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.training_runs import COMMON, STEPS, unfinished

from tmm_adapters.files import WriteError
from tmm_core.errors import InputError
from tmm_lab.cli import main
from tmm_lab.training import session
from tmm_lab.training.interruption import Interruption
from tmm_lab.training.preparation import begun
from tmm_lab.training.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_second_signal_ends_at_once_but_not_an_echo_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        for now[0] in (10.0, 10.5):
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.exit_code == 130
        now[0] = 12.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_says_so(in_torch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(in_torch)]) == 2
    said = capsys.readouterr().err
    assert "is finished, its model is" in said
    assert f"tmm train --resume {in_torch} --steps N, with more steps than the {STEPS} that are done" in said


def test_one_process_at_a_time_trains_a_run(in_torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = unfinished(in_torch, tmp_path / "busy")
    with run.locked() as locked:
        assert locked
        before = sorted(run.folder.rglob("*"))
        assert main(["train", "--resume", str(run.folder)]) == 2
        assert "is being trained by another process" in capsys.readouterr().err
        assert sorted(run.folder.rglob("*")) == before
    with run.locked() as locked:
        assert locked, "free again"


def test_of_two_runs_that_begin_at_once_in_one_folder_one_does(in_torch: Path, tmp_path: Path) -> None:
    description = Run.open(in_torch).description | {"prepared": False}
    with begun(tmp_path / "run", description) as (run, locked):
        assert locked
        with pytest.raises(ValueError, match="is being trained by another process"):
            begun(tmp_path / "run", description).__enter__()
        run.describe(prepared=True)
    with pytest.raises(FileExistsError, match="it holds a run; to go on with it, tmm train --resume"):
        begun(tmp_path / "run", description).__enter__()


def test_a_folder_that_cannot_be_locked_is_told(
    in_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(*_: object) -> None:
        raise OSError("this file system has no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    run = unfinished(in_torch, tmp_path / "far")
    assert main(["train", "--resume", str(run.folder)]) == 0
    assert f"tmm: {run.folder} cannot be locked here" in capsys.readouterr().err


def test_a_run_whose_description_cannot_be_written_is_as_it_was(in_torch: Path, tmp_path: Path) -> None:
    """Else a full disk would leave the folder of a run that says that it is prepared."""
    run = unfinished(in_torch, tmp_path / "run")
    before = dict(run.description)
    (run.folder / "run.json").unlink()
    (run.folder / "run.json" / "in the way").mkdir(parents=True)
    with pytest.raises(WriteError, match=r"cannot write \S*run/run\.json: Is a directory; move away"):
        run.describe(finished=True)
    assert run.description == before


def test_where_no_folder_can_be_made_another_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("a file")
    with pytest.raises(OSError, match=r"cannot write runs/default-.*: Not a directory; move away what is in its place"):
        Run.create(None, "default")


def test_minutes_begin_before_the_text_is_read(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []

    def prepared(run: Run) -> None:
        events.append("the text is read")
        raise InputError("enough")

    monkeypatch.setattr(session, "Clock", lambda: events.append("time runs"))
    monkeypatch.setattr(session, "prepared", prepared)
    assert main(["train", "--minutes", "1", "--text", str(text), "--out", str(tmp_path / "run")]) == 2
    assert events == ["time runs", "the text is read"]
    assert "enough" in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_full_disk(
    in_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    run = unfinished(in_torch, tmp_path / "unread", steps=STEPS + 2)
    monkeypatch.setattr("tmm_lab.training.reporter.Reporter.sample", broken)
    with pytest.raises(BrokenPipeError):
        session.resume(run)


def test_a_new_run_reads_its_text_once(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written a moment ago is not opened and hashed again."""

    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("the text was opened again")

    monkeypatch.setattr("tmm_lab.training.session.open_data", unexpected)
    command = ["train", "--text", str(text), "--out", str(tmp_path / "run"), "--steps", "1", "--evaluations", "1"]
    assert main([*command, *COMMON]) == 0
