"""Sources of documents: this Python's own documentation, files, data sets of the Hugging Face hub."""

from __future__ import annotations

import ast
import codecs
import importlib
import itertools
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tmm_core.errors import InputError, MissingFileError, NotAFileError, NotFoundError

__all__ = ["dataset_documents", "default_documents", "read_documents"]

_READ = 1 << 20  # bytes read at a time
_SKIPPED = {"__pycache__", "idle_test", "idlelib", "lib2to3", "pydoc_data", "test", "tests", "turtledemo"}
_PARAGRAPH = 64  # characters from which a paragraph met before is a duplicate; shorter ones are headings and examples


def default_documents() -> list[str]:
    """Return the English documentation that every CPython carries: the default training text.

    The help topics of `pydoc_data.topics` in alphabetical order, then for each module of the standard library, in the
    order of their names, the docstrings of the module, its classes and its functions. A paragraph of 64 characters or
    more that has occurred before is dropped, and so are documents left empty: help topics quote each other, and what
    is held out must not be found in the training part.

    Returns
    -------
    list of str
        About 600 documents, 2 MB in all; the same on every call of one Python.

    Raises
    ------
    LookupError
        If this Python comes without the sources of its standard library.

    Notes
    -----
    Modules are parsed, not imported, so nothing runs. Takes about 3 seconds.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    library = Path(sysconfig.get_path("stdlib"))
    texts = [topics[name] for name in sorted(topics)]
    texts += ["\n\n".join(_docstrings(path)) for path in _modules(library)]
    documents = [document for text in texts if (document := _without_duplicates(text, seen))]
    if len(documents) <= len(topics):
        raise NotFoundError(f"no sources of the standard library in {library}: give a text of your own (--text FILE)")
    return documents


def read_documents(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Iterator[str]]:
    """Yield each file as one document, read piece by piece.

    Parameters
    ----------
    paths : sequence of path
        UTF-8 text files of any size.

    Yields
    ------
    iterator of str
        The pieces of one document; take them before the next document.

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        If a path is not a file. All paths are looked at before the first document is yielded.
    ValueError
        If no path is given, a file is empty, or a file is not UTF-8 text; the message names the file and the byte.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("no text file given: name at least one")
    for file in files:
        if file.is_dir():
            raise NotAFileError(f"{file} is a folder, and a text must be a file: name the files in it ({file}/*)")
        if not file.exists():
            raise MissingFileError(f"there is no text file {file}: check the path")
        if file.is_file() and file.stat().st_size == 0:
            raise InputError(f"text file {file} is empty: leave it out, or give one that holds text")
    return map(_read_pieces, files)


def dataset_documents(
    name: str,
    *,
    subset: str | None = None,
    split: str = "train",
    column: str = "text",
    max_bytes: int | None = None,
    max_documents: int | None = None,
) -> Iterator[str]:
    """Stream the documents of a Hugging Face data set, such as the paper's `HuggingFaceFW/fineweb-edu`.

    Parameters
    ----------
    name : str
        A data set of the hub, or a folder.
    subset, split, column : str
        Which of its configurations, which split, and the column that holds the text.
    max_bytes, max_documents : int, optional
        Stop before the document that would exceed these many bytes of UTF-8, or after so many documents.

    Yields
    ------
    str
        One document.

    Raises
    ------
    LookupError
        If the library `datasets` is missing, or the data set has no such column.
    ConnectionError
        If the data set cannot be opened, for want of a network or because there is none of this name.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise NotFoundError(
            "data sets need the library 'datasets', which is not installed: pip install 'tmm-core[hub]'"
        ) from error
    documents = _column(_rows(datasets, name, subset, split), name, column)
    return itertools.islice(_up_to(documents, max_bytes), max_documents)


def _read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file piece by piece, refusing what is not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    empty = True
    with path.open("rb") as file:
        while True:
            data = file.read(_READ)
            pending = len(decoder.getstate()[0])
            try:
                piece = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise _not_text(path, offset - pending + error.start) from error
            if "\0" in piece:
                raise _not_text(path, offset + data.index(0))
            if piece:
                empty = False
                yield piece
            if not data:
                break
            offset += len(data)
    if empty:
        raise InputError(f"text file {path} is empty: leave it out, or give one that holds text")


def _not_text(path: Path, offset: int) -> ValueError:
    return InputError(
        f"{path} is not a UTF-8 text file, as its byte {offset} shows: leave it out, or convert it "
        f"(iconv -f ENCODING -t UTF-8)"
    )


def _rows(datasets: Any, name: str, subset: str | None, split: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a data set; whatever its library raises becomes one error that says what to do."""
    try:
        yield from datasets.load_dataset(name, subset, split=split, streaming=True)
    except (AttributeError, MemoryError, NameError, TypeError):
        raise  # no fault of the data set
    except Exception as error:  # of one of the libraries below, which have no class in common
        raise ConnectionError(
            f"data set {name!r} (subset {subset!r}, split {split!r}) cannot be read ({type(error).__name__}: {error}): "
            "check the name and the network, or give files (--text FILE)"
        ) from error


def _column(rows: Iterable[Mapping[str, Any]], name: str, column: str) -> Iterator[str]:
    for row in rows:
        if not isinstance(row.get(column), str):
            texts = [repr(key) for key, value in row.items() if isinstance(value, str)]
            raise NotFoundError(f"data set {name!r} has no column {column!r} of text: choose one of {', '.join(texts)}")
        yield row[column]


def _up_to(documents: Iterable[str], max_bytes: int | None) -> Iterator[str]:
    """Yield documents while they stay within `max_bytes` of UTF-8."""
    n_bytes = 0
    for document in documents:
        n_bytes += len(document.encode(errors="replace"))
        if max_bytes is not None and n_bytes > max_bytes:
            return
        yield document


def _modules(library: Path) -> Iterator[Path]:
    """Yield the sources of the standard library in the order of their names, without its tests and applications."""
    for path in sorted(library.iterdir()):
        if path.stem not in sys.stdlib_module_names or path.name in _SKIPPED:
            continue
        if path.suffix == ".py":
            yield path
        elif path.is_dir():
            for folder, folders, files in os.walk(path):
                folders[:] = sorted(set(folders) - _SKIPPED)
                yield from (Path(folder, file) for file in sorted(files) if file.endswith(".py"))


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions in the order of its source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sources may hold escapes that are deprecated
        nodes: list[ast.AST] = [ast.parse(path.read_bytes())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        if not isinstance(node, ast.expr):
            nodes += reversed(list(ast.iter_child_nodes(node)))


def _without_duplicates(text: str, seen: set[str]) -> str:
    """Return `text` without the long paragraphs in `seen`, adding its own to them."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        words = " ".join(paragraph.split())
        if len(words) >= _PARAGRAPH:
            if words in seen:
                continue
            seen.add(words)
        kept.append(paragraph)
    return "\n\n".join(kept)
