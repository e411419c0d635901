"""Tokenizers: bytes by default, any of the `tokenizers` library, or one trained on the text at hand."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tmm_core.errors import InputError, MissingFileError

from .files import atomic_write

__all__ = [
    "ByteTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "check_fits",
    "load_tokenizer",
    "missing_tokenizer",
    "train_tokenizer",
]

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_BYTES = 1 << 28
"""A tokenizer is trained on no more than this of the training part: more text hardly changes a vocabulary."""

_FILE = "tokenizer.json"
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")  # what tokenizers call it
_PROBE = "Äpfel, naïve café:\n\tdef f(x):  # 1 < 2\n\n    return '漢字 🙂'\n"


class Tokenizer(Protocol):
    """What turns text into token ids and back without loss."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def end_of_text(self) -> int:
        """The id that follows each document."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give equal ids."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without an end-of-text, whatever the text says."""

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the ids of each text as an integer array."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; ends of text leave no trace, and what is no text reads U+FFFD."""

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of `ids` as it becomes readable: a character only when all of its tokens have come."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what `load_tokenizer` needs into a model's folder."""


class ByteTokenizer:
    """The 256 bytes of UTF-8, and 256 for the end of a text.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("née")
    [110, 195, 169, 101]
    >>> list(tokenizer.stream([110, 195, 169, 101]))
    ['n', 'é', 'e']
    """

    vocab_size = 257
    end_of_text = 256
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
        """Leave no `tokenizer.json` in `folder`: a folder without one stands for bytes."""
        Path(folder, _FILE).unlink(missing_ok=True)


class SubwordTokenizer:
    """A tokenizer of the `tokenizers` library.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Must give back the text that it is given, and have an end-of-text token.
    source : str
        What to call it in errors.

    Raises
    ------
    ValueError
        If the tokenizer loses text, or has no end-of-text.
    """

    def __init__(self, tokenizer: Any, source: str = "tokenizer") -> None:
        """Take `tokenizer` over, with nothing truncated or padded."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # a text that spells "<|endoftext|>" does not end
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        ends = [vocabulary[name] for name in _ENDS if name in vocabulary]
        if not ends:
            raise InputError(f"{source} has no end-of-text token: add one of {', '.join(_ENDS)} as a special token")
        self.vocab_size: int = max(vocabulary.values()) + 1
        self.end_of_text: int = ends[0]
        self.fingerprint: str = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        back = self.decode(self.encode(_PROBE))
        if back != _PROBE:
            raise InputError(
                f"{source} loses text, and bits per byte would be those of another text: {_PROBE!r} is decoded as "
                f"{back!r}; choose a byte-level tokenizer, or train one with --vocab"
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens, whatever the text says."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Return the ids of each text as an array of uint32."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]

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


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a model's folder, or of a `tokenizer.json`.

    Parameters
    ----------
    path : path
        A folder, where a missing `tokenizer.json` stands for bytes; or a file of the `tokenizers` library.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    ValueError
        If the file is not a tokenizer, loses text, or has no end-of-text.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFileError(f"there is no tokenizer {path}: check the path")
    if path.is_dir():
        path = path / _FILE
        if not path.exists():
            return ByteTokenizer()
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise InputError(
            f"{path} is not a tokenizer of the 'tokenizers' library ({error}): give a tokenizer.json, or train one "
            "with --vocab"
        ) from error
    return SubwordTokenizer(tokenizer, str(path))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Return a byte-level BPE with an end-of-text, trained on `texts`.

    Parameters
    ----------
    texts : iterable of str
        The training text; its first 256 MiB are used.
    vocab_size : int
        Number of ids wanted, at least 257; a short text may yield fewer.

    Raises
    ------
    ValueError
        If `vocab_size` is below 257.
    """
    if vocab_size < 257:
        raise InputError(f"vocab_size must be at least 257, every byte and an end-of-text, and is {vocab_size}")
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_up_to(texts, TOKENIZER_BYTES), trainer)
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


def missing_tokenizer(folder: Path, vocab_size: int) -> str | None:
    """Return why the model folder `folder` cannot be a model of bytes, or None where it can or has its tokenizer."""
    if vocab_size == ByteTokenizer.vocab_size or (folder / _FILE).is_file():
        return None
    return (
        f"model {folder} has no {_FILE}, and its {vocab_size} tokens are not the {ByteTokenizer.vocab_size} of bytes: "
        f"copy the {_FILE} that it was trained with into the folder"
    )


def _up_to(texts: Iterable[str], n_bytes: int) -> Iterator[str]:
    """Yield texts until they make up `n_bytes`."""
    for text in texts:
        yield text
        n_bytes -= len(text.encode())
        if n_bytes <= 0:
            return
