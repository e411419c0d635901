"""Tokenizers give back the text, whatever it holds."""

import json
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.requirements import skip_without
from support.texts import prose, strings

from tmm_adapters.tokenizers import ByteTokenizer, SubwordTokenizer, check_fits, load_tokenizer, train_tokenizer
from tmm_lab.data.text import write_text
from tmm_lab.data.tokens import write_tokens

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
    (tmp_path / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path) is None


def test_bytes_are_a_tokenizer_of_the_library_as_well(tmp_path):
    import tokenizers

    ByteTokenizer().save(tmp_path)
    theirs = SubwordTokenizer(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    text = "".join(map(chr, range(1, 0x800))) + "漢字 🙂 <|endoftext|>"
    assert theirs.encode(text) == ByteTokenizer().encode(text)
    assert theirs.decode([*theirs.encode(text), theirs.end_of_text]) == text
    assert (theirs.vocab_size, theirs.end_of_text) == (ByteTokenizer.vocab_size, ByteTokenizer.end_of_text)


def of_the_library(change):
    """Return a byte-level BPE as the library `tokenizers` makes it, with one thing changed."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["some text"], trainer)
    change(tokenizers, tokenizer)
    return tokenizer


def with_normalizer(make):
    def change(tokenizers, tokenizer):
        tokenizer.normalizer = make(tokenizers.normalizers)

    return of_the_library(change)


def with_token(**flags):
    return of_the_library(lambda tokenizers, tokenizer: tokenizer.add_tokens([tokenizers.AddedToken("-x-", **flags)]))


def of_characters(unknown):
    """Return a BPE over the characters of English: there is no token for others."""
    import tokenizers

    vocabulary = ["</s>", *(["<unk>"] if unknown else []), *" abcdefghijklmnopqrstuvwxyz"]
    model = tokenizers.models.BPE({v: i for i, v in enumerate(vocabulary)}, [], unk_token=unknown)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return tokenizer


def with_an_end_that_can_be_spelt():
    """Return a tokenizer in the manner of Unigram, whose end of text is a piece like the others."""
    import tokenizers

    pieces = [("<unk>", -9.0), ("</s>", 0.0), *((character, -3.0) for character in "</>abs ")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return tokenizer


LOSSY = {
    "lowercase": (lambda: with_normalizer(lambda n: n.Lowercase()), "low", "Low"),
    "NFC": (lambda: with_normalizer(lambda n: n.NFC()), "\u00e9", "e\u0301"),
    "NFKC": (lambda: with_normalizer(lambda n: n.NFKC()), "fi", "\ufb01"),
    "replace": (lambda: with_normalizer(lambda n: n.Replace("tab", "cat")), "cat", "tab"),
    "strip": (lambda: with_normalizer(lambda n: n.Strip()), "a b", "a b "),
    "spaces after an added token": (lambda: with_token(rstrip=True), "a-x-b", "a-x-  b"),
    "spaces before an added token": (lambda: with_token(lstrip=True), "a-x-b", "a  -x-b"),
    "no token": (lambda: of_characters(None), "abc", "ab\u043f\u0440"),
    "unknown": (lambda: of_characters("<unk>"), "abc", "ab\u043f\u0440c"),
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_text_that_a_tokenizer_loses_is_refused_with_its_place(name, tmp_path):
    make, kept, lost = LOSSY[name]
    tokenizer = SubwordTokenizer(make(), "mine")
    assert tokenizer.decode(tokenizer.encode(kept)) == kept
    text = write_text([kept * 9, kept * 30 + lost], tmp_path / "text")
    for encode in (
        lambda: tokenizer.encode(lost),
        lambda: tokenizer.encode_batch([kept, lost]),
        lambda: write_tokens(text.whole(), tokenizer, tmp_path / "tokens.npy"),
    ):
        with pytest.raises(ValueError, match="mine loses text") as refusal:
            encode()
        assert f"{lost[-2:]}' is decoded as '" in str(refusal.value)
    assert not (tmp_path / "tokens.npy").exists()


@pytest.mark.parametrize("spelt", ["</s>", "a</s>b", "a </s> </s>"])
def test_no_text_spells_an_end_of_text(spelt):
    ends_like_any_word = json.loads(of_the_library(lambda *_: None).to_str())
    ends_like_any_word["added_tokens"][0]["special"] = False
    import tokenizers

    tokenizer = SubwordTokenizer(tokenizers.Tokenizer.from_str(json.dumps(ends_like_any_word)))
    ids = tokenizer.encode(spelt)
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode([*ids, tokenizer.end_of_text]) == spelt
    with pytest.raises(ValueError, match=r"takes '</s>' for the end of a text wherever .*, as in '.*</s>"):
        SubwordTokenizer(with_an_end_that_can_be_spelt()).encode(spelt)


def test_tokenizers_that_cannot_serve_are_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        load_tokenizer(file)
    for content in (b"", b"{}", b"no json", b"\xff\xfe", json.dumps({"model": {"type": "BPE"}}).encode()):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer of the 'tokenizers' library"):
            load_tokenizer(tmp_path)
    tokenizer = of_the_library(lambda tokenizers, tokenizer: tokenizer.enable_truncation(2))
    assert SubwordTokenizer(tokenizer).decode(SubwordTokenizer(tokenizer).encode("a long text")) == "a long text"
    file.write_text(of_the_library(lambda *_: None).to_str().replace("</s>", "<other>"))
    with pytest.raises(ValueError, match="has no end-of-text token: add one of"):
        load_tokenizer(file)


@pytest.mark.parametrize("letters", ["ACGT", "漢字仮名", "0123456789", "=-+*", " \t"])
def test_a_tokenizer_is_trained_on_words_of_any_length(letters):
    """The time was quadratic: minutes for the longer of these."""
    rng = np.random.default_rng(0)
    word = "".join(rng.choice(list(letters), 1 << 17))
    tokenizer = train_tokenizer([word], 300)
    assert tokenizer.vocab_size == 300
    assert tokenizer.decode(tokenizer.encode(word)) == word
    usual = train_tokenizer(["two words of a usual length " * 9], 300)
    assert [usual.decode([token]) for token in usual.encode("two words")] == ["two", " words"]


def test_training_of_a_tokenizer_can_be_interrupted():
    if os.name != "posix":
        skip_without("posix", "a process cannot signal itself")

    def texts():
        """Come to an end only where nobody stops them."""
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(200):
            time.sleep(0.05)
            yield "a text"

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(texts(), 300)
    assert time.monotonic() - begin < 5


def test_a_tokenizer_must_fit_the_model(tokenizer):
    size = tokenizer.vocab_size
    check_fits(tokenizer, size)
    check_fits(tokenizer, size + 63)
    with pytest.raises(ValueError, match=f"the tokenizer has {size} ids and the model only vocab_size={size - 1}"):
        check_fits(tokenizer, size - 1)
