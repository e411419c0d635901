"""Tokenizers, token files and windows."""

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmm_adapters.tokenizers import ByteTokenizer, SubwordTokenizer, check_fits, load_tokenizer, train_tokenizer
from tmm_core.lm import IGNORED
from tmm_lab.data.text import END_BYTE, open_text, write_text
from tmm_lab.data.tokens import TokenWindows, bits_per_byte, open_tokens, samples_at, write_tokens

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "naïve", "zebras", "wander"]


def prose(seed, n_words):
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(WORDS, n_words)) + ".\n"


def strings(part):
    return [piece for piece, _ in part.pieces()]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    documents = [prose(i, 20 + i) for i in range(60)]
    return write_text(documents, tmp_path_factory.mktemp("text") / "text")


@pytest.fixture(scope="module")
def subwords(text):
    return train_tokenizer(strings(text.whole()), 400)


@pytest.fixture(params=["bytes", "subwords"])
def tokenizer(request, subwords):
    return ByteTokenizer() if request.param == "bytes" else subwords


STRINGS = st.text() | st.sampled_from(["<|endoftext|>", "a<|endoftext|>b", " the  quick\n\n\tfox\r\n", "🙂" * 9])


@settings(deadline=None)
@given(string=STRINGS)
def test_tokens_give_back_the_text(string, subwords):
    for tokenizer in (ByteTokenizer(), subwords):
        ids = tokenizer.encode(string)
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
        assert tokenizer.end_of_text not in ids
        assert tokenizer.decode(ids) == string
        assert "".join(tokenizer.stream(iter(ids))) == string
        assert [batch.tolist() for batch in tokenizer.encode_batch([string, "", "x"])] == [
            ids,
            [],
            tokenizer.encode("x"),
        ]


@settings(deadline=None)
@given(data=st.binary(max_size=40))
def test_any_bytes_can_be_shown(data):
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(data) == "".join(tokenizer.stream(data)) == data.decode(errors="replace")


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 399), max_size=30))
def test_any_tokens_can_be_shown(ids, subwords):
    pieces = list(subwords.stream(iter(ids)))
    assert "".join(pieces) == subwords.decode(ids)
    assert all(pieces)


def words_with_their_spaces():
    """Return a tokenizer in the manner of SentencePiece: it strips the space before the first word, and falls back."""
    import tokenizers

    vocabulary = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "e", "th", "the", "▁the"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    model = tokenizers.models.BPE({v: i for i, v in enumerate(vocabulary)}, merges, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return SubwordTokenizer(tokenizer)


@pytest.mark.parametrize("string", ["the the\n the", "the 漢字 the 🙂", "é", "", " the"])
def test_decoders_that_treat_the_first_word_differently(string):
    tokenizer = words_with_their_spaces()
    pieces = list(tokenizer.stream(tokenizer.encode(string)))
    assert "".join(pieces) == tokenizer.decode(tokenizer.encode(string)) == string
    assert len(pieces) >= len(string.split())


def test_a_character_is_shown_when_it_is_complete(tokenizer):
    string = "aé漢🙂z"
    seen = []
    ids = tokenizer.encode(string)
    for n in range(len(ids) + 1):
        shown = "".join(tokenizer.stream(ids[:n]))
        seen.append(shown.replace("\ufffd", ""))
        assert string.startswith(seen[-1])
    assert seen[-1] == string
    pieces = list(tokenizer.stream(iter(ids)))
    assert "\ufffd" not in "".join(pieces)
    assert len(pieces) > 2  # as it comes, not at the end


def test_ends_of_text_leave_no_trace(tokenizer):
    ids = [tokenizer.end_of_text, *tokenizer.encode("one "), tokenizer.end_of_text, *tokenizer.encode("two")]
    assert tokenizer.decode(ids) == "".join(tokenizer.stream(ids)) == "one two"


def test_ids_beyond_bytes_show_as_unreadable():
    assert ByteTokenizer().decode([97, 300, 98]) == "a\ufffdb"


def test_training_of_a_tokenizer_repeats_itself(text, subwords):
    again = train_tokenizer(strings(text.whole()), 400)
    assert again.fingerprint == subwords.fingerprint
    assert 257 < subwords.vocab_size <= 400
    sample = prose(99, 500)
    assert len(subwords.encode(sample)) < 0.5 * len(sample)
    with pytest.raises(ValueError, match="vocab_size must be at least 257"):
        train_tokenizer(strings(text.whole()), 256)


def test_a_tokenizer_learns_from_the_training_part_only(tmp_path):
    text = write_text(["common " * 40 + "\n" if i % 20 != 10 else "secret " * 40 for i in range(400)], tmp_path / "t")
    training, held_out = text.split(100_000, at_least=10)
    assert b"secret" in b"".join(held_out.chunks())
    tokenizer = train_tokenizer(strings(training), 300)
    assert len(tokenizer.encode(" common")) == 1
    assert len(tokenizer.encode(" secret")) > 3


def test_tokenizers_are_saved_with_a_model(tmp_path, tokenizer):
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode("naïve\n") == tokenizer.encode("naïve\n")
    ByteTokenizer().save(tmp_path)  # in the place of another
    assert isinstance(load_tokenizer(tmp_path), ByteTokenizer)


def lossy(change):
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["some text"], trainer)
    change(tokenizers, tokenizer)
    return tokenizer


