"""Which library an array belongs to, and how arrays pass from one library to another without a copy."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import array_api_compat as compat

from ..errors import InputError, InputTypeError

__all__ = [
    "Array",
    "check_memory",
    "class_name",
    "cuda_stream_of",
    "device_kind",
    "dtype_name",
    "is_traced",
    "library_name",
    "library_of",
    "namespace_of",
    "plain_memory",
    "share",
    "share_like",
]

Array = Any
"""An array of any library; its class says which."""


# By the class of an array: small products take no longer than to look these up again and again.
_namespaces: dict[type, ModuleType] = {}


def library_of(array: Array) -> str:
    """Return the import name of the library that `array` belongs to: `numpy`, `torch`, `jax`, `dask`, …"""
    return library_name(namespace_of(array))


@functools.cache
def library_name(namespace: ModuleType) -> str:
    """Return the import name of the library of a namespace."""
    return namespace.__name__.removeprefix("array_api_compat.").split(".")[0]


def namespace_of(*arrays: Array | None) -> ModuleType:
    """Return the one array-API namespace of `arrays`; Nones are passed over.

    Raises
    ------
    TypeError
        If an argument is no array, or the arrays belong to different libraries.
    """
    found: ModuleType | None = None
    for array in arrays:
        if array is None:
            continue
        namespace = _namespaces.get(type(array)) or _look_up(array)
        if found is not None and namespace is not found:
            kinds = sorted({class_name(a) for a in arrays if a is not None})
            raise InputTypeError(
                f"expected arrays of one library, got {' and '.join(kinds)}: convert one, for example by from_dlpack"
            )
        found = namespace
    if found is None:
        raise InputTypeError("expected at least one array, got None")
    return found


def class_name(array: Array) -> str:
    """Return the class of an array, with the library that has it."""
    kind = type(array)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}.{kind.__name__}"


def _look_up(array: Array) -> ModuleType:
    # Of the class: objects that hold an array, with units for example, hand on what they are asked for.
    if not (compat.is_array_api_obj(array) and (hasattr(type(array), "__array_namespace__") or _is_known(array))):
        raise InputTypeError(
            f"expected an array, got {class_name(array)}: pass its numbers, for example numpy.asarray(…) of it"
        )
    if getattr(array.dtype, "names", None) == ("float0",):  # NumPy's class, which is not JAX's for that
        raise InputTypeError("expected an array of numbers, got JAX's float0: the gradient of integers, which is none")
    namespace: ModuleType = compat.array_namespace(array)
    if type(array).__name__ not in ("FakeTensor", "FunctionalTensor"):  # a table with its classes stops the compiler
        _namespaces[type(array)] = namespace
    return namespace


def _is_known(array: Array) -> bool:
    """Return whether an array is of a library that array_api_compat lends a namespace."""
    return (
        compat.is_torch_array(array)
        or compat.is_dask_array(array)
        or compat.is_cupy_array(array)
        or (compat.is_numpy_array(array) or compat.is_jax_array(array))
    )


@functools.lru_cache(maxsize=64, typed=True)  # array_api_strict warns where its dtypes are compared with NumPy's
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, the same in every library: `float32`, …"""
    return getattr(dtype, "name", None) or str(dtype).rsplit(".", 1)[-1]


def device_kind(array: Array) -> str:
    """Return the kind of device that holds `array`, or that JAX compiles for by default: `cpu`, `cuda`, `tpu`, ….

    `traced` stands for arrays without values or a device yet.
    """
    if compat.is_dask_array(array):
        array = array._meta  # an empty array of the kind of its blocks
    if compat.is_cupy_array(array):
        return "cuda"
    if compat.is_jax_array(array):  # over however many devices
        device = sys.modules["jax"].default_backend() if is_traced(array) else next(iter(array.devices()))
    else:
        device = compat.device(array)
    if device is None:
        return "traced"
    kind = getattr(device, "type", None) or getattr(device, "platform", None) or str(device)
    kind = {"gpu": "cuda"}.get(kind, kind)
    return "cpu" if "CPU" in kind else kind  # array_api_strict calls its one real device CPU_DEVICE


def is_traced(array: Array) -> bool:
    """Return whether `array` stands for values that only a compiled program will have."""
    return _is_tracer(type(array))  # type: ignore[arg-type]  # classes can be hashed: mypy#11470


@functools.cache
def _is_tracer(kind: type) -> bool:
    return any(base.__name__ == "Tracer" for base in kind.__mro__)


def cuda_stream_of(array: Array) -> int | None:
    """Return the CUDA stream that the work is queued on of `array`'s library now, or None where it tells nobody."""
    if compat.is_torch_array(array) and array.is_cuda:
        stream: int = sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
        return stream
    if compat.is_cupy_array(array):
        return int(sys.modules["cupy"].cuda.get_current_stream(array.device.id).ptr)
    return None


