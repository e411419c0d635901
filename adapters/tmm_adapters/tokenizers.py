"""Tokenizers: bytes by default, any of the `tokenizers` library, or one trained on the text at hand."""

from __future__ import annotations

import codecs
import functools
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tmm_core.errors import InputError, MissingFileError

from .files import atomic_write, check, open_to_read

__all__ = [
    "TOKENIZER_BYTES",
    "ByteTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "check_fits",
    "load_tokenizer",
    "read_tokenizer",
    "require_tokenizer",
    "train_tokenizer",
]

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_BYTES = 1 << 26
"""A tokenizer is trained on no more than this of the training part: more text hardly changes a vocabulary."""

_FILE = "tokenizer.json"
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")  # what tokenizers call it
# Training takes time quadratic in the longest word; of text without spaces, such as DNA, all is one word.
_LONG_WORD = r"\S{64}|\s{64}"
_SHOWN = 40  # characters of a text that are quoted in an error


class Tokenizer(Protocol):
    """What turns text into token ids and back without loss: a text of which that is not true is refused."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def end_of_text(self) -> int:
        """The id that follows each document."""

    @property
    def end_name(self) -> str:
        """What the `tokenizer.json` calls that id."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give equal ids."""

    def __call__(self, text: str | Sequence[str]) -> dict[str, Any]:
        """Return the ids of a text, or of each of several, as `input_ids`, as tokenizers of transformers do."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without an end-of-text, whatever the text says, such that `decode` returns it."""

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the ids of each text as an integer array."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; ends of text leave no trace, and what is no text reads U+FFFD."""

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of `ids` as it becomes readable: a character only when all of its tokens have come."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what `load_tokenizer` needs into a model's folder."""


class _Call:
    """Lets a tokenizer be called."""

    def __call__(self: Tokenizer, text: str | Sequence[str]) -> dict[str, Any]:
        """Return the ids of a text, or of each of several, as `input_ids`, as tokenizers of transformers do.

        >>> ByteTokenizer()("née")
        {'input_ids': [110, 195, 169, 101]}
        """
        return {"input_ids": self.encode(text) if isinstance(text, str) else [self.encode(one) for one in text]}


class ByteTokenizer(_Call):
    """The 256 bytes of UTF-8, and 256 for the end of a text.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("née")
    [110, 195, 169, 101]
    >>> list(tokenizer.stream([110, 195, 169, 101]))
    ['n', 'é', 'e']
    """

    vocab_size = 257
    end_of_text = 256
    end_name = END_OF_TEXT
    fingerprint = "bytes"

    def encode(self, text: str) -> list[int]:
        """Return the bytes of `text` in UTF-8."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the bytes of each text as an array of uint8."""
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; ends of text leave no trace, and what is no text reads U+FFFD."""
        return "".join(self.stream(ids))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of `ids` as it becomes readable: a character only when all of its bytes have come."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in ids:
            if text := decoder.decode(bytes([token])) if token < 256 else decoder.decode(b"", final=True):
                yield text
            if token > 256:  # a model's vocabulary may be larger than its tokenizer's
                yield "\ufffd"
        if text := decoder.decode(b"", final=True):
            yield text

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into `folder`, which the `tokenizers` library reads as well."""
        with atomic_write(Path(folder, _FILE)) as file:
            file.write(_bytes_as_json())


