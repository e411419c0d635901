"""What the formulae need of arrays, and the array API lacks: dtypes by name, neighbouring channels, traced values."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import array_api_compat as compat

from ..errors import InputTypeError
from .exchange import Array, dtype_name, is_traced, namespace_of, share_like

__all__ = [
    "as_integers",
    "compiling",
    "computed_in",
    "conj",
    "device_of",
    "indices_like",
    "is_real",
    "matmul",
    "nan_where",
    "result_dtype",
    "result_dtype_name",
    "shift_channels",
    "surely_all",
    "surely_any",
    "values_known",
    "values_within_reach",
    "with_one",
]

_HALVES = ("float16", "bfloat16")
_SERVED = (*_HALVES, "float32", "float64", "complex64", "complex128")


def result_dtype_name(*arrays: Array) -> str:
    """Return the dtype that arrays promote to, by a table of our own: not every library has both halves.

    >>> import numpy as np
    >>> result_dtype_name(np.zeros(1, "float16"), np.zeros(1, "complex64"))
    'complex64'
    """
    promoted = ""
    for array in arrays:
        name = dtype_name(array.dtype)
        if name != promoted:
            promoted = _promoted(promoted, name)
    return promoted


@functools.cache
def _promoted(first: str, second: str) -> str:
    """Return what two dtypes promote to, the first one empty at the beginning."""
    if second not in _SERVED:
        raise InputTypeError(
            f"expected arrays of {', '.join(_SERVED)}, got {second}: convert it first, for example to float32"
        )
    if not first:
        return second
    double = not {"complex128", "float64"}.isdisjoint((first, second))
    if "complex" in first + second:
        return "complex128" if double else "complex64"
    return "float64" if double else "float32"


def result_dtype(*arrays: Array) -> Any:
    """Return the dtype that arrays promote to."""
    name = result_dtype_name(*arrays)
    return arrays[0].dtype if name in _HALVES else getattr(namespace_of(*arrays), name)


def computed_in(*arrays: Array) -> tuple[Any, list[Array]]:
    """Return the dtype of the result, and the arrays in the dtype that it is computed in: float32 for halves."""
    xp = namespace_of(*arrays)
    name = result_dtype_name(*arrays)
    wide = xp.float32 if name in _HALVES else getattr(xp, name)
    computed = list(arrays)
    for i, array in enumerate(arrays):
        if array.dtype != wide:
            computed[i] = xp.astype(array, wide)
    return arrays[0].dtype if name in _HALVES else wide, computed


# Classes of arrays that always have their values: those of NumPy, of array_api_strict, and JAX's outside of programs.
_valued: set[type] = set()


def values_known(*arrays: Array | None) -> bool:
    """Return whether a Python branch may look at the arrays' values, as often as it wants.

    Not in code that is being traced or compiled, nor where a device queues its work: to look at its values is to wait
    for it, and what waits cannot be captured in a graph of CUDA. Ask for what has been computed of arrays: in a traced
    function that has no values, though they may; `surely_any` and `surely_all` do.
    """
    for array in arrays:
        if array is None or type(array) in _valued:
            continue
        if not values_within_reach(array) or _is_queued(array):
            return False
    return True


def values_within_reach(*arrays: Array | None) -> bool:
    """Return whether the arrays have values that rare bookkeeping may look at, though it waits for a device then."""
    if compiling():
        return False
    torch = _imported_torch()
    for array in arrays:
        if array is None or type(array) in _valued:
            continue
        if is_traced(array) or compat.is_dask_array(array) or (torch is not None and _has_no_values(torch, array)):
            return False
        if not (compat.is_torch_array(array) or _is_queued(array)):
            _valued.add(type(array))
    return True


def surely_any(mask: Array, *, wait: bool = False) -> bool:
    """Return whether a mask is known to hold somewhere: how to branch on values, which a constant's mask may lack.

    In a traced function a constant has its values, and what is computed of it has none. So this looks at what it has
    computed, and computes nothing where that would be queued on a device; with `wait` it waits for the device.
    """
    look = values_within_reach if wait else values_known
    return look(mask) and look(found := namespace_of(mask).any(mask)) and bool(found)


def surely_all(mask: Array) -> bool:
    """Return whether a mask is known to hold everywhere."""
    return values_known(mask) and values_known(found := namespace_of(mask).all(mask)) and bool(found)


def compiling() -> bool:
    """Return whether PyTorch's compiler looks on."""
    torch = _imported_torch()
    # Not every version tells all that runs while it compiles.
    return torch is not None and (torch.compiler.is_compiling() or torch._guards.TracingContext.try_get() is not None)


