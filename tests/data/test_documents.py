"""Where documents come from: the default text, and data sets."""

import hashlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tmm_lab.data import default_text
from tmm_lab.data.default_text import default_documents
from tmm_lab.data.rows import dataset_documents


@pytest.fixture(scope="module")
def documents():
    return default_documents()


def test_default_text_is_large_english_and_without_duplicates(documents):
    size = sum(len(document.encode()) for document in documents)
    assert 1_500_000 < size < 4_000_000
    assert len(documents) > 400
    assert all(document.strip() for document in documents)
    assert sum(document.count(" the ") for document in documents) > size / 200
    paragraphs = [" ".join(block.split()) for document in documents for block in document.split("\n\n")]
    long = [block for block in paragraphs if len(block) >= 64]
    assert len(long) == len(set(long))
    assert len(long) > 5000


def test_default_text_is_the_same_in_every_process_and_runs_no_module(documents):
    here = hashlib.sha256("\0".join(documents).encode()).hexdigest()
    code = (
        "import hashlib, sys; from tmm_lab.data.default_text import default_documents as f; before = set(sys.modules); "
        "print(hashlib.sha256('\\0'.join(f()).encode()).hexdigest(), *sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-c", code]
    digest, *imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert digest == here
    assert "pydoc_data.topics" in imported
    assert not {"antigravity", "asyncio", "idlelib", "this", "tkinter", "turtle", "unittest"} & set(imported)


def test_default_text_without_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(default_text.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(LookupError, match="no sources of the standard library"):
        default_documents()


def hub(rows, error=None):
    """Return a stand-in for the library `datasets` that offers one data set, and a record of what was asked of it."""
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        if error:
            raise error
        return iter(rows)

    return SimpleNamespace(load_dataset=load_dataset), asked


def test_data_sets_are_streamed_up_to_a_limit(monkeypatch):
    rows = [{"id": i, "text": "é" * 10} for i in range(100)]
    library, asked = hub(rows)
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert len(list(dataset_documents("some/set", subset="part"))) == 100
    assert asked == [(("some/set", "part"), {"split": "train", "streaming": True})]
    assert list(dataset_documents("some/set", max_bytes=60)) == ["é" * 10] * 3
    assert list(dataset_documents("some/set", max_documents=7)) == ["é" * 10] * 7
    stream = dataset_documents("some/set", max_documents=1)
    assert next(stream) == "é" * 10
    with pytest.raises(
        LookupError, match="row 1 of data set 'some/set' has no text in a field 'body': choose one of '"
    ):
        next(dataset_documents("some/set", field="body"))


def test_the_last_document_is_cut_where_a_data_set_is_large_enough(monkeypatch):
    library, _ = hub([{"text": "é" * 10}, {"text": None}, {"text": ""}, {"text": "é" * 10}])
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert list(dataset_documents("some/set", max_bytes=25)) == ["é" * 10, "", "éé"]
    assert list(dataset_documents("some/set", max_bytes=7)) == ["ééé"]


def test_data_sets_out_of_reach(monkeypatch):
    library, _ = hub([], OSError("name resolution failed"))
    monkeypatch.setitem(sys.modules, "datasets", library)
    with pytest.raises(ConnectionError, match=r"'some/set'.*name resolution failed.*check the name and the network"):
        next(dataset_documents("some/set"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LookupError, match=r"pip install 'tmm-core\[hub\]'"):
        dataset_documents("some/set")
