"""The text of a run as the files that training reads: documents, tokenizer, tokens; made once and opened again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tmm_adapters.architecture import ModelConfig
from tmm_adapters.files import add_sum, digest
from tmm_adapters.tokenizers import (
    TOKENIZER_BYTES,
    ByteTokenizer,
    Tokenizer,
    check_fits,
    load_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from tmm_core.errors import InputError, MissingFileError

from ..data.config import DataConfig
from ..data.overlap import MUCH, shared_part
from ..data.text import Part, Text, open_text, write_text
from ..data.tokens import Tokens, write_tokens
from ..progress import note, waiting
from .runs import Run

__all__ = ["Data", "open_data", "prepare_data", "with_vocabulary"]


_ABOUT = 0.9  # as much as was asked for: documents are held out whole


@dataclass(frozen=True)
class Data:
    """A text, its parts, and their tokens, mapped into memory."""

    text: Text
    training: Part
    held_out: Part
    tokenizer: Tokenizer
    training_tokens: Tokens
    held_out_tokens: Tokens


def prepare_data(run: Run, source: DataConfig) -> Data:
    """Write the text of `source`, its tokenizer and its tokens into the run's folder."""
    run.data.mkdir(exist_ok=True)
    with waiting(f"reading {source.name}", source.size()) as advance:
        text = write_text(source.documents(advance), run.data / "text")
    training, held_out = text.split(source.held_out_bytes)
    _tell(source, training, held_out)
    if source.tokenizer is not None:
        tokenizer = read_tokenizer(Path(source.tokenizer))
    elif source.vocab is not None:
        tokenizer = _train_tokenizer(training, source.vocab)
    else:
        tokenizer = ByteTokenizer()
    tokenizer.save(run.folder)
    add_sum(run.tokenizer, digest(run.tokenizer))
    return _tokenized(run, source, text, tokenizer, check=True)


def open_data(run: Run, source: DataConfig, *, check: bool) -> Data:
    """Open what `prepare_data` wrote; tokens that are missing or damaged are written again, and are the same.

    With `check` text and tokens are read whole, to see that they are what was written.

    Raises
    ------
    ValueError
        If the text or the tokenizer is missing or damaged.
    """
    try:
        text, tokenizer = open_text(run.data / "text", check=check), load_tokenizer(run.folder)
        if tokenizer is None:
            raise MissingFileError(f"there is no {run.tokenizer}")
        return _tokenized(run, source, text, tokenizer, check=check)
    except (FileNotFoundError, ValueError) as error:
        raise InputError(
            f"the text of the run cannot be used ({error}): bring {run.data} back from a copy, or begin a new run; "
            f"what was trained so far still serves tmm generate {run.folder}"
        ) from error


def with_vocabulary(config: ModelConfig, tokenizer: Tokenizer, *, given: bool) -> ModelConfig:
    """Return `config` with the tokenizer's vocabulary, or as it is where the user gave its `vocab_size`.

    Raises
    ------
    ValueError
        If the tokenizer has more ids than the `vocab_size` given.
    """
    if not given:
        config = replace(config, vocab_size=tokenizer.vocab_size)  # type: ignore[type-var]
    check_fits(tokenizer, config.vocab_size)
    return config


def _tell(source: DataConfig, training: Part, held_out: Part) -> None:
    """Say where the parts are not what one would expect."""
    n_bytes, asked = held_out.n_bytes, source.held_out_bytes
    share = n_bytes / (n_bytes + training.n_bytes)
    if asked != DataConfig.held_out_bytes and n_bytes < _ABOUT * asked:
        note(
            f"held out {n_bytes:,} bytes, not the {asked:,} of --held-out-bytes: a twentieth of the text is the most, "
            "or 4,096 bytes of a short one"
        )
    if share > 0.1:
        note(f"{share:.0%} of the text is held out, for it is short, and a little of it would tell little: add text")
    if (shared := shared_part(held_out, training)) > MUCH:
        note(
            f"the training text holds {shared:.0%} of the held-out text as well, word for word, so bits per byte will "
            "be too low: leave out what is there twice"
        )


def _train_tokenizer(training: Part, vocab_size: int) -> Tokenizer:
    what = f"training a tokenizer of {vocab_size:,} ids"
    with waiting(what, min(training.size, TOKENIZER_BYTES)) as advance:
        tokenizer = train_tokenizer((piece for piece, _ in training.pieces(advance=advance)), vocab_size)
    if tokenizer.vocab_size < vocab_size:
        note(
            f"the text yields a tokenizer of {tokenizer.vocab_size:,} ids, not {vocab_size:,}: a longer one yields more"
        )
    return tokenizer


def _tokenized(run: Run, source: DataConfig, text: Text, tokenizer: Tokenizer, *, check: bool) -> Data:
    training, held_out = text.split(source.held_out_bytes)
    return Data(
        text,
        training,
        held_out,
        tokenizer,
        write_tokens(training, tokenizer, run.data / "training.npy", check=check),
        write_tokens(held_out, tokenizer, run.data / "held_out.npy", check=check),
    )
