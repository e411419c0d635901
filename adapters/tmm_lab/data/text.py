"""Documents in one file on disk, divided into a training part and a held-out part; everything is streamed.

A *document* is a string, or an iterable of the strings that make it up, so it may be larger than the memory.
`write_text` keeps documents in a single file: UTF-8, each followed by the byte 0xFF. That byte never occurs in UTF-8,
so the file itself says where documents end, and its hash covers their boundaries.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tmm_adapters.files import atomic_write, digest, parse_json
from tmm_core.errors import InputError, InputTypeError

from ..progress import Advance, nothing

__all__ = ["END_BYTE", "Document", "Part", "Text", "description_path", "open_text", "write_text"]

Document = str | Iterable[str]
"""One document: its text, or the pieces of its text in their order."""

END_BYTE = b"\xff"
"""Follows each document in a text file; UTF-8 never uses it."""

HELD_OUT_BYTES = 65536
"""Most bytes held out unless told otherwise: enough to measure, few enough to evaluate ten times a run."""

_READ = 1 << 20  # bytes read at a time
_ONE_IN = 20  # one document in this many is held out, about 5 %
_FEW = 4  # fewer held-out documents than this would be a poor sample: the end of the text is held out instead


@dataclass(frozen=True)
class Text:
    """Documents in one file, as `write_text` leaves them: UTF-8, each document followed by `END_BYTE`."""

    path: Path
    n_bytes: int
    """Bytes of text, without the ends of documents."""
    n_documents: int
    sha256: str
    """Hexadecimal digest of the file: of every byte of text and of where documents end."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.n_bytes + self.n_documents

    def whole(self) -> Part:
        """Return all of the text as one part, such as a text to evaluate on."""
        return Part(self, ((0, self.size),), self.n_documents)

    def split(self, held_out_bytes: int = HELD_OUT_BYTES, *, at_least: int = 4096) -> tuple[Part, Part]:
        """Return the training part and the held-out part, which share no byte and leave none out.

        With many documents, one in twenty is held out, or fewer where those would exceed `held_out_bytes`: whole
        documents, spread evenly over the text; one that does not fit within the limit is left to training. Where that
        makes fewer than four documents or less than `at_least` bytes, the end of the text is held out instead: a
        twentieth of it, within the same limits, and never more than half.

        Parameters
        ----------
        held_out_bytes : int
            Most bytes held out.
        at_least : int
            Fewest bytes that are worth holding out.

        Returns
        -------
        training, held_out : Part
            Both in the order of the text; the same on every call.

        Raises
        ------
        ValueError
            If `held_out_bytes` is not positive, or the text is too short to have two parts.
        """
        if held_out_bytes < 1:
            raise InputError(f"held_out_bytes must be at least 1, and is {held_out_bytes}")
        at_least = min(at_least, held_out_bytes)
        every = max(_ONE_IN, -(-self.n_bytes // held_out_bytes))
        if self.n_documents // every >= _FEW:
            training, held_out = self._split_documents(every, held_out_bytes)
            if held_out.n_documents >= _FEW and held_out.n_bytes >= at_least:
                return training, held_out
        return self._split_tail(min(max(self.n_bytes // _ONE_IN, at_least), held_out_bytes, self.n_bytes // 2))

    def _split_documents(self, every: int, limit: int) -> tuple[Part, Part]:
        """Hold out documents `every // 2`, `every // 2 + every`, … as far as they fit within `limit` bytes."""
        spans: list[tuple[int, int]] = []
        room = limit
        start = 0
        for index, stop in enumerate(self._ends()):
            n_bytes = stop - start - 1
            if index % every == every // 2 and n_bytes <= room:
                spans.append((start, stop))
                room -= n_bytes
            start = stop
        edges = [0, *(edge for span in spans for edge in span), self.size]
        rest = tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
        return Part(self, rest, self.n_documents - len(spans)), Part(self, tuple(spans), len(spans))

    def _split_tail(self, limit: int) -> tuple[Part, Part]:
        """Hold out the last `limit` bytes or a few less, from the beginning of a line or of a character."""
        size = limit + 1  # the last byte ends a document
        with self.path.open("rb") as file:
            file.seek(self.size - size)
            tail = file.read(size)
        begin = tail.find(b"\n", 0, size // 2) + 1
        while begin < size and 0x80 <= tail[begin] < 0xC0:  # inside a character
            begin += 1
        begin += tail[begin : begin + 1] == END_BYTE
        n_ends = tail.count(END_BYTE, begin)
        cut = self.size - size + begin
        if cut == 0 or size - begin <= n_ends:
            raise InputError(f"{limit} bytes cannot be held out of a text of {self.n_bytes} bytes: add text")
        return Part(self, ((0, cut),), self.n_documents - n_ends), Part(self, ((cut, self.size),), n_ends)

    def _ends(self) -> Iterator[int]:
        """Yield where each document ends in the file, its `END_BYTE` included."""
        offset = 0
        with self.path.open("rb") as file:
            while data := file.read(_READ):
                ends = np.flatnonzero(np.frombuffer(data, np.uint8) == END_BYTE[0])
                yield from (ends + (offset + 1)).tolist()
                offset += len(data)


@dataclass(frozen=True)
class Part:
    """Some of a text: spans of its file, in order."""

    text: Text
    spans: tuple[tuple[int, int], ...]
    """Where each stretch begins and ends in the file, in bytes."""
    n_documents: int
    """Documents that end in this part."""

    @property
    def size(self) -> int:
        """Bytes in the file, the ends of documents included."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def n_bytes(self) -> int:
        """Bytes of text: what bits per byte are counted over."""
        return self.size - self.n_documents

    @property
    def sha256(self) -> str:
        """Hexadecimal digest that tells this part from every other part of every text; nothing is read for it."""
        return hashlib.sha256(json.dumps([self.text.sha256, self.spans]).encode()).hexdigest()

    def chunks(self, size: int = _READ) -> Iterator[bytes]:
        """Yield the part's bytes as they are in the file, `END_BYTE` after each document, at most `size` at a time."""
        with self.text.path.open("rb") as file:
            for start, stop in self.spans:
                file.seek(start)
                while start < stop:
                    data = file.read(min(size, stop - start))
                    if not data:
                        raise InputError(f"text file {self.text.path} was cut short: write it again")
                    start += len(data)
                    yield data

    def pieces(self, size: int = _READ, *, advance: Advance = nothing) -> Iterator[tuple[str, bool]]:
        """Yield the text in pieces of about `size` bytes at most, and with each whether a document ends there.

        A document longer than `size` is cut before a space or the end of a line that stands between two words, where
        tokenizers divide text too, so that its tokens are those of the uncut text. `advance` is told how many bytes
        were read.
        """
        rest = b""
        for data in self.chunks(size):
            advance(len(data))
            *whole, rest = (rest + data).split(END_BYTE)
            for document in whole:
                yield document.decode(), True
            if len(rest) >= size:
                cut = _word_end(rest)
                if cut:
                    yield rest[:cut].decode(), False
                rest = rest[cut:]
        if rest:
            yield rest.decode(), False


def write_text(documents: Iterable[Document], path: str | os.PathLike[str]) -> Text:
    """Write documents to one file, streaming, and return it as a `Text`.

    Parameters
    ----------
    documents : iterable of Document
        Each a string or an iterable of strings; empty documents are passed over.
    path : path
        The file to write; a description goes beside it, at `<path>.json`. Both appear when they are complete, never
        before, and replace earlier ones.

    Returns
    -------
    Text
        With its size, number of documents and hash.

    Raises
    ------
    TypeError
        If a document is no text, or one string is given in place of several documents.
    ValueError
        If there is no text at all, or a string is not valid Unicode.
    OSError
        If the file cannot be written, for instance on a full disk; what was there before remains.
    """
    if isinstance(documents, str):
        raise InputTypeError("documents must be an iterable of documents, not one string: put it into a list")
    path = Path(path)
    digest = hashlib.sha256()
    n_bytes = n_documents = 0
    with atomic_write(path) as file:
        for document in documents:
            before = n_bytes
            for piece in (document,) if isinstance(document, str) else document:
                data = _encode(piece, n_documents)
                n_bytes += file.write(data)
                digest.update(data)
            if n_bytes > before:
                file.write(END_BYTE)
                digest.update(END_BYTE)
                n_documents += 1
        if not n_documents:
            raise InputError("the documents hold no text: give at least one that does")
        description_path(path).unlink(missing_ok=True)  # so that it never describes another file
    text = Text(path, n_bytes, n_documents, digest.hexdigest())
    description = {"n_bytes": n_bytes, "n_documents": n_documents, "sha256": text.sha256}
    with atomic_write(description_path(path)) as file:
        file.write(json.dumps(description).encode())
    return text


def open_text(path: str | os.PathLike[str], *, check: bool = True) -> Text:
    """Return the text that `write_text` left at `path`; with `check` it is read whole, to see that it is what it was.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If the file or its description is not what `write_text` wrote.
    """
    path = Path(path)
    try:
        fields = parse_json(description_path(path).read_bytes())
        text = Text(path, int(fields["n_bytes"]), int(fields["n_documents"]), str(fields["sha256"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{description_path(path)} does not describe a text: write the text again") from error
    if path.stat().st_size != text.size:
        raise InputError(f"text file {path} has {path.stat().st_size} bytes, expected {text.size}: write it again")
    if check and digest(path) != text.sha256:
        raise InputError(f"text file {path} is damaged: its hash is not the one in {description_path(path).name}")
    return text


def description_path(path: Path) -> Path:
    """Return where the description of the file `path` is kept."""
    return path.with_name(path.name + ".json")


def _encode(piece: str, index: int) -> bytes:
    if not isinstance(piece, str):
        raise InputTypeError(f"document {index} must be text, and holds {type(piece).__name__}: decode it first")
    try:
        return piece.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"document {index} is not valid Unicode ({error}): have it replaced (--text-errors replace)"
        ) from error


def _word_end(data: bytes) -> int:
    """Return the last place to cut `data`: before white space between two words, else before a character."""
    match = re.match(rb"(?s).*\S(?=[ \n]\S)", data)
    if match:
        return match.end()
    cut = len(data) - 1
    while cut > 0 and 0x80 <= data[cut] < 0xC0:
        cut -= 1
    return cut