class SubwordTokenizer(_Call):
    """A tokenizer of the `tokenizers` library.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Must have an end-of-text token. It is taken over: nothing is truncated or padded from now on.
    source : str
        What to call it in errors.

    Raises
    ------
    ValueError
        If the tokenizer has no end-of-text.

    Notes
    -----
    A tokenizer may normalise text, or have no tokens for some characters. Bits per byte would then be those of another
    text, so every text that is encoded is decoded again, and refused where it comes back changed; that takes a third
    of the time of encoding.
    """

    def __init__(self, tokenizer: Any, source: str = "the tokenizer") -> None:
        """Take `tokenizer` over."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocabulary = tokenizer.get_vocab()
        ends = [name for name in _ENDS if name in vocabulary]
        if not ends:
            raise InputError(f"{source} has no end-of-text token: add one of {', '.join(_ENDS)} as a special token")
        # A text that spells a special token is split like any other.
        tokenizer.add_special_tokens(ends[:1])
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._source = source
        self.end_name: str = ends[0]
        self.vocab_size: int = max(vocabulary.values()) + 1
        self.end_of_text: int = vocabulary[ends[0]]
        self.fingerprint: str = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens, whatever the text says.

        Raises
        ------
        ValueError
            If the ids do not give the text back; the message quotes the place.
        """
        (ids,) = self._encode([text])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the ids of each text as an array of uint32; refuse what `encode` refuses."""
        return [np.asarray(ids, np.uint32) for ids in self._encode(texts)]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        batch: list[list[int]] = [encoding.ids for encoding in encodings]
        for text, ids, back in zip(texts, batch, self._tokenizer.decode_batch(batch), strict=True):
            if self.end_of_text in ids:
                raise InputError(
                    f"{self._source} takes {self.end_name!r} for the end of a text wherever a text spells it, as in "
                    f"{_excerpt(text, text.find(self.end_name))}: choose another tokenizer, or train one with --vocab"
                )
            if back != text:
                pairs = enumerate(itertools.zip_longest(text, back))
                place = next(i for i, (character, decoded) in pairs if character != decoded)
                raise InputError(
                    f"{self._source} loses text, and bits per byte would be those of another: {_excerpt(text, place)} "
                    f"is decoded as {_excerpt(back, place)}; choose a byte-level tokenizer, or train one with --vocab"
                )
        return batch

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; special tokens leave no trace, and what is no text reads U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of `ids` as it becomes readable: a character only when all of its tokens have come."""
        # The library's DecodeStream raises at bytes that are no text, which an untrained model writes.
        recent: list[int] = []  # decoded again with what follows: some decoders treat the first word differently
        new: list[int] = []
        shown = 0  # characters of `recent` and `new` that were yielded
        for token in ids:
            new.append(token)
            text = self.decode(recent + new)
            readable = text.rstrip("\ufffd")  # tokens to come may complete the last character
            if len(readable) > shown:
                yield readable[shown:]
                shown = len(readable)
                if readable == text:
                    recent, new = new, []
                    shown = len(self.decode(recent))
        yield from filter(None, [self.decode(recent + new)[shown:]])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` into `folder`."""
        with atomic_write(Path(folder, _FILE)) as file:
            file.write(self._tokenizer.to_str(pretty=True).encode())


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """Return the tokenizer of a model's folder, or of a `tokenizer.json`.

    Parameters
    ----------
    path : path
        A folder, or a file of the `tokenizers` library.

    Returns
    -------
    Tokenizer or None
        None for a folder that has none.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`, or the folder has lost its tokenizer.
    ValueError
        If the file is not what was written, is no tokenizer, or has no end-of-text.
    """
    path = Path(path)
    if not path.is_dir():
        return read_tokenizer(path)
    check(path / _FILE)
    return read_tokenizer(path / _FILE) if (path / _FILE).exists() else None


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`; see `load_tokenizer`."""
    if not path.exists():
        raise MissingFileError(f"there is no tokenizer {path}: check the path")
    with open_to_read(path) as file:
        data = file.read()
    if data == _bytes_as_json():
        return ByteTokenizer()
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises Exception itself
        raise InputError(
            f"{path} is not a tokenizer of the 'tokenizers' library ({error}): give a tokenizer.json, or train one "
            "with --vocab"
        ) from error
    return SubwordTokenizer(tokenizer, str(path))


def require_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model folder, which must have one.

    Raises
    ------
    FileNotFoundError
        If it has none, or has lost it.
    ValueError
        If it is not what was written, is no tokenizer, or has no end-of-text.
    """
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise MissingFileError(
            f"model {folder} has no {_FILE}, and no text can be read or written without it: copy the {_FILE} that the "
            "model was trained with into the folder"
        )
    return tokenizer


@functools.cache
def _bytes_as_json() -> bytes:
    """Return `ByteTokenizer` as a `tokenizer.json`: a byte-level BPE without merges, whose ids are the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))  # the library writes each other byte as one of these characters
    alphabet = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {character: byte for byte, character in enumerate(alphabet)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": ByteTokenizer.end_of_text, "content": END_OF_TEXT, **flags, "special": True}
    fields = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Return a byte-level BPE with an end-of-text, trained on `texts`.

    Parameters
    ----------
    texts : iterable of str
        The training text; its first 64 MiB are used. It is read in another thread.
    vocab_size : int
        Number of ids wanted, at least 257; a short text may yield fewer.

    Raises
    ------
    ValueError
        If `vocab_size` is below 257.

    Notes
    -----
    Words longer than 64 characters are cut, in training and ever after, so the time grows as the text whatever it is:
    0.4 s a megabyte of English, 0.8 s of DNA, which takes 80 bytes of memory a byte. Ctrl-C is answered at once.
    """
    if vocab_size < 257:
        raise InputError(f"vocab_size must be at least 257, every byte and an end-of-text, and is {vocab_size}")
    import tokenizers
    from tokenizers import pre_tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_LONG_WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _interruptible(lambda texts: tokenizer.train_from_iterator(texts, trainer), _up_to(texts, TOKENIZER_BYTES))
    return SubwordTokenizer(tokenizer)


def check_fits(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer with ids that a model of `vocab_size` tokens does not have.

    Raises
    ------
    ValueError
        If the tokenizer's vocabulary is larger than the model's; a smaller one is fine.
    """
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model only vocab_size={vocab_size}: "
            f"take the tokenizer that the model was trained with, or a model with vocab_size={tokenizer.vocab_size}"
        )


def _up_to(texts: Iterable[str], n_bytes: int) -> Iterator[str]:
    """Yield texts until they make up `n_bytes`."""
    for text in texts:
        yield text
        n_bytes -= len(text.encode())
        if n_bytes <= 0:
            return


def _excerpt(text: str, place: int) -> str:
    """Return the surroundings of a place in a text, quoted."""
    return repr(text[max(0, place - _SHOWN // 2) : place + _SHOWN // 2])


def _interruptible(train: Callable[[Iterator[str]], None], texts: Iterator[str]) -> None:
    """Train in a thread, such that signals are answered meanwhile.

    They are by the main thread only, and between two instructions of Python. Where one raises, no more is read, and
    what has been is left to end by itself.
    """
    done: Future[None] = Future()
    stopped = threading.Event()

    def run() -> None:
        try:
            train(itertools.takewhile(lambda _: not stopped.is_set(), texts))
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()  # the end of the process would wait for a pool's threads
        while not wait([done], timeout=0.5).done:  # Windows answers no signal while it waits for a thread
            pass
    finally:
        stopped.set()
    done.result()
