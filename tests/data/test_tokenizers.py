"""Tokenizers give back the text, whatever it holds."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.texts import prose, strings

from tmm_adapters.tokenizers import ByteTokenizer, SubwordTokenizer, check_fits, load_tokenizer, train_tokenizer
from tmm_lab.data.text import write_text

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