def share(array: Array, target: ModuleType) -> Array:
    """Return `array` as one of the library `target`, on the same memory unless `target` cannot take that as it is.

    bfloat16 crosses as 16-bit integers, since NumPy and DLPack do not know it together.

    Raises
    ------
    TypeError
        If `array` has no values yet, or `target` lacks its dtype: JAX makes float32 of float64 unless told otherwise.
    """
    source = namespace_of(array)
    if is_traced(array):
        raise InputTypeError(
            f"a traced {type(array).__name__} has no values yet, so {target.__name__} cannot compute on it: "
            "choose backend='array_api', or call outside jit, grad and vmap"
        )
    before = dtype_name(array.dtype)
    array = plain_memory(array)
    if before == "bfloat16":
        bfloat16 = _bfloat16(target)
        return share(array.view(source.int16), target).view(bfloat16)
    array = _described(array)
    try:
        shared = target.from_dlpack(array)
    except (BufferError, RuntimeError):  # some libraries take no read-only memory, JAX none with gaps
        shared = target.from_dlpack(source.asarray(array, copy=True))
    after = dtype_name(shared.dtype)
    if after != before:
        raise InputTypeError(
            f"{target.__name__} makes {after} of {before}: convert the arrays first, or let JAX have 64 bits "
            "(jax.config.update('jax_enable_x64', True))"
        )
    return shared


def share_like(array: Array, like: Array) -> Array:
    """Return `array` as one of the library of `like`."""
    return share(array, namespace_of(like))


def plain_memory(array: Array, name: str = "a tensor") -> Array:
    """Return `array` as one whose entries are in its memory as they are: the door to whatever reads memory.

    Torch's may be conjugate or negative by a flag, zeros without memory, sparse, or kept gradients for; DLPack tells
    nobody of a negative one, nor that there is no memory. Arrays of other libraries are returned as they are.

    Raises
    ------
    TypeError
        If a tensor's class keeps its entries elsewhere, as those of distributed tensors do.
    ValueError
        If a tensor's memory has been freed, or made smaller.
    """
    if not compat.is_torch_array(array):
        return array
    if _stands_for_another(array):
        raise InputTypeError(
            f"{name} must have memory of its own, and a {type(array).__name__} has none: pass the plain tensor "
            "that it stands for (a DTensor's full_tensor() or to_local())"
        )
    if array.requires_grad:
        array = array.detach()
    if str(array.layout) != "torch.strided":
        array = array.to_dense()
    if array._is_zerotensor():
        return array.clone()
    check_memory(name, array)
    return array.resolve_conj().resolve_neg()


def check_memory(name: str, tensor: Array) -> None:
    """Refuse a Torch tensor whose storage no longer holds its entries: whatever reads them ends the process."""
    if _stands_for_another(tensor):
        return
    try:
        held = tensor.untyped_storage().nbytes()
    except NotImplementedError:  # it wraps another for `torch.func`, or is on a device that tells nothing
        functorch = sys.modules["torch"]._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            check_memory(name, functorch.get_unwrapped(tensor))
        return
    used = tensor.numel()
    if used and not tensor.is_contiguous():
        used = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if used and (tensor.storage_offset() + used) * tensor.itemsize > held:
        raise InputError(
            f"{name} must have its entries in memory, and its storage has been freed, or made smaller than its shape: "
            "keep it until it has been used, or pass a copy made before"
        )


def _stands_for_another(tensor: Array) -> bool:
    """Return whether a Torch tensor's class keeps its entries elsewhere, or nowhere, as fake ones do."""
    return bool(type(tensor).__torch_dispatch__ is not sys.modules["torch"].Tensor.__torch_dispatch__)


def _described(array: Array) -> Array:
    """Return a NumPy array or scalar in a form that DLPack can describe, others as they are."""
    if not compat.is_numpy_array(array):
        return array
    import numpy

    array = numpy.asarray(array, dtype=array.dtype.newbyteorder("="))
    # Torch aborts the process on steps back, and its vectors read only entries in their natural places.
    return array.copy() if min(array.strides, default=0) < 0 or not array.flags.aligned else array


def _bfloat16(target: ModuleType) -> Any:
    """Return the bfloat16 dtype of a library: NumPy and CuPy have it from ml_dtypes."""
    if hasattr(target, "bfloat16"):
        return target.bfloat16
    if target.__name__.endswith(("numpy", "cupy")):
        import ml_dtypes

        return ml_dtypes.bfloat16
    raise InputTypeError(f"{target.__name__} has no bfloat16: convert the arrays to float32")
