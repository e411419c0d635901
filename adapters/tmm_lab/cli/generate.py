"""`tmm generate`: continue prompts with a model."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tmm_adapters.architecture import get_architecture
from tmm_adapters.files import open_to_read
from tmm_adapters.generation import Sampling
from tmm_adapters.pretrained import read_config
from tmm_adapters.words import counted
from tmm_core.errors import InputError, MissingFileError

from ..progress import hidden, waiting
from ..tables import filled
from .fields import CommandParser, as_text, path
from .model_options import add_model_options, check_backend, model_folder

if TYPE_CHECKING:
    from ..evaluation.measure import Writing

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "generate",
        help="continue a prompt with a model",
        description="Continue a prompt with a model: text goes to stdout as it is generated, speed to stderr.",
    )
    add_model_options(parser)
    parser.stray = "--prompt"
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--prompt", metavar="TEXT", help="the text to continue")
    begin.add_argument(
        "--prompts",
        type=path,
        metavar="FILE",
        help="continue each line of this file, all in one batch, and write the texts one after the other; empty "
        "lines are skipped",
    )
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="most tokens to generate (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help="0 takes the likeliest token (default: 0.8)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.95,
        metavar="X",
        help="sample from the likeliest tokens that make up this probability (default: 0.95)",
    )
    parser.add_argument("--top-k", type=int, metavar="N", help="sample from the N likeliest tokens (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (default: 0)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the prompts and their continuations."""
    _check(arguments)
    prompts = [as_text("--prompt", arguments.prompt)] if arguments.prompts is None else _lines(arguments.prompts)
    check_backend()
    folder = model_folder(arguments.dir)
    from tmm_adapters.tokenizers import require_tokenizer

    config, tokenizer = read_config(folder), require_tokenizer(folder)
    from ..evaluation.measure import continuations, prompt_ids
    from ..training.frameworks import choose, open_model

    for prompt in prompts:
        prompt_ids(prompt, tokenizer, get_architecture(config.model_type).longest_text(config))
    framework = choose(arguments.framework, config.model_type)
    model = open_model(framework, folder, device=arguments.device)
    with _Writer(prompts) as writer:
        writing = continuations(
            model,
            tokenizer,
            prompts,
            arguments.tokens,
            Sampling(arguments.temperature, arguments.top_k, arguments.top_p),
            seed=arguments.seed,
            on_text=writer.write,
        )
        writer.end()
    print(filled(f"{_metrics(writing, model.longest_text)}; {folder}", to=sys.stderr), file=sys.stderr)
    return 0


class _Writer:
    """Writes texts to stdout as they come, each after its prompt; says that one is waited for until then.

    The first two pieces come together: their steps import and compile what the others need, and while a line is
    written, a terminal has no place for what is waited for.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        from ..training.display import printable

        self._prompts = prompts
        self._printable = printable if sys.stdout.isatty() else str
        self._pieces: list[tuple[int, str]] = []
        self._begun = 0
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        self._shown.enter_context(waiting("computing the first tokens"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pieces:
            self._write_pieces()
        if self._begun:
            self._put("\n")  # an error, too, is told on a line of its own
        self._shown.close()

    def write(self, row: int, piece: str) -> None:
        """Write a piece of the text of a row."""
        self._pieces.append((row, piece))
        if self._begun or len(self._pieces) > 1:
            self._write_pieces()

    def end(self) -> None:
        """Write what is left, and the prompts that nothing continues."""
        self._write_pieces()
        self._begin(len(self._prompts))

    def _write_pieces(self) -> None:
        if not self._begun:  # nothing is waited for any more
            self._shown.close()
            self._shown.enter_context(hidden())
        for row, piece in self._pieces:
            self._begin(row + 1)
            self._put(piece)
        self._pieces.clear()

    def _begin(self, count: int) -> None:
        """Write the prompts of the first `count` texts that are not yet there."""
        for number in range(self._begun, count):
            heading = f"== {number + 1} of {len(self._prompts)}\n" if len(self._prompts) > 1 else ""
            self._put(("\n" if number else "") + heading + self._prompts[number])
        self._begun = max(self._begun, count)

    def _put(self, text: str) -> None:
        sys.stdout.write(self._printable(text))
        sys.stdout.flush()


def _lines(file: Path) -> list[str]:
    """Return the lines of a file that hold text."""
    try:
        with TextIOWrapper(open_to_read(file), encoding="utf-8-sig") as opened:
            lines = opened.read().split("\n")  # other separators belong to the text
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {file} of --prompts: check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--prompts {file} is not UTF-8 text ({error}): convert it") from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise InputError(f"--prompts {file} has no line with text: give the model something to begin with")
    return prompts


def _metrics(writing: Writing, longest: float) -> str:
    """Return how fast the model read and wrote, and why texts are shorter than asked for."""
    n_tokens = sum(row.n_tokens for row in writing.written)
    rate = f", after the first {writing.later_tokens / writing.seconds:,.1f} tokens/s" if writing.later_tokens else ""
    parts = [
        f"{counted(writing.prompt_tokens, 'prompt token')} and the first of the text in {writing.prompt_seconds:.2f} s",
        f"{counted(n_tokens, 'token')} written{rate}",
    ]
    ends = [row.ended for row in writing.written]
    of = f"{{}} of {len(ends)} texts" if len(ends) > 1 else "the text"
    if "text" in ends:
        parts.append(f"{of.format(ends.count('text'))} came to an end")
    if "context" in ends:
        parts.append(
            f"{of.format(ends.count('context'))} stopped at {counted(int(longest), 'token')} with the prompt, the most "
            "that the model reads"
        )
    return "; ".join(parts)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.prompt is None and arguments.prompts is None:
        folder: Path | None = arguments.dir
        meant = "" if folder is None or folder.exists() else f"; did you mean --prompt {shlex.quote(str(folder))}?"
        raise InputError(f"there is no text to continue: give --prompt TEXT or --prompts FILE{meant}")
    if arguments.prompt == "":
        raise InputError("--prompt is empty: give the model some text to begin with")
    if arguments.tokens < 1:
        raise InputError(f"--tokens must be at least 1, and is {arguments.tokens}")
    if not arguments.temperature >= 0:
        raise InputError(f"--temperature must be 0 or more, and is {arguments.temperature}")
    if not 0 <= arguments.seed < 1 << 63:
        raise InputError(f"--seed must be 0 or more and below 2**63, and is {arguments.seed}")
    if arguments.top_k is not None and arguments.top_k < 1:
        raise InputError(f"--top-k must be at least 1, and is {arguments.top_k}")
    if not 0 < arguments.top_p <= 1:
        raise InputError(f"--top-p must be above 0 and at most 1, and is {arguments.top_p}")
