"""Options of the command line made from the fields of a dataclass: name, type, choices, and docstring as help."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import os
import textwrap
from collections.abc import Collection
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tmm_core.errors import InputError

__all__ = ["add_fields", "as_text", "given_fields"]

# What text an option takes, where it is no name.
_METAVARS = {"prompt": "TEXT", "tokenizer": "FILE", "report_to": "NAMES"}


def add_fields(parser: argparse._ActionsContainer, cls: type, *, skip: Collection[str] = (), shown: Any = None) -> None:
    """Add one option for each field of the dataclass `cls`; an option that is not given leaves no trace.

    A `bool` becomes `--name` and `--no-name`, a `Literal` a choice; underscores become dashes. The help shows the
    values of the instance `shown` as defaults, where the fields' own are not those that apply.
    """
    hints, notes = get_type_hints(cls), field_docstrings(cls)
    for field in dataclasses.fields(cls):
        if field.name in skip:
            continue
        value = field.default if shown is None else getattr(shown, field.name)
        default = "" if value is None else f" (default: {value})"
        help_text = (notes.get(field.name, "") + default).replace("%", "%%").replace("`", "")
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=help_text,
            **_argument(field.name, hints[field.name]),
        )


def given_fields(arguments: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Return the fields of `cls` that the user gave."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in vars(arguments).items() if name in names}


def as_text(option: str, value: str) -> str:
    """Return an argument as the text that its bytes are in UTF-8, whatever the locale took them for."""
    try:
        return os.fsencode(value).decode()
    except UnicodeError as error:
        raise InputError(f"{option} is not UTF-8 text ({error}): type it anew") from error


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the string literals that follow the fields of `cls`, read from its source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    found: dict[str, str] = {}
    name = None
    for node in getattr(body, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name is not None:
            found[name] = " ".join(str(node.value.value).split())
            name = None
        else:
            name = None
    return found


def _argument(name: str, hint: Any) -> dict[str, Any]:
    """Return what argparse needs to read a value of the type `hint`."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return {"choices": choices, "type": type(choices[0])}
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    metavar = {int: "N", float: "X", str: _METAVARS.get(name, "NAME")}[kinds[0]]
    return {"type": kinds[0], "metavar": metavar}
