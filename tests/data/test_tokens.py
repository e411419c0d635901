"""Token files: what they hold, and when they are written again."""

import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.texts import prose

from tmm_adapters.tokenizers import ByteTokenizer
from tmm_lab.data.dataset import TokenWindows
from tmm_lab.data.text import END_BYTE, open_text, write_text
from tmm_lab.data.tokens import bits_per_byte, open_tokens, write_tokens


class Written(ByteTokenizer):
    """A tokenizer whose tokens are written into a file, though they are bytes."""

    fingerprint = "written"


def expected_tokens(part, tokenizer):
    tokens = [tokenizer.end_of_text]
    *documents, rest = b"".join(part.chunks()).split(END_BYTE)
    for document in documents:
        tokens += [*tokenizer.encode(document.decode()), tokenizer.end_of_text]
    return tokens + tokenizer.encode(rest.decode())


def test_token_file_holds_every_document_and_its_end(text, subwords, tmp_path):
    for tokenizer in (Written(), subwords):
        for part in (text.whole(), *text.split(1000, at_least=10)):
            tokens = write_tokens(part, tokenizer, tmp_path / "tokens.npy")
            assert isinstance(tokens, np.memmap)
            assert tokens.dtype == np.uint16
            assert not tokens.flags.writeable
            assert tokens.tolist() == expected_tokens(part, tokenizer)
            np.testing.assert_array_equal(np.load(tmp_path / "tokens.npy"), tokens)


@settings(deadline=None, max_examples=30)
@given(documents=st.lists(st.text(max_size=5), min_size=1, max_size=60).filter(any), data=st.data())
def test_where_tokens_are_bytes_the_text_is_the_token_file(documents, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = write_text([*documents, "a document that is not very short"], folder / "text")
    for part in (text.whole(), *text.split(40, at_least=5)):
        tokens, expected = write_tokens(part, ByteTokenizer(), folder / "tokens.npy"), expected_tokens(part, Written())
        assert len(tokens) == len(expected)
        assert tokens[:].dtype == np.uint16
        assert tokens[:].tolist() == expected
        places = slice(*(data.draw(st.integers(-len(tokens) - 2, len(tokens) + 2)) for _ in range(2)))
        assert tokens[places].tolist() == expected[places]
    assert not (folder / "tokens.npy").exists()


def test_a_text_is_kept_once(tmp_path):
    """A run of 20 MB of text held 60 MB of it."""
    kept = write_text(["a text of bytes " * 1000], tmp_path / "text")
    for part in kept.split():
        write_tokens(part, ByteTokenizer(), tmp_path / f"{part.size}.npy")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1.1 * kept.size


def test_large_vocabularies_take_four_bytes(text, tmp_path):
    class Far(ByteTokenizer):
        vocab_size = 100_000
        end_of_text = 99_999
        fingerprint = "far"

    tokens = write_tokens(text.whole(), Far(), tmp_path / "tokens.npy")
    assert tokens.dtype == np.uint32
    assert (tokens == 99_999).sum() == text.n_documents + 1


def test_a_file_is_written_once_for_a_text_and_a_tokenizer(text, subwords, tmp_path, monkeypatch):
    path = tmp_path / "tokens.npy"
    calls = []
    encode = ByteTokenizer.encode_batch
    monkeypatch.setattr(ByteTokenizer, "encode_batch", lambda self, texts: calls.append(1) or encode(self, texts))

    def written(part, tokenizer):
        calls.clear()
        tokens = write_tokens(part, tokenizer, path)
        assert tokenizer.decode(tokens).encode() == b"".join(part.chunks()).replace(END_BYTE, b"")
        return bool(calls)

    training, held_out = text.split(1000, at_least=10)
    assert written(training, Written())
    assert not written(training, Written())
    assert written(held_out, Written())  # another part
    written(held_out, subwords)  # another tokenizer
    assert written(held_out, Written())
    path.write_bytes(path.read_bytes()[:-10])  # damaged
    assert written(held_out, Written())
    (tmp_path / "tokens.npy.json").write_text("not JSON")
    assert written(held_out, Written())


def test_an_interrupted_write_leaves_what_was_there(text, tmp_path, monkeypatch):
    path = tmp_path / "tokens.npy"
    training, held_out = text.split(1000, at_least=10)
    before = write_tokens(held_out, Written(), path).tolist()

    def full(self, texts):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ByteTokenizer, "encode_batch", full)
        with pytest.raises(OSError, match="No space left"):
            write_tokens(training, Written(), path)
    assert write_tokens(held_out, Written(), path).tolist() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tokens.npy", "tokens.npy.json"]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer, Written])
def test_memory_is_bounded_whatever_the_size(tokenizer, tmp_path):
    document = prose(0, 2000)
    text = write_text((document for _ in range(3000)), tmp_path / "text")
    tracemalloc.start()
    try:
        tokens = write_tokens(text.whole(), tokenizer(), tmp_path / "tokens.npy")
        windows = TokenWindows(tokens, 512, ByteTokenizer.end_of_text)
        window = windows[len(windows) - 1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(tokens) == text.size + 1 > 25_000_000
    assert window["targets"][-1] == ByteTokenizer.end_of_text
    assert peak < 2 * len(tokens) / 3


def test_files_that_hold_no_tokens_are_refused(tmp_path):
    path = tmp_path / "tokens.npy"
    with pytest.raises(FileNotFoundError):
        open_tokens(path)
    fields = b"{'fortran_order': False, 'descr': %b, 'shape': (%b,)}\n"
    headers = [fields % pair for pair in ((b"()", b"1"), (b"'<u2'", b"9" * 30), (b"'<u2'", b"-1"))]
    damaged = [b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header for header in (*headers, b"{[]: 1}\n")]
    for content in (b"", b"no array", b"\x93NUMPY\x01\x00", *damaged):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a whole token file"):
            open_tokens(path)
    np.save(path, np.asarray([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="not a whole token file"):
        open_tokens(path)
    np.savez(tmp_path / "archive", np.zeros(3, np.uint16))
    (tmp_path / "archive.npz").replace(path)
    with pytest.raises(ValueError, match="not a whole token file"):
        open_tokens(path)
    np.save(path, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"holds float64 of shape \(2, 2\), not token ids"):
        open_tokens(path)


def test_writers_at_the_same_time_do_not_disturb_each_other(text, tmp_path):
    path, whole, tokenizer = tmp_path / "tokens.npy", text.whole(), Written()
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda _: write_tokens(whole, tokenizer, path), range(32)))
    assert all(np.array_equal(tokens, written[0]) for tokens in written)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tokens.npy", "tokens.npy.json"]


def test_knowing_nothing_costs_eight_bits_a_byte_and_the_ends(text, tmp_path):
    part = text.split(1000, at_least=10)[1]
    tokens = write_tokens(part, ByteTokenizer(), tmp_path / "tokens.npy")
    nats = TokenWindows(tokens, 100, ByteTokenizer.end_of_text).n_predicted * np.log(256)
    assert bits_per_byte(nats, part) == pytest.approx(8 * (1 + part.n_documents / part.n_bytes))
    assert open_text(text.path) == text
