"""Texts as people have them: files and folders of plain text or of rows, compressed or not, and standard input."""

from __future__ import annotations

import bz2
import codecs
import functools
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tmm_adapters.files import open_to_read
from tmm_core.errors import InputError, MissingFileError, NotAllowedError

from ..progress import Advance, nothing
from .rows import Errors, json_rows, optional_library, parquet_rows, texts_of

if TYPE_CHECKING:
    from .text import Document

__all__ = ["STANDARD_INPUT", "read_documents", "size_of", "text_files"]

STANDARD_INPUT = "-"

_READ = 1 << 18  # bytes read at a time
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = ".parquet"


class _Decompressor(Protocol):
    """What Python's modules of compression have in common."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, /) -> bytes: ...


def text_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path | None]:
    """Return the files of a text, None for standard input; nothing of them is read.

    Parameters
    ----------
    paths : sequence of path
        Files, folders, and "-" for standard input. Of folders, all files are taken in the order of their names, those
        of their folders as well, except hidden and empty ones, and what is no file, such as a named pipe.

    Raises
    ------
    FileNotFoundError
        If there is nothing at a path.
    PermissionError
        If a folder must not be read.
    ValueError
        If no path is given, or a file is empty or given twice, under other names perhaps.
    """
    if any(not os.fspath(path) for path in paths):  # such as an unset variable of the shell; Path makes "." of it
        raise InputError("a text has an empty name: name a file or a folder (--text FILE)")
    files: list[Path | None] = []
    for path in paths:  # Path makes "-" of "./-", which is a file
        files += [None] if os.fspath(path) == STANDARD_INPUT else _files_of(Path(path))
    if not files:
        raise InputError("no text file given: name at least one")
    if None in files and sys.stdin is None:
        raise InputError("standard input is closed: lead a text into it (--text - < FILE)")
    seen: dict[object, str] = {}
    for file in files:
        key = None if file is None else (file.stat().st_dev, file.stat().st_ino)
        if key in seen:
            raise InputError(
                f"{seen[key]} and {_named(file)} are one, so what is held out is trained on: name one of them"
            )
        seen[key] = _named(file)
    return files


def size_of(files: Iterable[Path | None]) -> int | None:
    """Return the bytes of files together, or None where only reading tells."""
    sizes = [0 if file is None or not file.is_file() else file.stat().st_size for file in files]
    return sum(sizes) if all(sizes) else None


def read_documents(
    paths: Sequence[str | os.PathLike[str]],
    *,
    field: str = "text",
    separator: str | None = None,
    errors: Errors = "strict",
    advance: Advance = nothing,
) -> Iterator[Document]:
    """Yield the documents of files and folders.

    Parameters
    ----------
    paths : sequence of path
        As for `text_files`. A name that ends in `.jsonl`, `.ndjson` or `.parquet` stands for rows, each one document;
        any other for plain text in UTF-8, one document of any size, read piece by piece. Before these endings may come
        that of a compression: `.gz`, `.bz2`, `.xz` or `.zst`.
    field : str
        Which field of a row holds the text.
    separator : str, optional
        What stands between two documents of a file of plain text.
    errors : "strict" or "replace"
        What becomes of bytes that are no text: refused, or read as U+FFFD.
    advance : callable
        Told how many bytes of the files were read.

    Yields
    ------
    str or iterator of str
        A document, or its pieces; take them before the next document.

    Raises
    ------
    FileNotFoundError
        If there is nothing at a path. All paths are looked at before the first document is yielded.
    LookupError
        If a library is missing that a format needs, or a row has no such field.
    ValueError
        If a file is empty, damaged or no text; the message names the file and the place.
    """
    files = text_files(paths)
    return (d for file in files for d in _documents(file, field, separator, errors, advance))


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_dir():
        files = list(_files_in(path))
        if not files:
            raise InputError(f"folder {path} holds no text: leave it out, or give one with files that do")
        yield from files
    elif not path.exists():
        raise MissingFileError(f"there is no text file {path}: check the path")
    elif path.is_file() and path.stat().st_size == 0:
        raise _empty(path)
    else:
        yield path


def _files_in(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield the files in a folder that is in the folders `above`; a link to one of them has no end."""
    above |= {folder.resolve()}
    try:
        inside = sorted(folder.iterdir())
    except PermissionError as error:
        raise NotAllowedError(f"you may not read the folder {folder}: ask its owner to let you") from error
    for path in inside:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.resolve() in above:
                raise InputError(f"{path} is a link to a folder that it is in: remove it, or name folders without it")
            yield from _files_in(path, above)
        elif not path.exists() or (path.is_file() and path.stat().st_size):
            yield from _files_of(path)  # which refuses a link to nowhere


