"""Random cases: what is drawn, and how often."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

import tmm_core

from ..._dispatch.choice import choose_streamer
from ...backend import Request
from ...errors import InputError
from ..libraries import get_library
from ..oracles import Numbers, computed_dtype
from .cases import OPERATIONS, Case
from .definition import promoted
from .values import drawn_values, make_solvable
from .ways import SETTINGS, ways

__all__ = ["draw"]

T = TypeVar("T")

_LIBRARIES = {
    "numpy": 12,
    "numpy-read-only": 2,
    "numpy-bfloat16": 4,
    "array_api_strict": 4,
    "torch": 12,
    "dask": 2,
    "jax": 2,
    "jax-jit": 2,
}
"""How often each library is drawn."""

POOL = 24
"""Different structures of cases that XLA compiles: it does so anew for each shape, for a second or more."""


def draw(seed: int, number: int, libraries: Sequence[str] | None = None) -> Case:
    """Return a case, the same for a seed and a number.

    Parameters
    ----------
    seed, number : int
        What random numbers begin with.
    libraries : sequence of str, optional
        Names of `tmm_core.testing.LIBRARIES` to draw from; those that are installed unless given.
    """
    rng = np.random.default_rng([seed, number])
    names = [name for name in _LIBRARIES if name in (libraries or _installed())]
    weights = np.asarray([_LIBRARIES[name] for name in names], float)
    library = str(rng.choice(names, p=weights / weights.sum()))
    backend = _pick(rng, (None, *_backends()))
    if backend == "jax" and not library.startswith("jax") and rng.random() < 0.8:
        backend = None
    compiled = library.startswith("jax") or backend == "jax"
    structure = np.random.default_rng([seed, int(rng.integers(POOL)), 1]) if compiled else rng
    return _Draw(structure, rng, library, backend, compiled).case()


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


@functools.cache
def _installed() -> tuple[str, ...]:
    def usable(name: str) -> bool:
        try:
            get_library(name)
        except LookupError:
            return False
        return True

    return tuple(name for name in _LIBRARIES if usable(name))


@functools.cache
def _backends() -> tuple[str, ...]:
    """Return the installed backends that compute on the CPU."""
    names = tmm_core.available_backends()
    return tuple(n for n in names if {"cpu", "any"} & set(tmm_core.get_backend(n).engine.devices))


@dataclass
class _Draw:
    """One case in the making: `structure` draws what programs are compiled for, `rng` the rest."""

    structure: np.random.Generator
    rng: np.random.Generator
    library: str
    backend: str | None
    compiled: bool

    def case(self) -> Case:
        operation = _pick(self.structure, (*OPERATIONS, *list(OPERATIONS)[:2]))  # products most often
        if operation == "stream":  # whose steps are called from outside of programs
            self.library = self.library.removesuffix("-jit")
        shapes, options = getattr(self, f"_{operation}")()
        names = list(shapes)
        dtypes = self._dtypes(operation, names)
        packed = operation in _PACKED and self.structure.random() < 0.3
        options |= self._options(operation, dtypes, packed, shapes["x" if "x" in shapes else "y"])
        arrays = {name: drawn_values(self.rng, shapes[name], dtypes[name], finite=name == "bias") for name in names}
        if operation == "causal_toeplitz_solve":
            make_solvable(arrays["w"], dtypes["w"])
        if options.get("softplus") or operation == "mix_tokens":
            arrays["w"] = np.clip(arrays["w"], -30, 30)
        if packed:
            arrays["segment_ids"], dtypes["segment_ids"] = self._ids(shapes["x"]), "int32"
        made = self._made(operation, arrays, dtypes)
        setting = self._setting(arrays, set(dtypes.values()))
        constants: tuple[str, ...] = ()
        if self.library == "jax-jit" and operation != "stream" and self.rng.random() < 0.06:
            constants = tuple(name for name in arrays if self.rng.random() < 0.5)
        return Case(operation, self.library, arrays, dtypes, made, options, constants, setting)

    # Shapes --------------------------------------------------------------------------------------------------------

    def _size(self) -> int:
        """Return a number of times: mostly few, at both sides of where algorithms change."""
        rng = self.structure
        if self.compiled:
            return _pick(rng, (0, 1, 7, 16, 131))
        if rng.random() < 0.04:
            return 0
        if rng.random() < 0.8:
            return int(rng.integers(1, 40))
        return _pick(rng, (64, 100, 127, 128, 129, 131, 200, 257, 300))

    def _channels(self) -> tuple[int, int]:
        """Return heads and channels."""
        heads = _pick(self.structure, (1, 1, 2, 3, 4))
        return heads, heads * _pick(self.structure, (1, 1, 2, 3, 5, 0) if self.structure.random() < 0.2 else (1, 2, 4))

    def _lags(self, n: int) -> int:
        return _pick(self.structure, (n, n, n, 1, 2, n // 2, n + 3, int(self.structure.integers(0, n + 2))))

    def _batch(self) -> tuple[int, ...]:
        return _pick(self.structure, ((), (), (1,), (2,), (3,), (2, 2), (0,)))

    def _filter_and_signal(self, kernels: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, (heads, d) = self._size(), self._channels()
        k = self._lags(n)
        kind = self.structure.random()
        if kind < 0.1:
            return (k,), (n,)
        if kind < 0.2:
            return (k,), (*self._batch(), n, d)
        if kind < 0.5 and kernels:
            return (heads, int(self.structure.integers(1, 4)), k), (*self._batch(), n, d)
        return (heads, k), (*self._batch(), n, d)

    def _causal_toeplitz_matmul(self) -> Any:
        w, x = self._filter_and_signal(kernels=True)
        return {"w": w, "x": x}, {"adjoint": True} if self.structure.random() < 0.4 else {}

    def _causal_toeplitz_correlate(self) -> Any:
        w, x = self._filter_and_signal(kernels=True)
        sizes = {"lags": w[-1], "heads": w[0] if len(w) > 1 else 1, "kernel_size": w[1] if len(w) > 2 else 1}
        return {"x": x, "g": x}, sizes

    def _toeplitz_matmul(self) -> Any:
        (heads, d), p, q = self._channels(), self._size(), self._size()
        hermitian = self.structure.random() < 0.2
        q = p if hermitian else q
        vector = self.structure.random() < 0.2
        rows = () if vector else (heads,)
        shapes = {"column": (*rows, p), "row": (*rows, q), "x": (q,) if vector else (*self._batch(), q, d)}
        if hermitian:
            del shapes["row"]
        return shapes, {}

    def _causal_toeplitz_solve(self) -> Any:
        w, y = self._filter_and_signal(kernels=False)
        return {"w": (*w[:-1], max(w[-1], 1)), "y": y}, {}

    def _mix_tokens(self) -> Any:
        w, x = self._filter_and_signal(kernels=True)
        shapes, options = {"w": w, "x": x}, {}
        time = x[0] if len(x) == 1 else x[-2]
        if self.structure.random() < 0.5:
            shapes["bias"] = (*w[:-1][:1], time + 2)
        if self.structure.random() < 0.5:
            options["softplus"] = True
            if len(w) < 3 and w[-1] > 0 and self.structure.random() < 0.5:
                options["mean"] = True
        return shapes, options

    def _stream(self) -> Any:
        shapes, options = self._mix_tokens()
        d = self._channels()[1] or 1
        # Each output of Dask is computed from the first token on.
        n = int(self.structure.integers(1, 8 if self.library == "dask" else 20 if self.compiled else 40))
        heads = shapes["w"][0] if len(shapes["w"]) > 1 else 1
        shapes["w"] = (*shapes["w"][:-1], max(1, min(shapes["w"][-1], 60)))
        shapes["x"] = (*self._batch(), n, heads * d)
        if "bias" in shapes:
            shapes["bias"] = (*shapes["bias"][:-1], n + 2)
        chunks, left = [], n
        while left:
            chunk = min(left, _pick(self.structure, (0, 0, 0, 1, 5, 12)))
            chunks.append(chunk)
            left -= max(chunk, 1)
        options |= {"capacity": n + _pick(self.structure, (0, 0, 1, 9)), "chunks": chunks}
        if self.structure.random() < 0.3:
            options["leaf"] = _pick(self.structure, (1, 4, 16))
        return shapes, options

    # Options -------------------------------------------------------------------------------------------------------

    def _dtypes(self, operation: str, names: list[str]) -> dict[str, str]:
        rng, served = self.structure, get_library(self.library).dtypes
        one = _pick(rng, ("float32", "float32", "float32", "float32", "float64", *served))
        dtypes = dict.fromkeys(names, one)
        if rng.random() < 0.25 and operation != "stream":
            dtypes = {name: _pick(rng, served) for name in names}
        if operation in ("mix_tokens", "stream"):  # complex lags need complex tokens, and have no softplus
            dtypes = {name: {"complex64": "float32", "complex128": "float64"}.get(t, t) for name, t in dtypes.items()}
        return dtypes

    def _options(self, operation: str, dtypes: dict[str, str], packed: bool, shape: tuple[int, ...]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if operation in ("causal_toeplitz_matmul", "causal_toeplitz_correlate", "mix_tokens"):
            options |= {"method": "direct"} if self.structure.random() < 0.2 else {}
        if self.backend is not None and self._serves(operation, promoted(*dtypes.values()), packed, shape):
            options["backend"] = self.backend
        return options

    def _serves(self, operation: str, dtype: str, packed: bool, shape: tuple[int, ...]) -> bool:
        """Return whether the backend says that it can do this."""
        if operation == "stream":
            library = self.library.split("-")[0]
            try:
                choose_streamer(self.backend or "auto", library, Request(computed_dtype(dtype), "cpu"))
            except InputError:
                return False
            return True
        request = Request(dtype, "cpu", packed, shape)
        return tmm_core.get_backend(str(self.backend)).engine.unsupported(request) is None

    def _ids(self, x: tuple[int, ...]) -> Numbers:
        shape = x[:-1] if len(x) > 1 else x
        if self.structure.random() < 0.4:
            shape = shape[-1:]
        changes = self.rng.random(shape) < self.rng.choice([0.05, 0.3, 1])
        return np.cumsum(changes, axis=-1) + int(self.rng.integers(-2, 3))

    def _made(self, operation: str, arrays: dict[str, Numbers], dtypes: dict[str, str]) -> dict[str, str]:
        """Return how some of the arrays are held."""
        # Streams have no gradients, and their filters are of the tokens' library; gradients take no inference tensors.
        # JAX computes on arrays of one set of devices.
        left_out = _pick(self.structure, ("Parameter|NamedSharding", "inference|devices"))
        left_out += "|Parameter|compute" if operation == "stream" else ""
        made = {}
        for name, values in arrays.items():
            # One of several arrays may be NumPy's beside Dask's, the result's own may not.
            own = "|compute" if name in ("x", "y") else ""
            all_ways = ways(self.library.split("-")[0], values, dtypes[name])
            fitting = [way for way in all_ways if not re.search(left_out + own, way)]
            if fitting and self.structure.random() < 0.35:
                made[name] = _pick(self.structure, fitting)
        return made

    def _setting(self, arrays: dict[str, Numbers], dtypes: set[str]) -> str:
        library, finite = self.library.split("-")[0], all(np.isfinite(a).all() for a in arrays.values())
        if library not in SETTINGS or self.rng.random() > (0.05 if self.compiled else 0.15):
            return ""
        setting = _pick(self.rng, SETTINGS[library])
        large = any(np.max(np.abs(a), initial=0) > 1e15 for a in arrays.values())
        strict = "debug_nans" in setting or "errstate" in setting
        return "" if strict and (large or not finite or "float16" in dtypes) else setting


_PACKED = ("causal_toeplitz_matmul", "causal_toeplitz_correlate", "mix_tokens")
