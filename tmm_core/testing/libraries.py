"""Array libraries, and ways of using them, as the laws see them.

`LIBRARIES` names them, `get_library` imports one and describes it, `installed_libraries` makes all that can be used
here. A library of your own is a `Library` as well::

    from tmm_core.testing import LAWS, Library
    mine = Library("mine", asarray=lambda values, dtype: ..., to_numpy=lambda array: ...)
    for law in LAWS:
        law(mine, "array_api")
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from .._arrays.exchange import Array
from ..errors import InputError, NotFoundError, did_you_mean
from .oracles import Numbers

__all__ = ["GPU_LIBRARIES", "LIBRARIES", "Library", "get_library", "installed_libraries"]

HALVES = ("float16", "bfloat16")
WHOLE = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Library:
    """An array library, or one way of using it: how arrays are made, read, compiled and differentiated."""

    name: str
    asarray: Callable[[Numbers, str], Array]
    """Return NumPy numbers as an array of the dtype with this name."""
    to_numpy: Callable[[Array], Numbers]
    """Return an array's values; those of bfloat16 as float32."""
    dtypes: tuple[str, ...] = WHOLE
    """The dtypes that the laws are checked in."""
    transform: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    """What compiles a function of arrays, where the library is used so."""
    traced: bool = False
    """Whether functions cannot look at values, so that bad values give NaN in place of an error."""
    vjp: Callable[[Callable[..., Array], tuple[Array, ...], Array], tuple[Array, ...]] | None = None
    """Return the cotangents of `function(*inputs)` for its inputs; differentiable itself up to `orders`."""
    orders: int = 0
    """Up to which order the library differentiates."""
    packed_length: int = 131
    """Length of the laws on documents; less for a library that compiles for seconds for every block size."""

    def __post_init__(self) -> None:
        """Refuse a library on which laws would check nothing."""
        if "float32" not in self.dtypes:
            raise InputError(f"dtypes must hold float32, which the laws are checked in, and are {self.dtypes}")

    def restricted(self, *dtypes: str) -> Library:
        """Return the library with those of its dtypes that are among `dtypes`, for a backend that serves no others."""
        return replace(self, dtypes=tuple(dtype for dtype in self.dtypes if dtype in dtypes))


def get_library(name: str) -> Library:
    """Import an array library and describe how it is used.

    Each is made once a process, so that what it compiles is shared. JAX is set to 64 bits for the whole process: laws
    are checked in float64, too.

    Parameters
    ----------
    name : str
        A key of `LIBRARIES` or of `GPU_LIBRARIES`.

    Raises
    ------
    LookupError
        If the name is unknown, or the library cannot be imported or finds no GPU; the message says which.
    """
    if name not in _CPU | _GPU:
        known = _CPU | _GPU
        raise NotFoundError(
            f"unknown array library {name!r}: choose one of {', '.join(known)}{did_you_mean(name, known)}"
        )
    try:
        return _made(name)
    except (ImportError, NotFoundError) as error:
        raise NotFoundError(f"array library {name!r} cannot be used here: {error}") from error


def installed_libraries() -> Iterator[Library]:
    """Yield every library that can be used here, those on a GPU as well."""
    for name in _CPU | _GPU:
        with suppress(NotFoundError):
            yield get_library(name)


@functools.cache
def _made(name: str) -> Library:
    module, make = (_CPU | _GPU)[name]
    return make(import_module(module))


def _values(array: Any) -> Numbers:
    """Return a NumPy array, or what NumPy reads, with bfloat16 widened to a dtype of NumPy's own."""
    values = np.asarray(array)
    return values.astype(np.float32) if values.dtype.name == "bfloat16" else values


def _numpy(_: Any) -> Library:
    return Library("numpy", lambda values, dtype: values.astype(dtype, copy=False), np.asarray, ("float16", *WHOLE))


def _read_only(_: Any) -> Library:
    def asarray(values: Numbers, dtype: str) -> Array:
        array = np.array(values, dtype=dtype)
        array.flags.writeable = False
        return array

    return Library("numpy-read-only", asarray, np.asarray)


def _bfloat16(_: Any) -> Library:
    """Describe NumPy with the dtypes of ml_dtypes, which NumPy knows by name once that is imported."""
    return Library("numpy-bfloat16", lambda values, dtype: np.asarray(values).astype(dtype), _values, (*HALVES, *WHOLE))


def _strict(strict: Any) -> Library:
    def asarray(values: Numbers, dtype: str) -> Array:
        return strict.asarray(np.ascontiguousarray(values), dtype=getattr(strict, dtype))

    return Library("array_api_strict", asarray, np.asarray)


