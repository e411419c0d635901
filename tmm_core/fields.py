"""Configurations as frozen dataclasses whose fields say what they may hold.

A field's type is checked, and so are its bounds, which `Annotated` adds to the type:

    batch: Annotated[int, Bounds(at_least=1)] = 4

The string below a field says what it is, for readers of the source and for the help of the command line alike.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from .errors import InputError, InputTypeError, NotFoundError, did_you_mean

__all__ = ["Bounds", "Configuration", "Count", "FieldType", "Size", "check_field", "field_types"]

_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "texts",
    NoneType: "None",
}
_COMPARISONS = {"at_least": operator.ge, "above": operator.gt, "below": operator.lt}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a field may hold.

    >>> str(Bounds(at_least=0, below=1))
    'at least 0 and below 1'
    >>> 1 in Bounds(at_least=0, below=1)
    False
    """

    at_least: float | None = None
    above: float | None = None
    below: float | None = None

    def _given(self) -> Iterator[tuple[str, float]]:
        return ((name, bound) for name in _COMPARISONS if (bound := getattr(self, name)) is not None)

    def __contains__(self, value: float) -> bool:
        """Return whether `value` is within the bounds."""
        return all(_COMPARISONS[name](value, bound) for name, bound in self._given())

    def __str__(self) -> str:
        """Return the bounds in words."""
        return " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in self._given())


Count = Annotated[int, Bounds(at_least=1)]
Size = Annotated[int, Bounds(at_least=0)]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Base of frozen dataclasses that are checked when made and written as JSON.

    Fields are `int`, `float`, `str`, `bool`, a `Literal`, one of these or None, or a `tuple` of texts. A `float` takes
    whole numbers as well, and must be finite.

    Raises
    ------
    TypeError
        If a field is no plain value of its type.
    ValueError
        If it is out of its bounds; the message names the field.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    """Fields of whole configurations by name, `default` among them."""

    def __post_init__(self) -> None:
        """Check every field; a subclass that relates its fields to each other extends this."""
        for name, field in field_types(type(self)).items():
            check_field(name, getattr(self, name), field)

    @classmethod
    def preset(cls, name: str = "default", **changes: Any) -> Self:
        """Return the configuration called `name` in `presets`, with `changes` to single fields.

        Raises
        ------
        LookupError
            If there is no such preset.
        TypeError, ValueError
            If a changed field does not exist or cannot be.

        Examples
        --------
        >>> from tmm_core import TMMConfig
        >>> TMMConfig.preset("paper", n_layers=2).d_model
        1024
        """
        if name not in cls.presets:
            raise NotFoundError(
                f"{cls.__name__} has no preset {name!r}: choose one of {', '.join(cls.presets)}"
                f"{did_you_mean(name, cls.presets)}"
            )
        return cls.from_dict({**cls.presets[name], **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_dict` wrote; missing fields have their defaults.

        Raises
        ------
        TypeError, ValueError
            If a field is unknown, which is never dropped, or cannot be.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(map(str, set(values) - set(known)))
        if unknown:
            raise InputError(
                f"unknown fields {unknown} of {cls.__name__}: the known ones are {', '.join(known)}"
                f"{did_you_mean(unknown[0], known)}; were they written by a newer version? update tmm-core"
            )
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return every field as plain data, fit for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class FieldType:
    """What a field may hold."""

    types: tuple[type, ...]
    choices: tuple[Any, ...] = ()
    """Of a `Literal`."""
    bounds: tuple[Bounds, ...] = ()


def field_types(cls: type) -> dict[str, FieldType]:
    """Return what each field of a dataclass may hold."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: _field_type(hints[field.name]) for field in dataclasses.fields(cls)}


def _field_type(hint: Any) -> FieldType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return FieldType((type(arguments[0]),), choices=arguments)
    if origin is Annotated:
        inner = _field_type(arguments[0])
        return FieldType(inner.types, inner.choices, (*inner.bounds, *arguments[1:]))
    if origin in (Union, UnionType):
        parts = list(map(_field_type, arguments))
        return FieldType(*(sum((getattr(part, name) for part in parts), ()) for name in ("types", "choices", "bounds")))
    return FieldType((origin or hint,))


def check_field(name: str, value: Any, field: FieldType) -> None:
    """Refuse what is not plain data of the field's type: a configuration is compared, hashed and written as JSON.

    Parameters
    ----------
    name : str
        What errors call the field.
    value : object
        What it is to hold.
    field : FieldType
        What it may hold.

    Raises
    ------
    TypeError
        If the value is of another type.
    ValueError
        If it is out of the bounds, or none of the choices.
    """
    if value is None and NoneType in field.types:
        return
    if field.choices:
        if (type(value), value) not in [(type(choice), choice) for choice in field.choices]:
            raise InputError(
                f"{name} must be one of {', '.join(map(str, field.choices))}, and is {value!r}"
                f"{did_you_mean(value, field.choices)}"
            )
        return
    types = (*field.types, *([int] if float in field.types else []))
    if type(value) not in types or (type(value) is tuple and not all(type(item) is str for item in value)):
        expected = " or ".join(_WORDS[kind] for kind in field.types)
        raise InputTypeError(f"{name} must be {expected}, and is {value!r}")
    if type(value) is float and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, and is {value}")
    for bounds in field.bounds:
        if value not in bounds:
            raise InputError(f"{name} must be {bounds}, and is {value}")
