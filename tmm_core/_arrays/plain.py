"""The door through which arrays come in: each is its numbers, all of them, in their places, or is refused by name."""

from __future__ import annotations

import math
import sys

import array_api_compat as compat

from ..errors import InputError, InputTypeError
from .exchange import Array, check_memory, class_name, is_traced, namespace_of
from .properties import compiling

__all__ = ["plain"]

_PLAIN = ("ndarray", "memmap")
"""NumPy's classes whose arrays are their numbers and nothing else."""


def plain(name: str, array: Array) -> Array:
    """Return an argument called `name` as an array whose numbers are all that it means.

    Raises
    ------
    TypeError
        If it is no array, or of a class that may give its numbers a meaning: units, masks, labels. Engines compute
        with the numbers, and the meaning would be lost without a word.
    ValueError
        If it has sizes that are not known yet, or its memory has been freed.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(array) is numpy.ndarray and array.dtype.isnative and array.dtype.names is None:
        return array
    block = getattr(array, "_meta", array) if compat.is_dask_array(array) else array
    if block is not array and not (compat.is_numpy_array(block) or compat.is_cupy_array(block)):
        raise InputTypeError(f"{name} must have blocks of NumPy or CuPy, and has {class_name(block)}: map them first")
    kinds = {base.__name__ for base in type(block).__mro__}
    if kinds & {"MaskedArray", "MaskedTensor"}:
        raise InputTypeError(
            f"{name} must have all its entries, and is a masked array: fill it first, for example by zeros"
        )
    if numpy is not None and isinstance(block, numpy.ndarray) and type(block).__name__ not in _PLAIN:
        raise InputTypeError(
            f"{name} must be a plain array, and is a {class_name(block)}, which may mean more than its numbers, such "
            f"as units: pass these, for example numpy.asarray({name}), and give the result its meaning again"
        )
    try:
        namespace_of(array)
    except InputTypeError as error:
        raise InputTypeError(f"{name}: {error}") from None
    if compat.is_torch_array(array):
        _check_tensor(name, array)
    deleted = getattr(array, "is_deleted", None)  # JAX's
    if deleted is not None and not is_traced(array) and deleted():
        raise InputError(
            f"{name} must have its entries in memory, and has been deleted, or donated to a compiled function: "
            "use what that returned, or pass a copy made before"
        )
    if compat.is_dask_array(array) and any(math.isnan(size) for size in array.shape):
        raise InputError(f"{name} has chunks of unknown sizes, {array.shape}: call its compute_chunk_sizes() first")
    if compat.is_numpy_array(array):  # single numbers, files in memory, other orders of bytes
        array = namespace_of(array).asarray(array)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return array


def _check_tensor(name: str, tensor: Array) -> None:
    """Refuse a Torch tensor whose entries are not all in its memory as they are."""
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        raise InputTypeError(f"{name} must be a dense tensor, and is sparse or nested: convert it by to_dense()")
    if tensor.is_quantized:
        raise InputTypeError(f"{name} must hold its numbers as they are, and is quantized: convert it by dequantize()")
    if compiling():
        return
    torch = sys.modules["torch"]
    fake = type(tensor).__name__ == "FakeTensor" and not tensor.fake_mode.allow_non_fake_inputs
    if fake and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
        raise InputTypeError(
            f"{name} must have values, and is a FakeTensor outside of its mode: call this inside (with fake_mode: …)"
        )
    check_memory(name, tensor)
