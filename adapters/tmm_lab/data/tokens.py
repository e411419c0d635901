"""Tokens of a text, mapped into memory.

A token file holds an end-of-text, then the tokens of each document followed by an end-of-text. The first token of the
file is never a target; an evaluation predicts each of the others exactly once. So a model pays for the bytes of its
text and for the end of each document, as the baselines do. A document begins at the end-of-text before it, which is the
only context of its first token. Where tokens are bytes, the text is its own token file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from tmm_adapters.files import atomic_write, digest, parse_json
from tmm_adapters.tokenizers import ByteTokenizer, Tokenizer
from tmm_core.errors import InputError

from ..progress import Advance, waiting
from .text import END_BYTE, Part, description_path

__all__ = ["Tokens", "bits_per_byte", "open_tokens", "write_tokens"]

_BATCH = 1 << 20  # characters tokenized at a time


class Tokens(Protocol):
    """Token ids, of which those that are asked for are read: an array, or what can be sliced like one."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, places: slice, /) -> NDArray[Any]:
        """Return the tokens at some places."""


def write_tokens(part: Part, tokenizer: Tokenizer, path: str | os.PathLike[str], *, check: bool = True) -> Tokens:
    """Return the tokens of `part`, mapped into memory; unless they are its bytes, they are written into a `.npy` file.

    Parameters
    ----------
    part : Part
        The text; it is streamed.
    tokenizer : Tokenizer
        Gives the ids.
    path : path
        The file; a description goes beside it, at `<path>.json`. A file that already holds this part in this
        tokenizer's ids is used as it is.
    check : bool
        Whether such a file is read whole, to see that it is what was written.

    Returns
    -------
    Tokens
        An end-of-text, then each document followed by an end-of-text, as uint16 or uint32; read-only and read from disk
        as needed.

    Raises
    ------
    ValueError
        If the tokenizer does not give the text back.
    OSError
        If the file cannot be written, for instance on a full disk; what was there before remains.
    """
    if tokenizer.fingerprint == ByteTokenizer.fingerprint:
        return _ByteTokens(part)
    path = Path(path)
    description = {"part": part.sha256, "text": part.text.sha256, "tokenizer": tokenizer.fingerprint}
    try:
        found = parse_json(description_path(path).read_bytes())
        if isinstance(found, dict) and (not check or digest(path) == found.get("sha256")):
            tokens = open_tokens(path)
            if found == {**description, "n_tokens": len(tokens), "sha256": found.get("sha256")}:
                return tokens
    except (OSError, ValueError):
        pass  # nothing usable is there, so it is written now
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    with atomic_write(path) as file, waiting("tokenizing", part.size) as advance:
        _write_header(file, dtype, 0)
        n_tokens = 0
        for ids in _batches(part, tokenizer, advance):
            n_tokens += len(ids)
            file.write(ids.astype(dtype).data)
        _write_header(file, dtype, n_tokens)
        description_path(path).unlink(missing_ok=True)  # so that it never describes another file
    with atomic_write(description_path(path)) as file:
        file.write(json.dumps({**description, "n_tokens": n_tokens, "sha256": digest(path)}).encode())
    return open_tokens(path)


def open_tokens(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return the token file at `path`, mapped into memory, read-only.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is not a token file, or was cut short.
    """
    try:
        tokens = np.lib.format.open_memmap(os.fspath(path), mode="r")
    except (ValueError, TokenError, OverflowError, LookupError, TypeError) as error:  # of a header that is damaged
        raise InputError(f"{path} is not a whole token file ({error}): remove it to have it rewritten") from error
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise InputError(f"{path} holds {tokens.dtype} of shape {tokens.shape}, not token ids: give another file")
    return tokens


def bits_per_byte(nats: float, part: Part) -> float:
    """Return the cost of `part` in bits per byte of its text, given the cross-entropy of its tokens summed in `nats`.

    A model that knows nothing pays 8, and a little more for the ends of documents.

    >>> from .text import Text
    >>> bits_per_byte(math.log(2) * 30, Text(Path("text"), n_bytes=10, n_documents=1, sha256="").whole())
    3.0
    """
    return nats / math.log(2) / part.n_bytes


class _ByteTokens:
    """The tokens of a part that are its bytes, read from the text, whose ends of documents are ends of text."""

    def __init__(self, part: Part) -> None:
        """Map the text into memory."""
        self._text = np.memmap(part.text.path, np.uint8, "r")
        self._spans = part.spans
        self._firsts = np.cumsum([0, *(stop - start for start, stop in part.spans)])  # in the part, of each span

    def __len__(self) -> int:
        return 1 + int(self._firsts[-1])

    def __getitem__(self, places: slice, /) -> NDArray[Any]:
        first, stop, _ = places.indices(len(self))
        pieces = [np.frombuffer(END_BYTE if first == 0 < stop else b"", np.uint8)]
        at, end = max(first - 1, 0), stop - 1  # in the part
        span = int(np.searchsorted(self._firsts, at, "right")) - 1
        while at < end:
            upto = min(end, int(self._firsts[span + 1]))
            offset = self._spans[span][0] - int(self._firsts[span])
            pieces.append(self._text[offset + at : offset + upto])
            at, span = upto, span + 1
        tokens = np.concatenate(pieces).astype(np.uint16)
        tokens[tokens == END_BYTE[0]] = ByteTokenizer.end_of_text
        return tokens


def _batches(part: Part, tokenizer: Tokenizer, advance: Advance) -> Iterator[NDArray[Any]]:
    """Yield the tokens of `part`, an end-of-text before the first document and after each."""
    end = np.asarray([tokenizer.end_of_text])
    yield end
    texts: list[str] = []
    ends: list[bool] = []
    for text, ends_document in part.pieces(_BATCH, advance=advance):
        texts.append(text)
        ends.append(ends_document)
        if sum(map(len, texts)) >= _BATCH:
            yield _join(tokenizer.encode_batch(texts), ends, end)
            texts, ends = [], []
    if texts:
        yield _join(tokenizer.encode_batch(texts), ends, end)


def _join(pieces: list[NDArray[Any]], ends: list[bool], end: NDArray[Any]) -> NDArray[Any]:
    """Concatenate pieces, with `end` after those that end a document."""
    return np.concatenate([array for ids, ended in zip(pieces, ends, strict=True) for array in (ids, end)[: 1 + ended]])


def _write_header(file: BinaryIO, dtype: np.dtype[Any], n_tokens: int) -> None:
    """Write the header of a `.npy` file at its beginning; NumPy leaves room in it for the length to grow."""
    file.seek(0)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)