# As torch.compiler.assume_constant_result does: the compiler would look at every module that there is.
compiling._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _imported_torch() -> Any:
    """Return PyTorch where somebody has imported it, else None."""
    return sys.modules.get("torch")


def _is_queued(array: Array) -> bool:
    """Return whether an array's values come when its device gets to them."""
    return compat.is_cupy_array(array) or (compat.is_torch_array(array) and array.device.type != "cpu")


def _has_no_values(torch: Any, array: Array | None) -> bool:
    """Return whether a tensor has no values: the compiler's, `torch.func`'s, or one that is only a shape.

    Nor has any while `make_fx` records operations, as `torch.func.linearize` does, for others that are to come.
    """
    if not isinstance(array, torch.Tensor):
        return False
    if type(array).__name__ in ("FakeTensor", "FunctionalTensor") or array.device.type == "meta":
        return True
    recording = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    return recording or bool(torch._C._functorch.is_functorch_wrapped_tensor(array))


def device_of(a: Array) -> Any:
    """Return where new arrays beside `a` are made; None, the default, for traced ones and those on several devices."""
    device = None if is_traced(a) else compat.device(a)
    return None if hasattr(device, "device_set") else device  # how JAX spreads one shape is not how it spreads others


def shift_channels(a: Array, by: int, heads: int) -> Array:
    """Return `b[..., c] = a[..., c - by]` within each head's channels, zero where that leaves the head."""
    if by == 0:
        return a
    xp = namespace_of(a)
    width = a.shape[-1] // heads
    a = xp.reshape(a, (*a.shape[:-1], heads, width))
    gap = min(abs(by), width)
    zeros = xp.zeros_like(a[..., :gap])
    parts = [zeros, a[..., : width - gap]] if by > 0 else [a[..., gap:], zeros]
    return xp.reshape(xp.concat(parts, axis=-1), (*a.shape[:-2], heads * width))


def with_one(a: Array, *axes: int) -> Array:
    """Return `a` with one zero along those axes that have none: a filter of one lag, which is zero, for no lags."""
    xp = namespace_of(a)
    for axis in axes:
        if a.shape[axis] == 0:
            shape = list(a.shape)
            shape[axis] = 1
            one = xp.zeros(tuple(shape), dtype=a.dtype, device=device_of(a))
            # Joined, so that there are derivatives for `a`; Dask forgets what it joins to nothing.
            a = one if compat.is_dask_array(a) else xp.concat([a, one], axis=axis)
    return a


def as_integers(a: Array) -> Array:
    """Return integers of any width as the library's own: it may not compute with all, nor look up by them."""
    xp = namespace_of(a)
    return xp.astype(a, xp.__array_namespace_info__().default_dtypes()["integral"], copy=False)


def indices_like(indices: Array, cache: Array) -> Array:
    """Return a padding, or numbers of rows, as integers of the library that holds a cache, and beside it."""
    xp, device = namespace_of(indices), device_of(cache)
    if xp is not namespace_of(cache):
        indices = share_like(xp.astype(indices, xp.int32), cache)
    beside = device is None or device_of(indices) in (None, device)
    return indices if beside else compat.to_device(indices, device)


def is_real(x: Array) -> bool:
    """Return whether the dtype is not complex."""
    return not dtype_name(x.dtype).startswith("complex")  # by name: NumPy's own test knows no bfloat16


def conj(a: Array) -> Array:
    """Return the complex conjugate; reals as they are."""
    return a if is_real(a) else namespace_of(a).conj(a)  # the standard has no conj of reals


def nan_where(mask: Array | None, y: Array) -> Array:
    """Return `y` with NaN where the mask holds; None stands for a mask that holds nowhere."""
    if mask is None:
        return y
    xp = namespace_of(y)
    # JAX is given the number itself: an array of NaN alarms those who look for NaN by `jax_debug_nans`.
    nan = math.nan if compat.is_jax_namespace(xp) else xp.full((), math.nan, dtype=y.dtype, device=device_of(y))
    return xp.where(mask, nan, y)


def matmul(a: Array, b: Array) -> Array:
    """Return `a @ b` with every bit of the inputs: JAX would use fewer on accelerators."""
    xp = namespace_of(a, b)
    if compat.is_jax_namespace(xp):
        return xp.matmul(a, b, precision="highest")
    return xp.matmul(a, b)
