"""One call of a public operation, as data and as the code that it stands for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

import tmm_core

from ..._arrays.exchange import Array
from ..libraries import LIBRARIES, get_library
from ..oracles import Numbers
from ..streams import stream

__all__ = ["OPERATIONS", "Case"]

OPERATIONS: dict[str, tuple[str, ...]] = {
    "causal_toeplitz_matmul": ("w", "x"),
    "causal_toeplitz_correlate": ("x", "g"),
    "toeplitz_matmul": ("column", "row", "x"),
    "causal_toeplitz_solve": ("w", "y"),
    "mix_tokens": ("w", "x", "bias"),
    "stream": ("w", "x"),
}
"""The operations, with the names of the arrays that they take by position."""


@dataclass(frozen=True)
class Case:
    """One call: what is called, by which engine, on which arrays."""

    operation: str
    """One of `OPERATIONS`."""
    library: str
    """The library of the arrays, one of `tmm_core.testing.LIBRARIES`."""
    arrays: Mapping[str, Numbers]
    """The values by the names of the arguments."""
    dtypes: Mapping[str, str]
    """Their dtypes."""
    made: Mapping[str, str] = field(default_factory=dict)
    """By name, an expression of `a` that gives the same values in another place, order or form."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The other arguments."""
    constants: tuple[str, ...] = ()
    """Arrays that a compiled function does not take as arguments."""
    setting: str = ""
    """An expression of a context in which the call is made."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arrays that the function takes as arguments."""
        return tuple(name for name in self.arrays if name not in self.constants)

    def run(self) -> Numbers:
        """Return the result of the call, in NumPy."""
        library, names = get_library(self.library), _names(self.library)
        arrays: dict[str, Array] = {}
        for name, values in self.arrays.items():
            dtype = self.dtypes[name]
            array = library.asarray(values.astype("float32" if dtype == "bfloat16" else dtype), dtype)
            arrays[name] = eval(f"lambda a: {self.made.get(name, 'a')}", names)(array)
        with eval(self.setting or "nullcontext()", names):
            if self.operation == "stream":
                result: Numbers = _function(self._definition(), self.library)(**arrays)
                return result
            if self.constants:
                function = _defined(self._definition(), self.library)
                constants = {name: arrays.pop(name) for name in self.constants}
                called = library.transform(
                    lambda *given: function(**constants, **dict(zip(arrays, given, strict=True)))
                )
            else:
                called = _function(self._definition(), self.library)
            return library.to_numpy(called(*arrays.values()))

    def _definition(self) -> str:
        """Return the source of the function that is called with the arrays."""
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        if self.operation == "stream":
            chunks, capacity = self.options["chunks"], self.options["capacity"]
            options = [option for option in options if not option.startswith(("chunks", "capacity"))]
            options += ["bias=bias"] if "bias" in self.arrays else []
            return (
                f"def call({', '.join(self.arrays)}):\n"
                f"    plan = tmm_core.stream_plan({', '.join(['w', str(capacity), *options])})\n"
                "    state = tmm_core.stream_init(plan, tuple(x.shape[:-2]), x.shape[-1], dtype=x.dtype)\n"
                f"    return stream(library, plan, state, x, {chunks})[0]\n"
            )
        given = [name if name in self.arrays else "None" for name in OPERATIONS[self.operation]]
        given += ["segment_ids=segment_ids"] if "segment_ids" in self.arrays else []
        return (
            f"def call({', '.join((*self.constants, *self.arguments))}):\n"
            f"    return tmm_core.{self.operation}({', '.join([*given, *options])})\n"
        )

    def code(self) -> str:
        """Return the case as a program."""
        lines = ["import functools", "from contextlib import nullcontext", "", "import numpy as np"]
        module = LIBRARIES[self.library].split(".")[0]
        lines += [f"import {module}"] if module != "numpy" else []
        lines += ["import tmm_core", "from numpy import inf, nan", "from tmm_core.testing import get_library"]
        lines += ["from tmm_core.testing.streams import stream"] if self.operation == "stream" else []
        lines += ["", f"library = get_library({self.library!r})"]
        for name, values in self.arrays.items():
            numbers = f"np.reshape({values.ravel().tolist()}, {values.shape})"
            lines.append(
                f"{name} = library.asarray({numbers}.astype({self._numpy_dtype(name)!r}), {self.dtypes[name]!r})"
            )
            if name in self.made:
                lines.append(f"{name} = (lambda a: {self.made[name]})({name})")
        lines += ["", self._definition()]
        called, given = "call", ", ".join(self.arguments)
        if self.constants:
            called = f"functools.partial(call, {', '.join(self.constants)})"
        called = f"call({given})" if self.operation == "stream" else f"library.transform({called})({given})"
        lines += [f"with {self.setting or 'nullcontext()'}:", f"    result = {called}"]
        lines += ["print(result)" if self.operation == "stream" else "print(library.to_numpy(result))"]
        return "\n".join(lines)

    def _numpy_dtype(self, name: str) -> str:
        return "float32" if self.dtypes[name] == "bfloat16" else self.dtypes[name]


@functools.cache
def _names(library: str) -> dict[str, Any]:
    """Return what expressions and sources of cases know."""
    module = LIBRARIES[library].split(".")[0]
    return {
        "np": np,
        "tmm_core": tmm_core,
        "stream": stream,
        "nullcontext": nullcontext,
        "library": get_library(library),
        module: import_module(module),
    }


def _defined(source: str, library: str) -> Callable[..., Any]:
    names = dict(_names(library))
    exec(source, names)
    function: Callable[..., Any] = names["call"]
    return function


@functools.cache
def _function(source: str, library: str) -> Callable[..., Any]:
    """Return the function of a source, compiled once."""
    function = _defined(source, library)
    return function if "stream(" in source else get_library(library).transform(function)
