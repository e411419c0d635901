"""Where the text of a run comes from, and how it becomes tokens: one frozen dataclass, kept in the run's folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tmm_core.errors import InputError, MissingFileError
from tmm_core.fields import Bounds, Configuration, Count

from ..progress import Advance, nothing
from .default_text import default_documents
from .files import STANDARD_INPUT, read_documents, size_of, text_files
from .rows import dataset_documents

if TYPE_CHECKING:
    from .text import Document

__all__ = ["DataConfig", "TextConfig"]


@dataclass(frozen=True, kw_only=True)
class TextConfig(Configuration):
    """Describe a text of files; the fields are options of `tmm train` and `tmm eval`."""

    text: tuple[str, ...] = ()
    """Text files, each one document, folders of them, or - for standard input; .jsonl and .parquet hold a document a
    row, and .gz, .bz2, .xz and .zst are decompressed."""
    text_field: str = "text"
    """Field that holds the text of a row, in files and data sets."""
    separator: str | None = None
    r"""Text between two documents of a file of plain text; \n stands for the end of a line, \t for a tab."""
    text_errors: Literal["strict", "replace"] = "strict"
    """What becomes of what is no text, such as bytes that are no UTF-8: refused with its place, or read as U+FFFD."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if self.separator == "":
            raise InputError("--separator is empty: give the text that stands between two documents, or leave it out")

    @property
    def name(self) -> str:
        """The name of the text, for people."""
        more = f" and {len(self.text) - 1} more" if len(self.text) > 1 else ""
        first = "standard input" if self.text[0] == STANDARD_INPUT else Path(self.text[0]).absolute().name
        return first + more

    def check_files(self) -> None:
        """Refuse files that are missing, empty or named twice; nothing of them is read."""
        text_files(self.text)

    def size(self) -> int | None:
        """Return the bytes to read, or None where only reading tells."""
        return size_of(text_files(self.text))

    def documents(self, advance: Advance = nothing) -> Iterable[Document]:
        """Return the documents, streamed where they may be many; `advance` is told how many bytes were read."""
        separator = self.separator and self.separator.replace(r"\n", "\n").replace(r"\t", "\t")
        return read_documents(
            self.text, field=self.text_field, separator=separator, errors=self.text_errors, advance=advance
        )


@dataclass(frozen=True, kw_only=True)
class DataConfig(TextConfig):
    """Describe the text of a run and its tokens; the fields are options of `tmm train`.

    Without a text it is the documentation that comes with Python.
    """

    dataset: str | None = None
    """Data set of the Hugging Face hub to stream, such as HuggingFaceFW/fineweb-edu, the paper's."""
    dataset_subset: str | None = None
    """Configuration of the data set."""
    dataset_split: str = "train"
    """Split of the data set."""
    max_bytes: Count = 1_000_000_000
    """Most bytes to take from the data set."""
    held_out_bytes: Count = 65536
    """Most bytes to hold out for evaluation."""
    tokenizer: str | None = None
    """A tokenizer.json of the tokenizers library; by default tokens are bytes and an end-of-text."""
    vocab: Annotated[int, Bounds(at_least=257)] | None = None
    """Number of ids of a byte-level BPE to train on the training text."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, before anything is read."""
        super().__post_init__()
        if self.text and self.dataset is not None:
            raise InputError("--text and --dataset are both given: choose one")
        if self.tokenizer is not None and self.vocab is not None:
            raise InputError("--tokenizer and --vocab are both given: take a tokenizer, or train one")
        for name in ("dataset_subset", "dataset_split", "max_bytes"):
            if self.dataset is None and getattr(self, name) != getattr(DataConfig, name):
                raise InputError(f"--{name.replace('_', '-')} is of a data set, and there is none: add --dataset NAME")

    @property
    def name(self) -> str:
        """The name of the text, for people."""
        if self.dataset is not None:
            return self.dataset
        return super().name if self.text else "documentation of Python's standard library"

    def check_files(self) -> None:
        """Refuse files that are missing, empty or named twice; nothing of them is read."""
        if self.text:
            super().check_files()
        if self.tokenizer is not None and not Path(self.tokenizer).is_file():
            raise MissingFileError(f"there is no tokenizer file {self.tokenizer}: check the path")

    def size(self) -> int | None:
        """Return the bytes to read, or None where only reading tells."""
        return super().size() if self.text else None

    def documents(self, advance: Advance = nothing) -> Iterable[Document]:
        """Return the documents, streamed where they may be many; `advance` is told how many bytes were read."""
        if self.dataset is not None:
            return dataset_documents(
                self.dataset,
                subset=self.dataset_subset,
                split=self.dataset_split,
                field=self.text_field,
                errors=self.text_errors,
                max_bytes=self.max_bytes,
            )
        return super().documents(advance) if self.text else default_documents()
