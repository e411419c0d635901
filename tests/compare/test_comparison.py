"""A comparison goes on where it was interrupted, refuses what it cannot do, and counts what it says."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
from support.commands import printed, refused
from support.texts import prose
from support.training_runs import signal_at

from tmm_adapters.pretrained import load_model
from tmm_lab.compare.comparison import InterruptedRun, compare
from tmm_lab.compare.folder import Folder
from tmm_lab.compare.options import Arm, ComparisonOptions
from tmm_lab.compare.results import table
from tmm_lab.data.config import DataConfig
from tmm_lab.data.dataset import evaluation_windows
from tmm_lab.evaluation.measure import held_out_nats
from tmm_lab.evaluation.torch_model import TorchModel
from tmm_lab.training.data import open_data
from tmm_lab.training.loop import DivergedError
from tmm_lab.training.reporter import BITS
from tmm_lab.training.runs import Run

ARMS = [
    Arm(label="tmm", architecture="tmm", fields={"n_heads": 2}),
    Arm(label="a masked mixer", architecture="masked-mixer"),
]
OPTIONS = ComparisonOptions(d_model=8, n_layers=1, max_len=16, batch=2, seeds=2, steps=20, device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for number in range(100):
        (folder / f"{number}.txt").write_text(prose(number, 30))
    return DataConfig(text=tuple(map(str, sorted(folder.glob("*.txt")))), held_out_bytes=1000)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Return the folder of a comparison that was not interrupted, and its results."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, compare(folder, ARMS, OPTIONS, data)


def measured(results):
    """Return what does not depend on the speed of the machine."""
    return {
        entry.label: (entry.learning_rate, entry.candidates, entry.curves, entry.difference, entry.parameters)
        for entry in results.entries
    }


def test_results_are_those_of_the_runs(whole):
    folder, results = whole
    assert [entry.label for entry in results.entries] == ["tmm", "a masked mixer"]
    for entry in results.entries:
        for seed, bits in enumerate(entry.final):
            run = Run.open(folder / "runs" / f"{entry.label.replace(' ', '-')}-seed-{seed}")
            assert run.parsed().options.learning_rate == entry.learning_rate
            # It is that of the whole text, as `tmm eval` measures it; while a run is trained, a part is.
            model, _ = load_model(run.model)
            config, source, _ = run.parsed()
            data = open_data(run, source, check=True)
            windows = evaluation_windows(data.held_out_tokens, OPTIONS.max_len, None)
            nats = held_out_nats(TorchModel(model, config), windows, batch=8)
            assert nats / np.log(2) / results.text["held_out_bytes"] == pytest.approx(bits, rel=1e-5)
            assert {record["eval_share"] < 0.2 for record in run.records() if BITS in record} == {True}
        assert entry.candidates[f"{entry.learning_rate:g}"] == min(entry.candidates.values())
        assert len(entry.candidates) == 3
    first, second = results.entries
    assert second.difference.mean == pytest.approx(np.mean(first.final) - np.mean(second.final), abs=1e-6)
    assert results.verdict in results.sentence


def test_all_models_read_the_same_text_in_the_same_order(whole):
    folder, _ = whole
    texts = {json.dumps(Run.open(path).description["data"]) for path in (folder / "runs").iterdir()}
    assert len(texts) == 1
    assert {path.resolve() for path in folder.glob("runs/*/data")} == {(folder / "data").resolve()}


@pytest.mark.slow  # trains all of it a second time
def test_an_interrupted_comparison_ends_with_the_same_results(whole, data, tmp_path, monkeypatch):
    folder = tmp_path / "interrupted"
    for step in (3, 35, 30):  # of each session; runs that try learning rates have 20 steps, the others too
        with monkeypatch.context() as patch:
            signal_at(patch, step)
            with pytest.raises(InterruptedRun) as stopped:
                compare(folder, ARMS, OPTIONS, data)
            assert stopped.value.code == 130
    ended = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/model/model.safetensors")}
    assert ended
    results = compare(folder, ARMS, OPTIONS, data)
    assert measured(results) == measured(whole[1])
    assert {path: path.stat().st_mtime_ns for path in ended} == ended  # what had ended was not trained again


def test_a_comparison_that_has_ended_is_not_computed_again(whole, data):
    folder, results = whole
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*") if path.is_file()}
    assert measured(compare(folder, ARMS, OPTIONS, data)) == measured(results)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_results_are_written_as_data_table_and_picture(whole):
    folder, results = whole
    values = json.loads((folder / "results.json").read_text())
    assert values["verdict"] == results.verdict
    assert [entry["curves"][0]["bits_per_byte"][-1] for entry in values["entries"]] == [
        entry.final[0] for entry in results.entries
    ]
    assert table(results) in (folder / "comparison.md").read_text()
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")


DAMAGES = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("comparison.json", "remove the folder, and compare anew"),
        ("data/text", r"bring .*data and .*tokenizer.json back from a copy, or remove .*copy, and compare anew"),
        ("tokenizer.json", r"bring .*data and .*tokenizer.json back from a copy, or remove .*copy, and compare anew"),
        ("runs/tmm-seed-0/run.json", r"or remove .*tmm-seed-0, and the same command trains it anew"),
        ("runs/tmm-seed-0/documents.npy", r"or remove .*tmm-seed-0, and the same command trains it anew"),
        ("runs/tmm-seed-0/metrics.jsonl", r"or remove .*tmm-seed-0, and the same command trains it anew"),
    ],
)
def test_files_are_read_as_they_were_written(whole, data, tmp_path, name, remedy, damage):
    folder = shutil.copytree(whole[0], tmp_path / "copy", symlinks=True)
    path = folder / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ValueError, match=rf"(?s){path.name}.*{remedy}"):
        compare(folder, ARMS, OPTIONS, data)


def test_a_number_that_was_changed_is_told(whole, data, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "copy", symlinks=True)
    path = folder / "comparison.json"
    values = json.loads(path.read_bytes())
    values["candidates"]["tmm"] = dict.fromkeys(values["candidates"]["tmm"], 1.0)
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="it is not what was written"):
        compare(folder, ARMS, OPTIONS, data)


def test_a_run_that_was_removed_is_trained_again_elsewhere_without_the_text(whole, data, tmp_path, monkeypatch):
    """The folder has all it needs, wherever it is and whatever becomes of the files that were named."""
    folder = shutil.copytree(whole[0], tmp_path / "a" / "copy", symlinks=True)
    shutil.rmtree(folder / "runs" / "tmm-seed-1")
    monkeypatch.setattr(DataConfig, "check_files", lambda self: pytest.fail("the text was looked for"))
    assert measured(compare(folder, ARMS, OPTIONS, data)) == measured(whole[1])


def test_a_folder_whose_beginning_was_cut_short_is_begun_again(whole, data, tmp_path):
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / ".comparison.json.0123abcd.part").write_bytes(b"{")
    with pytest.raises(ValueError, match="minutes are too few"):
        compare(folder, ARMS, dataclasses.replace(OPTIONS, steps=None, minutes=1e-3), data)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(("kind", "words"), [("rate", "every learning rate tried"), ("seed", "seed 1: training has")])
def test_divergence_is_told_with_the_model_and_what_the_comparison_can_do(
    whole, data, tmp_path, monkeypatch, kind, words
):
    from tmm_lab.training import session

    folder = shutil.copytree(whole[0], tmp_path / "copy", symlinks=True)
    for path in folder.glob("runs/tmm-seed-1" if kind == "seed" else "runs/tmm-*"):
        shutil.rmtree(path)
    if kind == "rate":
        plan = Folder(folder, ARMS, OPTIONS, data)
        plan.keep("candidates", {name: tried for name, tried in plan["candidates"].items() if name != "tmm"})

    def diverge(run, **options):
        raise DivergedError("start again with a smaller --learning-rate")

    monkeypatch.setattr(session, "resume", diverge)
    with pytest.raises(DivergedError, match=rf"tmm.*{words}") as told:
        compare(folder, ARMS, OPTIONS, data)
    assert "--learning-rate" not in str(told.value)
    assert "leave it out" in str(told.value)


def test_a_text_that_is_too_short_is_refused_before_anything_is_timed(data, tmp_path):
    with pytest.raises(ValueError, match="training text is too short"):
        compare(tmp_path / "short", ARMS, dataclasses.replace(OPTIONS, max_len=100_000), data)
    assert "models" not in json.loads((tmp_path / "short" / "comparison.json").read_text())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 3}, "other options"),
        ({"arms": ARMS[::-1]}, "other arms"),
        ({"held_out_bytes": 2000}, "other data"),
    ],
)
def test_another_comparison_does_not_go_on_in_the_folder(whole, data, changes, words):
    arms = changes.get("arms", ARMS)
    options = dataclasses.replace(OPTIONS, **{k: v for k, v in changes.items() if k == "seeds"})
    source = dataclasses.replace(data, **{k: v for k, v in changes.items() if k == "held_out_bytes"})
    with pytest.raises(ValueError, match=f"{words}: give the same options"):
        compare(whole[0], arms, options, source)


def test_minutes_that_do_not_suffice_are_refused_with_those_that_do(data, tmp_path):
    options = dataclasses.replace(OPTIONS, steps=None, minutes=1e-3)
    with pytest.raises(ValueError, match=r"0.001 minutes are too few: 2 models with 2 seeds take about \d+ minutes?"):
        compare(tmp_path / "few", ARMS, options, data)
    with pytest.raises(ValueError, match=r"^0.002 minutes are too few"):  # not that the folder has other options
        compare(tmp_path / "few", ARMS, dataclasses.replace(options, minutes=2e-3), data)


def test_the_command_compares_and_names_what_it_does_not_know(data, capsys, tmp_path):
    text = ["--text", *data.text, "--held-out-bytes", "1000"]
    tiny = ["--d-model", "8", "--n-layers", "1", "--max-len", "16", "--batch", "2", "--steps", "20", "--seeds", "1"]
    out = printed(capsys, "compare", "--arch", "hyena", "masked-mixer", *text, *tiny, "--out", tmp_path / "out")
    assert "| masked-mixer |" in out
    assert "undecided: that hyena" in out  # one seed decides nothing
    assert "unknown architecture 'gpt': choose one of" in refused(capsys, "compare", "--arch", "tmm", "gpt")
    assert "two or more models" in refused(capsys, "compare", "--arch", "tmm", *text, "--out", tmp_path / "one")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    error = refused(capsys, "compare", "--arch", "tmm", "hyena", *text, "--out", tmp_path / "full")
    assert "is not empty: choose another folder" in error
