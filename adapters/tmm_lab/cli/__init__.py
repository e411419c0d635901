"""The command line `tmm`: one file a command; what it needs is imported when it runs, so `tmm --help` is quick."""

from __future__ import annotations

import argparse
import codecs
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.metadata import version

from tmm_core.errors import MissingFileError

from ..progress import note, shown
from ..slow_imports import slow_imports_shown
from ..training.environment import rank
from .errors import report_error
from .fields import CommandParser

__all__ = ["main"]

COMMANDS = ("train", "compare", "study", "runs", "generate", "eval", "convert", "index", "backends", "agree", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tmm` with the arguments `argv`, those of the process unless given, and return its exit code.

    0: done; 1: the machine failed (a full disk, a bug); 2: bad input; 130 and 143: stopped by Ctrl-C and by SIGTERM.
    """
    # Torch's and Numba's thread pools fight over the cores unless idle threads sleep; read when the libraries load.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _prepare_streams()
    debug = False
    try:
        arguments = build_parser().parse_args(argv)
        debug = arguments.debug
        _require_current_folder()
        with _told() if rank() == 0 else nullcontext():  # of torchrun's processes one speaks
            code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("\ntmm: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has gone; without this Python complains once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            raise
        return report_error(error, sys.argv[1:] if argv is None else argv)


def _require_current_folder() -> None:
    """Refuse a current folder that somebody has removed: nothing can be made in it, and libraries end the process."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise MissingFileError("the current folder is not there any more: change to another (cd)") from error


def _prepare_streams() -> None:
    """Let nothing that is written fail for its encoding, or for a stream that the shell has closed."""
    codecs.register_error("tmm", _as_it_can_be)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (open until the end)
        elif isinstance(stream, io.TextIOWrapper):  # a model may write what the terminal's encoding lacks
            stream.reconfigure(errors="tmm")


def _as_it_can_be(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write bytes of names that are no text as they are, so that a name can be used again, and escape the rest."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(error)


@contextmanager
def _told() -> Iterator[None]:
    """Tell the user what the block waits for, what it warns of, and what `tmm_core` logs, such as that it compiles."""
    log, handler, showwarning = logging.getLogger("tmm_core"), _Notes(), warnings.showwarning
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # libraries of JAX give the root logger a handler, which would write all of it again
    warnings.showwarning = lambda message, *where, **more: note(f"warning: {message}")
    try:
        with shown(), slow_imports_shown():
            yield
    finally:
        warnings.showwarning = showwarning
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


class _Notes(logging.Handler):
    """Makes notes of messages."""

    def emit(self, record: logging.LogRecord) -> None:
        """Make one."""
        note(self.format(record))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each adds its own by `add_parser` and sets `run`.

    They are imported here, so that `main` answers Ctrl-C meanwhile.
    """
    debug = "show the traceback of an error"
    parser = CommandParser(
        prog="tmm", description="Toeplitz MLP Mixer: train language models, sample from them, measure and convert them."
    )
    parser.add_argument("--debug", action="store_true", help=debug)
    parser.add_argument("--version", action="version", version=f"tmm-core {version('tmm-core')}")
    parser.set_defaults(run=lambda arguments: _help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    for command in COMMANDS:
        import_module(f".{command}", __name__).add_parser(commands)
    for sub in commands.choices.values():
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug)
    return parser


def _help(parser: argparse.ArgumentParser) -> int:
    """Print the help: `tmm` alone is no mistake, it is how people find out what there is."""
    parser.print_help()
    return 0