def test_tokenizers_that_cannot_serve_are_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        load_tokenizer(file)
    for content in ("", "{}", "no json", json.dumps({"model": {"type": "BPE"}})):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer of the 'tokenizers' library"):
            load_tokenizer(tmp_path)

    def lowercase(tokenizers, tokenizer):
        tokenizer.normalizer = tokenizers.normalizers.Lowercase()

    lossy(lowercase).save(str(file))
    with pytest.raises(ValueError, match=r"tokenizer\.json loses text"):
        load_tokenizer(file)
    tokenizer = lossy(lambda tokenizers, tokenizer: tokenizer.enable_truncation(2))
    assert SubwordTokenizer(tokenizer).decode(SubwordTokenizer(tokenizer).encode("a long text")) == "a long text"
    file.write_text(lossy(lambda *_: None).to_str().replace("</s>", "<other>"))
    with pytest.raises(ValueError, match="has no end-of-text token: add one of"):
        load_tokenizer(file)


def test_a_tokenizer_must_fit_the_model(tokenizer):
    size = tokenizer.vocab_size
    check_fits(tokenizer, size)
    check_fits(tokenizer, size + 63)
    with pytest.raises(ValueError, match=f"the tokenizer has {size} ids and the model only vocab_size={size - 1}"):
        check_fits(tokenizer, size - 1)


def test_token_file_holds_every_document_and_its_end(text, tokenizer, tmp_path):
    for part in (text.whole(), *text.split(1000, at_least=10)):
        tokens = write_tokens(part, tokenizer, tmp_path / "tokens.npy")
        assert isinstance(tokens, np.memmap)
        assert tokens.dtype == np.uint16
        assert not tokens.flags.writeable
        expected = [tokenizer.end_of_text]
        for document in b"".join(part.chunks()).split(END_BYTE)[:-1]:
            expected += [*tokenizer.encode(document.decode()), tokenizer.end_of_text]
        assert tokens.tolist() == expected
        np.testing.assert_array_equal(np.load(tmp_path / "tokens.npy"), tokens)


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
    assert written(training, ByteTokenizer())
    assert not written(training, ByteTokenizer())
    assert written(held_out, ByteTokenizer())  # another part
    written(held_out, subwords)  # another tokenizer
    assert written(held_out, ByteTokenizer())
    path.write_bytes(path.read_bytes()[:-10])  # damaged
    assert written(held_out, ByteTokenizer())
    (tmp_path / "tokens.npy.json").write_text("not JSON")
    assert written(held_out, ByteTokenizer())


def test_an_interrupted_write_leaves_what_was_there(text, tmp_path, monkeypatch):
    path = tmp_path / "tokens.npy"
    training, held_out = text.split(1000, at_least=10)
    before = write_tokens(held_out, ByteTokenizer(), path).tolist()

    def full(self, texts):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ByteTokenizer, "encode_batch", full)
        with pytest.raises(OSError, match="No space left"):
            write_tokens(training, ByteTokenizer(), path)
    assert write_tokens(held_out, ByteTokenizer(), path).tolist() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tokens.npy", "tokens.npy.json"]


