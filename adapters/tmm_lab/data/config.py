"""Where the text of a run comes from, and how it becomes tokens: one frozen dataclass, kept in the run's folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tmm_core.errors import InputError, MissingFileError
from tmm_core.fields import Bounds, Configuration, Count

from .documents import dataset_documents, default_documents, read_documents

if TYPE_CHECKING:
    from .text import Document

__all__ = ["DataConfig"]


@dataclass(frozen=True, kw_only=True)
class DataConfig(Configuration):
    """Describe a text; the fields are options of `tmm train`."""

    text: tuple[str, ...] = ()
    """Text files, each one document; by default the documentation that comes with Python."""
    dataset: str | None = None
    """Data set of the Hugging Face hub to stream, such as HuggingFaceFW/fineweb-edu, the paper's."""
    dataset_subset: str | None = None
    """Configuration of the data set."""
    dataset_split: str = "train"
    """Split of the data set."""
    dataset_column: str = "text"
    """Column of the data set that holds the text."""
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

    @property
    def name(self) -> str:
        """The name of the text, for people."""
        if self.dataset is not None:
            return self.dataset
        if not self.text:
            return "documentation of Python's standard library"
        more = f" and {len(self.text) - 1} more" if len(self.text) > 1 else ""
        return Path(self.text[0]).name + more

    def check_files(self) -> None:
        """Refuse files that are missing, empty or named twice; nothing of them is read."""
        if self.text:
            read_documents(self.text)
            twice = [path for path, count in Counter(map(os.path.realpath, self.text)).items() if count > 1]
            if twice:
                raise InputError(f"--text names {twice[0]} twice, and would train on held-out text: name it once")
        if self.tokenizer is not None and not Path(self.tokenizer).is_file():
            raise MissingFileError(f"there is no tokenizer file {self.tokenizer}: check the path")

    def documents(self) -> Iterable[Document]:
        """Return the documents, streamed where they may be many."""
        if self.dataset is not None:
            return dataset_documents(
                self.dataset,
                subset=self.dataset_subset,
                split=self.dataset_split,
                column=self.dataset_column,
                max_bytes=self.max_bytes,
            )
        return read_documents(self.text) if self.text else default_documents()
