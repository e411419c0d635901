"""Documents that are rows of a table: JSON lines, Parquet files, data sets of the Hugging Face hub."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Literal

from tmm_adapters.extras import how_to_install
from tmm_adapters.files import parse_json
from tmm_core.errors import InputError, NotFoundError, did_you_mean

__all__ = ["Errors", "dataset_documents", "json_rows", "optional_library", "parquet_rows", "texts_of"]


Errors = Literal["strict", "replace"]
"""What becomes of bytes or characters that are no text: refused, or read as U+FFFD."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # what JSON can spell, and files of plain text cannot hold


def texts_of(rows: Iterable[Any], field: str, source: str, errors: Errors = "strict") -> Iterator[str]:
    """Yield the text of each row; one that is null is passed over, as empty documents are.

    Raises
    ------
    LookupError
        If a row has no `field`, or holds no text there; the message names the row and the fields that do.
    ValueError
        If a text holds U+0000 or half of a pair of surrogates, unless these are replaced; the message names the row.
    """
    for number, row in enumerate(rows, 1):
        fields = row if isinstance(row, Mapping) else {}
        text = fields.get(field)
        if isinstance(text, str):
            wrong = _NO_TEXT.search(text)
            if wrong and errors == "strict":
                raise InputError(
                    f"row {number} of {source} holds U+{ord(wrong[0]):04X}, which is no character of a text: leave it "
                    "out, or have such characters read as U+FFFD (--text-errors replace)"
                )
            yield _NO_TEXT.sub("\ufffd", text) if wrong else text
        elif text is not None or field not in fields:
            known = [name for name, value in fields.items() if isinstance(value, str)]
            found = f"choose one of {', '.join(map(repr, known))} (--text-field){did_you_mean(field, known)}"
            remedy = found if known else "leave it out"
            raise NotFoundError(f"row {number} of {source} has no text in a field {field!r}: {remedy}")


def json_rows(lines: Iterable[str], source: str) -> Iterator[Any]:
    """Yield what each line says in JSON; blank lines say nothing."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield parse_json(line.removeprefix("\ufeff"))
            except ValueError as error:
                raise InputError(
                    f"line {number} of {source} is not JSON ({error}): mend it, or leave it out"
                ) from error


def parquet_rows(file: BinaryIO, field: str, source: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a Parquet file, of their columns only `field` where there is one."""
    parquet = optional_library("pyarrow.parquet", "Parquet files")
    try:
        table = parquet.ParquetFile(file)
        columns = [field] if field in table.schema_arrow.names else None
        for batch in table.iter_batches(batch_size=1024, columns=columns):
            yield from batch.to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's errors of damaged files are these
        raise InputError(f"{source} is no whole Parquet file ({error}): leave it out, or write it again") from error


def dataset_documents(
    name: str,
    *,
    subset: str | None = None,
    split: str = "train",
    field: str = "text",
    errors: Errors = "strict",
    max_bytes: int | None = None,
    max_documents: int | None = None,
) -> Iterator[str]:
    """Stream the documents of a Hugging Face data set, such as the paper's `HuggingFaceFW/fineweb-edu`.

    Parameters
    ----------
    name : str
        A data set of the hub, or a folder.
    subset, split, field : str
        Which of its configurations, which split, and the column that holds the text.
    errors : "strict" or "replace"
        What becomes of characters that are no text: refused, or read as U+FFFD.
    max_bytes, max_documents : int, optional
        Stop after these many bytes of UTF-8, where the last document is cut, or after so many documents.

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
    datasets = optional_library("datasets", "data sets")
    documents = texts_of(_rows(datasets, name, subset, split), field, f"data set {name!r}", errors)
    return itertools.islice(_up_to(documents, max_bytes), max_documents)


def optional_library(name: str, wanted: str) -> Any:
    """Return a library that only some texts need.

    Raises
    ------
    LookupError
        If it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFoundError(
            f"{wanted} need the library {name.partition('.')[0]!r}, which is not installed: {how_to_install(name)}"
        ) from error


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


def _up_to(documents: Iterable[str], max_bytes: int | None) -> Iterator[str]:
    """Yield documents of `max_bytes` of UTF-8 in all."""
    if max_bytes is None:
        yield from documents
        return
    for document in documents:
        data = document.encode()
        if len(data) > max_bytes:
            if cut := data[:max_bytes].decode(errors="ignore"):  # without a character that is cut
                yield cut
            return
        max_bytes -= len(data)
        yield document