def _torch(torch: Any) -> Library:
    def asarray(values: Numbers, dtype: str) -> Array:
        return torch.asarray(np.array(values)).to(getattr(torch, dtype))

    def to_numpy(tensor: Any) -> Numbers:
        tensor = tensor.detach().cpu()
        return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())

    def vjp(function: Callable[..., Array], inputs: tuple[Array, ...], cotangent: Array) -> tuple[Array, ...]:
        cotangents: tuple[Array, ...] = torch.func.vjp(function, *inputs)[1](cotangent)
        return cotangents

    return Library("torch", asarray, to_numpy, (*HALVES, *WHOLE), vjp=vjp, orders=2)


def _torch_compiled(torch: Any) -> Library:
    def transform(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
        return compiled

    def vjp(function: Callable[..., Array], inputs: tuple[Any, ...], cotangent: Array) -> tuple[Array, ...]:
        inputs = tuple(tensor.clone().requires_grad_() for tensor in inputs)
        cotangents: tuple[Array, ...] = torch.autograd.grad(function(*inputs), inputs, cotangent)
        return cotangents

    torch._dynamo.config.recompile_limit = 256  # the laws call one function with every dtype and number of axes
    torch._dynamo.config.accumulated_recompile_limit = 4096
    return replace(_torch(torch), name="torch-compiled", transform=transform, traced=True, vjp=vjp, orders=1)


def _torch_cuda(torch: Any) -> Library:
    if not torch.cuda.is_available():
        raise NotFoundError("PyTorch finds no GPU here")
    library = _torch(torch)

    def asarray(values: Numbers, dtype: str) -> Array:
        return library.asarray(values, dtype).cuda()

    return replace(library, name="torch-cuda", asarray=asarray, traced=True)


def _jax(jax: Any) -> Library:
    jax.config.update("jax_enable_x64", True)

    def vjp(function: Callable[..., Array], inputs: tuple[Array, ...], cotangent: Array) -> tuple[Array, ...]:
        cotangents: tuple[Array, ...] = jax.vjp(function, *inputs)[1](cotangent)
        return cotangents

    def asarray(values: Numbers, dtype: str) -> Array:
        return jax.numpy.asarray(values, dtype=dtype)

    # Second derivatives are those of the same functions as under jit, and take eager JAX half a minute to compile.
    return Library("jax", asarray, _values, (*HALVES, *WHOLE), vjp=vjp, orders=1, packed_length=16)


def _jax_cuda(jax: Any) -> Library:
    if jax.default_backend() != "gpu":
        raise NotFoundError("JAX finds no GPU here")
    return replace(_jax(jax), name="jax-cuda")


def _jitted(jax: Any, library: Library) -> Library:
    name = library.name.replace("jax", "jax-jit")
    return replace(library, name=name, transform=jax.jit, traced=True, orders=2)


def _dask(dask: Any) -> Library:
    def asarray(values: Numbers, dtype: str) -> Array:
        return dask.from_array(np.array(values).astype(dtype), chunks=13)

    return Library("dask", asarray, lambda array: np.asarray(array.compute(scheduler="synchronous")))


def _cupy(cupy: Any) -> Library:
    if not cupy.is_available():
        raise NotFoundError("CuPy finds no GPU here")
    import_module("ml_dtypes")  # names bfloat16

    def asarray(values: Numbers, dtype: str) -> Array:
        return cupy.asarray(np.asarray(values).astype(dtype))

    def to_numpy(array: Array) -> Numbers:
        return _values(cupy.asnumpy(array))

    # Nobody looks at values, as in traced code.
    return Library("cupy", asarray, to_numpy, (*HALVES, *WHOLE), traced=True)


_CPU: dict[str, tuple[str, Callable[[Any], Library]]] = {
    "numpy": ("numpy", _numpy),
    "numpy-read-only": ("numpy", _read_only),
    "numpy-bfloat16": ("ml_dtypes", _bfloat16),
    "array_api_strict": ("array_api_strict", _strict),
    "torch": ("torch", _torch),
    "torch-compiled": ("torch", _torch_compiled),
    "jax": ("jax", _jax),
    "jax-jit": ("jax", lambda jax: _jitted(jax, _jax(jax))),
    "dask": ("dask.array", _dask),
}
_GPU: dict[str, tuple[str, Callable[[Any], Library]]] = {
    "cupy": ("cupy", _cupy),
    "torch-cuda": ("torch", _torch_cuda),
    "jax-cuda": ("jax", _jax_cuda),
    "jax-jit-cuda": ("jax", lambda jax: _jitted(jax, _jax_cuda(jax))),
}
LIBRARIES = {name: module for name, (module, _) in _CPU.items()}
"""The libraries, and ways of using them; by name, the module that each needs."""

GPU_LIBRARIES = {name: module for name, (module, _) in _GPU.items()}
"""The same on an NVIDIA GPU."""
