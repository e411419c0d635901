"""Text as it is kept: the file, its parts, and what happens when something is amiss."""

import hashlib
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmm_lab.data.text import END_BYTE, open_text, write_text

DOCUMENTS = st.lists(st.text(max_size=30), min_size=1, max_size=60).filter(any)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("text") / "text"


def contents(part, size=1 << 20):
    return b"".join(part.chunks(size))


@settings(deadline=None, max_examples=30)
@given(documents=DOCUMENTS)
def test_file_holds_each_document_and_its_end(path, documents):
    text = write_text(documents, path)
    kept = [document.encode() for document in documents if document]
    assert path.read_bytes() == b"".join(document + END_BYTE for document in kept)
    assert (text.n_bytes, text.n_documents) == (sum(map(len, kept)), len(kept))
    assert text.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert open_text(path) == text
    assert write_text([list(document) for document in documents], path) == text  # documents may come in pieces


@settings(deadline=None, max_examples=60)
@given(documents=DOCUMENTS, size=st.integers(1, 40))
def test_pieces_make_up_the_documents(path, documents, size):
    part = write_text(documents, path).whole()
    assert contents(part, size) == path.read_bytes()
    found = [""]
    for piece, ends in part.pieces(size):
        found[-1] += piece
        found += [""] * ends
    assert found == [document for document in documents if document] + [""]


def test_pieces_of_a_long_document_end_where_a_word_does(path):
    words = " ".join(f"wörd{i}" + "\n" * (i % 7 == 0) for i in range(3000))
    pieces = [piece for piece, _ in write_text([words], path).whole().pieces(1000)]
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= 2000
    for before, after in pairwise(pieces):
        assert not before[-1].isspace()
        assert after[0].isspace()
        assert not after[1].isspace()


def test_boundaries_of_documents_are_part_of_the_hash(path):
    assert write_text(["ab", "c"], path).sha256 != write_text(["a", "bc"], path).sha256


@settings(deadline=None, max_examples=60)
@given(documents=DOCUMENTS, repeats=st.integers(1, 12), limit=st.integers(8, 400), at_least=st.integers(1, 50))
def test_parts_share_nothing_and_leave_nothing_out(path, documents, repeats, limit, at_least):
    text = write_text([*documents * repeats, "a last document that is not very short"], path)
    training, held_out = text.split(limit, at_least=at_least)
    data = path.read_bytes()
    spans = sorted(training.spans + held_out.spans)
    assert [spans[0][0], spans[-1][1]] == [0, len(data)]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert 0 < held_out.n_bytes <= limit
    assert training.n_bytes > 0
    for part in (training, held_out):
        stored = contents(part)
        assert "".join(piece for piece, _ in part.pieces()).encode() == stored.replace(END_BYTE, b"")
        assert part.n_documents == stored.count(END_BYTE)
        assert part.n_bytes == len(stored) - part.n_documents
    assert text.split(limit, at_least=at_least) == (training, held_out)


@pytest.mark.parametrize(("limit", "share"), [(65536, 0.05), (2000, 0.012)])
def test_many_documents_are_held_out_whole_and_evenly(path, limit, share):
    documents = [f"document {i}: " + "x" * (i % 300) for i in range(1000)]
    text = write_text(documents, path)
    training, held_out = (
        [document.decode() for document in contents(part).split(END_BYTE)[:-1]]
        for part in text.split(limit, at_least=500)
    )
    assert sorted(training + held_out) == sorted(documents)
    assert not set(training) & set(held_out)
    assert len(held_out) == pytest.approx(share * len(documents), rel=0.3)
    places = [documents.index(document) for document in held_out]
    assert places[0] < 100
    assert places[-1] > 900


def test_a_document_beyond_the_limit_stays_in_training(path):
    documents = ["long " * 3000 if i == 10 else f"short {i}" for i in range(400)]
    training, held_out = write_text(documents, path).split(1000, at_least=10)
    assert b"long" in contents(training)
    assert b"long" not in contents(held_out)


def test_the_end_is_held_out_of_few_documents(path):
    lines = [f"line {i} of the only document é" for i in range(5000)]
    text = write_text(["\n".join(lines)], path)
    training, held_out = text.split()
    assert contents(training) + contents(held_out) == path.read_bytes()
    assert held_out.n_bytes == pytest.approx(text.n_bytes / 20, rel=0.05)
    assert contents(held_out).decode(errors="ignore").split("\n")[0] in lines  # from the beginning of a line
    small = write_text(["é" * 3000], path).split()[1]
    assert small.n_bytes == pytest.approx(3000, abs=4)  # never more than half
    assert contents(small).startswith("é".encode())


def test_parts_are_told_apart(path):
    text = write_text([f"document {i}" for i in range(400)], path)
    parts = [text.whole(), *text.split(at_least=10), *text.split(100, at_least=10)]
    assert len({part.sha256 for part in parts}) == len(parts)


def test_an_interrupted_write_leaves_what_was_there(tmp_path):
    def documents():
        yield "a document"
        raise OSError(28, "No space left on device")

    before = write_text(["earlier"], tmp_path / "text")
    with pytest.raises(OSError, match="No space left"):
        write_text(documents(), tmp_path / "text")
    assert open_text(tmp_path / "text") == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["text", "text.json"]


def test_memory_is_bounded_whatever_the_size(tmp_path):
    line = "a line of a document that is much larger than what is read at a time\n"
    n_lines = 400_000
    tracemalloc.start()
    try:
        text = write_text([(line * 1000 for _ in range(n_lines // 1000))], tmp_path / "text")
        training, _ = text.split()
        n_bytes = sum(len(piece.encode()) for piece, _ in training.pieces())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text.n_bytes == n_lines * len(line)
    assert n_bytes == training.n_bytes
    assert peak < text.n_bytes / 3


def test_bad_texts_are_refused(tmp_path):
    path = tmp_path / "text"
    for documents in ([], [""], [[]]):
        with pytest.raises(ValueError, match="no text"):
            write_text(documents, path)
    with pytest.raises(TypeError, match="not one string: put it into a list"):
        write_text("a document", path)
    for documents in ([b"bytes"], [["fine", 3]]):
        with pytest.raises(TypeError, match="document 0 must be text, and holds int: decode it first"):
            write_text(documents, path)
    with pytest.raises(ValueError, match="document 1 is not valid Unicode"):
        write_text(["fine", "\ud800"], path)
    with pytest.raises(FileNotFoundError):
        open_text(path)
    with pytest.raises(ValueError, match="cannot be held out of a text of 1 bytes"):
        write_text(["a"], path).split()
    text = write_text(["a document"], path)
    with pytest.raises(ValueError, match="held_out_bytes must be at least 1"):
        text.split(0)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="has 8 bytes, expected 11"):
        open_text(path)
    with pytest.raises(ValueError, match="cut short"):
        list(text.whole().chunks())
    (tmp_path / "text.json").write_text("[]")
    with pytest.raises(ValueError, match="does not describe a text"):
        open_text(path)