def _documents(
    path: Path | None, field: str, separator: str | None, errors: Errors, advance: Advance
) -> Iterator[Document]:
    """Yield the documents of one file."""
    suffixes = [] if path is None else [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else None
    kind = suffixes[-1] if suffixes else ""
    chunks = _chunks(path, advance)
    if compression is not None:
        chunks = _decompressed(chunks, path, *_COMPRESSIONS[compression]())
    if path is not None and kind == _PARQUET:
        file = io.BytesIO(b"".join(chunks)) if compression or not path.is_file() else open_to_read(path)
        with file:
            yield from texts_of(parquet_rows(file, field, str(path)), field, str(path), errors)
        return
    pieces = _decoded(chunks, path, errors)
    if kind in _JSON_LINES:
        lines = ("".join(line) for line in _separated(pieces, "\n"))
        yield from texts_of(json_rows(lines, str(path)), field, str(path), errors)
    elif separator is not None:
        yield from _separated(pieces, separator)
    else:
        yield pieces


def _chunks(path: Path | None, advance: Advance) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    if path is None:
        yield from iter(lambda: sys.stdin.buffer.read(_READ), b"")
        return
    with open_to_read(path) as file:
        while data := file.read(_READ):
            advance(len(data))
            yield data


def _decompressed(
    chunks: Iterator[bytes], path: Path | None, make: Callable[[], _Decompressor], error_class: type[Exception]
) -> Iterator[bytes]:
    """Yield the bytes of a compressed file, which may be several, one after the other."""
    decompressor, whole = make(), True
    for data in chunks:
        while data:
            try:
                yield decompressor.decompress(data)
            except error_class as error:
                raise InputError(f"{path} is damaged ({error}): leave it out, or bring it back from a copy") from error
            whole, data = decompressor.eof, decompressor.unused_data.lstrip(b"\0")  # some fill blocks up with zeros
            if whole:
                decompressor = make()
    if not whole:
        raise InputError(f"{path} was cut short: leave it out, or bring it back from a copy")


def _zstandard() -> tuple[Callable[[], _Decompressor], type[Exception]]:
    library = optional_library("zstandard", "files that end in .zst")
    # Collections are compressed with windows of up to 2 GiB (zstd --long=31).
    return library.ZstdDecompressor(max_window_size=1 << 31).decompressobj, library.ZstdError


_COMPRESSIONS: dict[str, Callable[[], tuple[Callable[[], Any], type[Exception]]]] = {
    ".gz": lambda: (functools.partial(zlib.decompressobj, 31), zlib.error),  # 31: with the header of gzip
    ".bz2": lambda: (bz2.BZ2Decompressor, OSError),
    ".xz": lambda: (lzma.LZMADecompressor, lzma.LZMAError),
    ".zst": _zstandard,
}


def _decoded(chunks: Iterator[bytes], path: Path | None, errors: Errors) -> Iterator[str]:
    """Yield the text of a file piece by piece; without `errors="replace"`, what is no UTF-8 text is refused."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    before, lines, empty = 0, 1, True  # bytes and lines of the earlier pieces
    for data in _with_end(chunks):
        pending = decoder.getstate()[0]
        try:
            piece = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise _no_text(path, error.object, error.start, before, lines) from error
        if "\0" in piece:
            if errors == "strict":
                raise _no_text(path, pending + data, (pending + data).index(0), before, lines)
            piece = piece.replace("\0", "\ufffd")
        before += len(pending) + len(data) - len(decoder.getstate()[0])
        lines += piece.count("\n")
        if piece:
            empty = False
            yield piece
    if empty:
        raise _empty(path)


def _with_end(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks of bytes, and none at the end."""
    yield from filter(None, chunks)
    yield b""


def _no_text(path: Path | None, data: bytes, place: int, before: int, lines: int) -> InputError:
    """Return an error about the byte `place` of `data`, which has so many bytes and lines before it."""
    line = lines + data.count(b"\n", 0, place)
    return InputError(
        f"{_named(path)} is not UTF-8 text, as byte {before + place} in line {line} shows, which is "
        f"{data[place]:#04x}: leave it out, convert it (iconv -f ENCODING -t UTF-8), or have such bytes read as U+FFFD "
        "(--text-errors replace)"
    )


def _empty(path: Path | None) -> InputError:
    return InputError(f"{_named(path)} is empty: leave it out, or give one that holds text")


def _named(path: Path | None) -> str:
    return "standard input" if path is None else f"text file {path}"


def _separated(pieces: Iterator[str], separator: str) -> Iterator[Iterator[str]]:
    """Yield the documents between separators, each piece by piece; take them before the next."""
    text, start, more = "", 0, True

    def document() -> Iterator[str]:
        nonlocal text, start, more
        while (end := text.find(separator, start)) < 0:
            safe = max(start, len(text) - len(separator) + 1)  # what follows may begin a separator
            yield text[start:safe]
            new = next(pieces, None)
            if new is None:
                more = False
                yield text[safe:]
                return
            text, start = text[safe:] + new, 0
        yield text[start:end]
        start = end + len(separator)

    while more:
        yield document()
