"""Token files that are mapped into memory, and the windows of them that a model reads.

A token file holds an end-of-text, then the tokens of each document followed by an end-of-text. The first token of the
file is never a target; each of the others is predicted exactly once in a pass over `TokenWindows`. So a model pays for
the bytes of its text and for the end of each document, as the baselines do. A document begins at the end-of-text before
it, which is the only context of its first token.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tmm_adapters.files import atomic_write
from tmm_adapters.tokenizers import Tokenizer
from tmm_core.errors import InputError
from tmm_core.lm import IGNORED

from .text import Part, description_path

__all__ = ["TokenWindows", "bits_per_byte", "evaluation_windows", "open_tokens", "samples_at", "write_tokens"]

_BATCH = 1 << 20  # characters tokenized at a time


def write_tokens(part: Part, tokenizer: Tokenizer, path: str | os.PathLike[str]) -> NDArray[Any]:
    """Tokenize `part` into a `.npy` file and return the file, mapped into memory.

    Parameters
    ----------
    part : Part
        The text; it is streamed.
    tokenizer : Tokenizer
        Gives the ids.
    path : path
        The file; a description goes beside it, at `<path>.json`. A file that already holds this part in this
        tokenizer's ids is used as it is.

    Returns
    -------
    array of uint16 or uint32, shape (n_tokens,)
        An end-of-text, then each document followed by an end-of-text; read-only and read from disk as needed.

    Raises
    ------
    OSError
        If the file cannot be written, for instance on a full disk; what was there before remains.
    """
    path = Path(path)
    description = {"part": part.sha256, "text": part.text.sha256, "tokenizer": tokenizer.fingerprint}
    try:
        tokens = open_tokens(path)
        if json.loads(description_path(path).read_bytes()) == {**description, "n_tokens": len(tokens)}:
            return tokens
    except (OSError, ValueError):
        pass  # nothing usable is there, so it is written now
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    with atomic_write(path) as file:
        _write_header(file, dtype, 0)
        n_tokens = 0
        for ids in _batches(part, tokenizer):
            n_tokens += len(ids)
            file.write(ids.astype(dtype).data)
        _write_header(file, dtype, n_tokens)
        description_path(path).unlink(missing_ok=True)  # so that it never describes another file
    with atomic_write(description_path(path)) as file:
        file.write(json.dumps({**description, "n_tokens": n_tokens}).encode())
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
    except ValueError as error:
        raise InputError(f"{path} is not a whole token file ({error}): remove it to have it rewritten") from error
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise InputError(f"{path} holds {tokens.dtype} of shape {tokens.shape}, not token ids: give another file")
    return tokens


def samples_at(
    tokens: NDArray[Any], starts: Sequence[int], context: int, end_of_text: int | None
) -> dict[str, NDArray[np.int64]]:
    """Return the inputs and the next-token targets of the contexts that begin at `starts`, by argument name.

    Parameters
    ----------
    tokens : integer array, shape (n_tokens,)
        A token file, with a context and one more token from each start on.
    starts : sequence of int
        Positions of the first tokens.
    context : int
        Tokens of a sample.
    end_of_text : int or None
        The id at which documents begin, each isolated from the others; None joins them.

    Returns
    -------
    dict of int64 arrays, shape (len(starts), context)
        `input_ids`; `targets`, the token that follows each; and unless documents are joined `segment_ids`, the number
        of each token's document within its sample.

    Examples
    --------
    >>> samples_at(np.asarray([0, 5, 6, 0, 7]), [0], 4, end_of_text=0)["segment_ids"]
    array([[1, 1, 1, 2]])
    """
    rows = np.stack([tokens[start : start + context + 1] for start in starts]).astype(np.int64)
    sample = {"input_ids": rows[:, :-1], "targets": rows[:, 1:]}
    if end_of_text is not None:
        sample["segment_ids"] = np.cumsum(sample["input_ids"] == end_of_text, axis=1)
    return sample


def evaluation_windows(tokens: NDArray[Any], context: int, end_of_text: int | None) -> TokenWindows:
    """Return windows in which every token has at least half a context before it, or all tokens that there are.

    With `end_of_text`, those of its document. Bits per byte are measured in this way, in training and in `tmm eval`.
    """
    context = min(context, len(tokens) - 1)
    return TokenWindows(tokens, context, end_of_text, stride=max(1, context // 2))


class TokenWindows:
    """Cut tokens into windows of one context such that every token but the first is predicted exactly once.

    A window is one row of `samples_at`: inputs `[s, s + context)`, and as targets the tokens after them. Targets of an
    earlier window are -100. The last window is moved back to end with the tokens, so all windows have one shape and
    nothing is padded.

    Parameters
    ----------
    tokens : integer array, shape (n_tokens,)
        A token file; it is only read where a window is asked for.
    context : int
        Tokens that a window reads, at least 1.
    end_of_text : int or None
        The id at which documents begin, each isolated from the others; None joins them.
    stride : int, optional
        Tokens from one window to the next, `context` unless given. With fewer, windows overlap: each prediction has
        more than `context - stride` tokens before it (but for the start of the text), at `context / stride` times the
        work.

    Raises
    ------
    ValueError
        If the tokens do not fill one context, or `context` or `stride` cannot be.

    Examples
    --------
    >>> windows = TokenWindows(np.arange(6), 3, end_of_text=0)
    >>> [window["targets"].tolist() for window in windows]
    [[1, 2, 3], [-100, 4, 5]]
    """

    def __init__(
        self, tokens: NDArray[Any], context: int, end_of_text: int | None, *, stride: int | None = None
    ) -> None:
        """Check that the windows fit."""
        if context < 1:
            raise InputError(f"context must be at least 1, a token to predict the next from, and is {context}")
        stride = context if stride is None else stride
        if not 1 <= stride <= context:
            raise InputError(f"stride must be in [1, context = {context}], and is {stride}")
        if len(tokens) <= context:
            raise InputError(
                f"the text is too short: it has {len(tokens)} tokens, counting the end-of-text before it, and one "
                f"context needs {context + 1}; give more text, or a smaller context (max_len)"
            )
        self.tokens = tokens
        self.context = context
        self.end_of_text = end_of_text
        self.stride = stride

    @property
    def n_predicted(self) -> int:
        """Tokens predicted in a pass over all windows."""
        return len(self.tokens) - 1

    def __len__(self) -> int:
        """Return the number of windows."""
        return 1 + -(-(self.n_predicted - self.context) // self.stride)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Return `input_ids`, `targets` and, unless documents are joined, `segment_ids` of one window, (context,)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        index %= len(self)
        start = min(index * self.stride, self.n_predicted - self.context)
        window = {
            name: row[0] for name, row in samples_at(self.tokens, [start], self.context, self.end_of_text).items()
        }
        if index > 0:
            predicted_before = (index - 1) * self.stride + self.context
            window["targets"] = window["targets"].copy()  # it shares memory with what the model reads
            window["targets"][: predicted_before - start] = IGNORED
        return window


def bits_per_byte(nats: float, part: Part) -> float:
    """Return the cost of `part` in bits per byte of its text, given the cross-entropy of its tokens summed in `nats`.

    A model that knows nothing pays 8, and a little more for the ends of documents.

    >>> from .text import Text
    >>> bits_per_byte(math.log(2) * 30, Text(Path("text"), n_bytes=10, n_documents=1, sha256="").whole())
    3.0
    """
    return nats / math.log(2) / part.n_bytes


def _batches(part: Part, tokenizer: Tokenizer) -> Iterator[NDArray[Any]]:
    """Yield the tokens of `part`, an end-of-text before the first document and after each."""
    end = np.asarray([tokenizer.end_of_text])
    yield end
    texts: list[str] = []
    ends: list[bool] = []
    for text, ends_document in part.pieces(_BATCH):
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