def test_memory_is_bounded_whatever_the_size(tmp_path):
    document = prose(0, 2000)
    text = write_text((document for _ in range(3000)), tmp_path / "text")
    tracemalloc.start()
    try:
        tokens = write_tokens(text.whole(), ByteTokenizer(), tmp_path / "tokens.npy")
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
    for content in (b"", b"no array", b"\x93NUMPY\x01\x00"):
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


@settings(deadline=None)
@given(n=st.integers(2, 80), context=st.integers(2, 20), data=st.data())
def test_each_token_is_predicted_once_with_context(n, context, data):
    context = min(context, n - 1)
    stride = data.draw(st.none() | st.integers(1, context))
    tokens = np.arange(n, dtype=np.uint16)
    windows = TokenWindows(tokens, context, None, stride=stride)
    predicted = []
    for window in windows:
        assert set(window) == {"input_ids", "targets"}
        ids, targets = window["input_ids"], window["targets"]
        assert ids.dtype == targets.dtype == np.int64
        assert ids.shape == targets.shape == (context,)
        np.testing.assert_array_equal(np.diff(ids), 1)
        kept = targets != IGNORED
        np.testing.assert_array_equal(targets[kept], ids[kept] + 1)
        assert kept.any()
        if stride is not None and ids[0] > 0:
            assert kept.nonzero()[0][0] >= context - stride
        predicted += targets[kept].tolist()
    assert predicted == list(range(1, n))
    assert windows.n_predicted == n - 1
    assert len(list(windows)) == len(windows)
    np.testing.assert_array_equal(windows[-1]["input_ids"], tokens[-context - 1 : -1])
    with pytest.raises(IndexError, match="of"):
        windows[len(windows)]


def test_documents_begin_at_each_end_of_text():
    """The target of a document's last token is the end-of-text that begins the next one."""
    tokens = np.asarray([9, 1, 2, 9, 3, 9, 9, 4, 9], np.uint16)
    sample = samples_at(tokens, [0, 2], 6, end_of_text=9)
    assert sample["input_ids"].tolist() == [[9, 1, 2, 9, 3, 9], [2, 9, 3, 9, 9, 4]]
    assert sample["targets"].tolist() == [[1, 2, 9, 3, 9, 9], [9, 3, 9, 9, 4, 9]]
    assert sample["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 3], [0, 1, 1, 2, 3, 3]]
    joined = samples_at(tokens, [0, 2], 6, end_of_text=None)
    assert set(joined) == {"input_ids", "targets"}
    window = TokenWindows(tokens, 6, 9, stride=2)[1]
    assert window["targets"].tolist() == [IGNORED] * 4 + [4, 9]
    assert window["segment_ids"].tolist() == sample["segment_ids"][1].tolist()
    assert window["input_ids"].tolist() == sample["input_ids"][1].tolist()


def test_writers_at_the_same_time_do_not_disturb_each_other(text, tmp_path):
    path, whole, tokenizer = tmp_path / "tokens.npy", text.whole(), ByteTokenizer()
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda _: write_tokens(whole, tokenizer, path), range(32)))
    assert all(np.array_equal(tokens, written[0]) for tokens in written)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tokens.npy", "tokens.npy.json"]


def test_windows_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"it has 5 tokens.*needs 6; give more text, or a smaller context"):
        TokenWindows(np.arange(5), 5, None)
    with pytest.raises(ValueError, match="context must be at least 1"):
        TokenWindows(np.arange(5), 0, None)
    for stride in (0, 5):
        with pytest.raises(ValueError, match="stride must be in"):
            TokenWindows(np.arange(5), 4, None, stride=stride)


def test_knowing_nothing_costs_eight_bits_a_byte_and_the_ends(text, tmp_path):
    part = text.split(1000, at_least=10)[1]
    tokens = write_tokens(part, ByteTokenizer(), tmp_path / "tokens.npy")
    nats = TokenWindows(tokens, 100, ByteTokenizer.end_of_text).n_predicted * np.log(256)
    assert bits_per_byte(nats, part) == pytest.approx(8 * (1 + part.n_documents / part.n_bytes))
    assert open_text(text.path) == text
