"""The errors that this project raises on purpose.

Each is also the built-in kind that a caller would expect, so `except ValueError` works; the common base tells a refusal
of bad input, whose message says what to do, from a bug.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ExistingFileError",
    "InputError",
    "InputTypeError",
    "MissingFileError",
    "NotAFileError",
    "NotAllowedError",
    "NotFoundError",
    "TMMError",
    "UnsupportedError",
    "did_you_mean",
]


class TMMError(Exception):
    """An error that is raised on purpose; its message names the argument, what was expected and the remedy."""


class InputError(TMMError, ValueError):
    """An argument has a value or a shape that cannot be used."""


class InputTypeError(TMMError, TypeError):
    """An argument has a type or a dtype that cannot be used."""


class NotFoundError(TMMError, LookupError):
    """A name is not known, or what it stands for is not installed."""


class UnsupportedError(TMMError, NotImplementedError):
    """What was asked for is not possible here, with these libraries or on this device."""


class MissingFileError(TMMError, FileNotFoundError):
    """There is no file or folder at a path that was given."""


class ExistingFileError(TMMError, FileExistsError):
    """There is something already where a file or folder is to be made."""


class NotAFileError(TMMError, IsADirectoryError):
    """A path that was given is a folder, and a file was expected."""


class NotAllowedError(TMMError, PermissionError):
    """A file or folder is there, and must not be read or written by this user."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return the end of an error about an unknown name: which of the known ones it resembles, if any.

    >>> did_you_mean("Nubma", ["numpy", "numba"])
    '; did you mean numba?'
    >>> did_you_mean("abacus", ["numpy", "numba"])
    ''
    """
    from difflib import get_close_matches  # not before there is an error

    names = {str(one).lower(): str(one) for one in known}
    similar = get_close_matches(str(name).lower(), names, n=1, cutoff=0.7)
    return f"; did you mean {names[similar[0]]}?" if similar else ""
