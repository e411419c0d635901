"""Options of the command line made from the fields of a configuration: name, type, choices, and docstring as help."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tmm_core.errors import InputError, InputTypeError, did_you_mean
from tmm_core.fields import FieldType, check_field, field_types

__all__ = [
    "CommandParser",
    "add_fields",
    "as_text",
    "fields_told_by_options",
    "given_fields",
    "option_of",
    "path",
    "path_as_given",
]

_METAVARS = {int: "N", float: "X", str: "NAME", tuple: "FILE"}
_METAVARS_BY_NAME = {"prompt": "TEXT", "separator": "TEXT", "tokenizer": "FILE", "report_to": "NAMES"}


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, some of whose options may depend on what others are given.

    Options are written out: what begins one today may begin two tomorrow. An unknown one is told with the usage of the
    command, and with what may be meant.
    """

    stray: str | None = None
    """The option that people forget before its value."""

    prepare: Callable[[Sequence[str]], None] | None = None
    """Called with the arguments before they are parsed, to add options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make a parser that takes no abbreviations."""
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with the options that `prepare` adds."""
        if self.prepare is not None:
            self.prepare(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return found, unknown

    def _meant(self, unknown: str) -> str:
        """Return what may be meant by an argument that is not known."""
        if not unknown.startswith("-") and self.stray is not None:
            return f"; did you mean {self.stray} {shlex.quote(unknown)}?"
        return did_you_mean(unknown.partition("=")[0], self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices, and say which of them may be meant."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, action.choices or ())
            raise


def add_fields(parser: argparse._ActionsContainer, cls: type, *, defaults: Any = None) -> None:
    """Add one option for each field of the dataclass `cls`; an option that is not given leaves no trace.

    A `bool` becomes `--name` and `--no-name`, a `Literal` a choice; underscores become dashes. The help shows the
    fields' defaults, or those of the instance `defaults`.
    """
    types, notes = field_types(cls), field_docstrings(cls)
    for field in dataclasses.fields(cls):
        default = getattr(defaults, field.name, field.default)
        shown = "" if default in (None, ()) else f" (default: {shlex.quote(str(default))})"  # spaces are seen
        parser.add_argument(
            option_of(field.name),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=(notes.get(field.name, "").removesuffix(".") + shown).replace("%", "%%").replace("`", ""),
            **_argument(field.name, types[field.name]),
        )


def given_fields(arguments: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Return the fields of `cls` that the user gave; one that is out of its bounds is refused by its option."""
    given: dict[str, Any] = {}
    for name, field in field_types(cls).items():
        if name in arguments:
            value = getattr(arguments, name)
            given[name] = tuple(value) if isinstance(value, list) else value
            check_field(option_of(name), given[name], field)
    return given


@contextmanager
def fields_told_by_options(cls: type) -> Iterator[None]:
    """Let errors of a configuration that is made in the block name options in place of fields."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        raise type(error)(_told_by_options(str(error), cls)) from error


def _told_by_options(text: str, cls: type) -> str:
    """Return a text with options in place of the fields that have a value there, or an underscore.

    >>> from tmm_core import TMMConfig
    >>> _told_by_options("n_heads=3 does not divide d_model, and mean=True the mean", TMMConfig)
    '--n-heads 3 does not divide --d-model, and --mean the mean'
    """

    def told(match: re.Match[str]) -> str:
        name, value = match.groups()
        if value is None:
            return option_of(name) if "_" in name else name
        return {"True": option_of(name), "False": option_of(f"no_{name}")}.get(value, f"{option_of(name)} {value}")

    names = "|".join(field.name for field in dataclasses.fields(cls))
    return re.sub(rf"\b({names})\b(?:=([\w.+-]*\w))?", told, text)


def option_of(field: str) -> str:
    """Return the option for a field.

    >>> option_of("max_len")
    '--max-len'
    """
    return "--" + field.replace("_", "-")


def path(value: str) -> Path:
    """Return the path that an argument gives.

    Raises
    ------
    ArgumentTypeError
        If there can be nothing under such a name. An empty one, such as an unset variable of the shell, is not the
        current folder.
    """
    if not value:
        raise argparse.ArgumentTypeError("the name is empty: give that of a file or folder, . for the current folder")
    try:
        os.lstat(value)
    except (FileNotFoundError, NotADirectoryError):
        pass  # it may be made
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise argparse.ArgumentTypeError(f"{value} cannot be used ({reason}): give another file or folder") from error
    return Path(value)


def path_as_given(value: str) -> str:
    """Return a path as it is written: - and ./- are two."""
    path(value)
    return value


def as_text(option: str, value: str) -> str:
    """Return an argument as the text that its bytes are in UTF-8, whatever the locale took them for."""
    try:
        return os.fsencode(value).decode()
    except UnicodeError as error:
        raise InputError(f"{option} is not UTF-8 text ({error}): type it anew") from error


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the string literals that follow the fields of `cls` and of its bases, read from their sources."""
    found = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, note in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
            match field, note:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def _argument(name: str, field: FieldType) -> dict[str, Any]:
    """Return what argparse needs to read a value of the field."""
    kind = field.types[0]
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if field.choices:
        return {"choices": field.choices, "type": kind}
    metavar = _METAVARS_BY_NAME.get(name, _METAVARS[kind])
    read = path_as_given if metavar == "FILE" else kind
    if kind is tuple:  # --text a b and --text a --text b are the same
        return {"type": read, "nargs": "+", "action": "extend", "metavar": metavar}
    return {"type": read, "metavar": metavar}
