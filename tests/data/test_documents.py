"""Where documents come from: the default text, files, data sets."""

import hashlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tmm_lab.data import documents as sources
from tmm_lab.data.documents import dataset_documents, default_documents, read_documents


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
        "import hashlib, sys; from tmm_lab.data.documents import default_documents as f; before = set(sys.modules); "
        "print(hashlib.sha256('\\0'.join(f()).encode()).hexdigest(), *sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-c", code]
    digest, *imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert digest == here
    assert "pydoc_data.topics" in imported
    assert not {"antigravity", "asyncio", "idlelib", "this", "tkinter", "turtle", "unittest"} & set(imported)


def test_default_text_without_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(LookupError, match="no sources of the standard library"):
        default_documents()


def test_files_are_read_as_they_are(tmp_path):
    texts = ["first\r\nfile\n", "é" * 900_000 + "漢", "x" * ((1 << 20) - 1) + "🙂 across the reads"]
    files = [tmp_path / f"{i}.txt" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode())
    assert ["".join(pieces) for pieces in read_documents(files)] == texts


def test_files_that_are_no_files_are_refused_before_any_is_read(tmp_path):
    good, empty = tmp_path / "good", tmp_path / "empty"
    good.write_text("good")
    empty.touch()
    with pytest.raises(FileNotFoundError, match=r"no text file .*missing: check the path"):
        read_documents([good, tmp_path / "missing"])
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_documents([good, tmp_path])
    with pytest.raises(ValueError, match=r"empty is empty: leave it out"):
        read_documents([good, empty])
    with pytest.raises(ValueError, match="name at least one"):
        read_documents([])


@pytest.mark.parametrize("before", [0, 5, (1 << 20) - 1, (1 << 20) + 3])
@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\x80", b"\0", "é".encode()[:1], "漢".encode()[:2] + b"x"])
def test_what_is_no_text_is_refused_with_its_place(tmp_path, before, bad):
    file = tmp_path / "binary"
    file.write_bytes(b"x" * before + bad)
    document = next(read_documents([file]))
    with pytest.raises(ValueError, match=rf"binary is not a UTF-8 text file, as its byte {before} shows"):
        list(document)


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
    with pytest.raises(LookupError, match="no column 'body' of text: choose one of 'text'"):
        next(dataset_documents("some/set", column="body"))


def test_data_sets_out_of_reach(monkeypatch):
    library, _ = hub([], OSError("name resolution failed"))
    monkeypatch.setitem(sys.modules, "datasets", library)
    with pytest.raises(ConnectionError, match=r"'some/set'.*name resolution failed.*check the name and the network"):
        next(dataset_documents("some/set"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LookupError, match=r"pip install 'tmm-core\[hub\]'"):
        dataset_documents("some/set")
