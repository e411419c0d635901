"""What the public products refuse before any work."""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from contextlib import suppress
from typing import Any, Literal

import array_api_compat as compat

from .._arrays.exchange import Array, class_name, dtype_name, namespace_of
from .._arrays.plain import plain
from .._arrays.properties import as_integers, device_of, result_dtype_name, values_known, values_within_reach
from .._definition.masks import check_ordered
from ..errors import InputError, InputTypeError

__all__ = [
    "check_arrays",
    "check_count",
    "check_filter",
    "check_flag",
    "check_heads",
    "check_integers",
    "check_kind",
    "check_mask",
    "check_method",
    "check_rows",
    "check_segments",
    "check_signal",
    "no_room",
    "other_plan",
    "warn_of_layout",
    "warn_of_swap",
]

_OPTIONAL = ("bias", "row", "segment_ids", "positions", "attention_mask", "labels", "targets", "documents")
"""Arguments of the public functions that may be None."""

_INTEGERS = (
    *("segment_ids", "positions", "padding", "indices"),
    *("input_ids", "attention_mask", "labels", "targets", "documents"),
)
"""Arguments that are no numbers to compute with."""


def check_arrays(**arrays: Array | None) -> tuple[Any, list[Any]]:
    """Return the namespace of the arrays and the arrays, which must be of one library and on one device.

    Each has come through `plain`, and is its numbers and nothing else.
    NumPy arrays join Dask's: their blocks are NumPy's.
    """
    given: list[Any] = []
    floating: list[Any] = []
    lazy = None
    for name, array in arrays.items():
        if array is None:
            if name not in _OPTIONAL:
                raise InputTypeError(f"{name} must be an array, and is None")
        else:
            array = plain(name, array)
            if name not in _INTEGERS:
                floating.append(array)
            lazy = array if compat.is_dask_array(array) else lazy
        given.append(array)
    if lazy is not None:
        # In one chunk: Dask cannot choose chunks for what is empty.
        chunked = functools.partial(namespace_of(lazy).from_array, chunks=-1)
        given = [chunked(array) if compat.is_numpy_array(array) else array for array in given]
    try:
        xp = namespace_of(*given)
        result_dtype_name(*floating)
    except InputTypeError as error:
        raise _named(dict(zip(arrays, given, strict=True)), error) from error
    # NumPy and Dask have one device; JAX places arrays over several and refuses by itself those that do not fit.
    if not (compat.is_numpy_namespace(xp) or compat.is_jax_namespace(xp) or lazy is not None):
        _check_devices(dict(zip(arrays, given, strict=True)))
    return xp, given


def _named(arrays: dict[str, Array | None], error: InputTypeError) -> InputTypeError:
    """Return an error of arrays together as one that says which they are."""
    present = {name: array for name, array in arrays.items() if array is not None}
    for name, array in present.items():
        if name not in _INTEGERS:
            try:
                result_dtype_name(array)
            except InputTypeError as own:
                return InputTypeError(f"{name}: {own}")
    kinds = ", ".join(f"{name} is a {class_name(array)}" for name, array in present.items())
    return InputTypeError(f"{error}; {kinds}")


def _check_devices(arrays: dict[str, Array | None]) -> None:
    devices = {name: str(device_of(array)) for name, array in arrays.items() if array is not None}
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise InputError(f"expected arrays on one device, got {places}: move them to one")


def check_filter(name: str, w: Array, ndims: tuple[int, ...]) -> None:
    """Refuse what is no filter of one of these numbers of axes."""
    if w.ndim not in ndims:
        shapes = " or ".join({1: "(k,)", 2: "(h, k)", 3: "(h, m, k)"}[ndim] for ndim in ndims)
        raise InputError(f"{name} must be {shapes}, and is {tuple(w.shape)}")


def check_signal(name: str, x: Array, *, vector: bool) -> None:
    """Refuse what is no signal; one without channels only where `vector`."""
    if x.ndim < 2 and not (vector and x.ndim == 1):
        also = " or (n,)" if vector else "; (n,) goes with a one-dimensional filter"
        raise InputError(f"{name} must be (..., n, d){also}, and is {tuple(x.shape)}")


def warn_of_layout(w: Array, x: Array) -> None:
    """Warn where time looks to be last: x has fewer times than `w` has lags, and as many channels."""
    if not (0 < w.ndim < x.ndim and isinstance(x.shape[-2], int)):  # or a symbol, of an exported program
        return
    if 1 < x.shape[-2] < w.shape[-1] == x.shape[-1]:
        warnings.warn(
            f"x of shape {tuple(x.shape)} is read as {x.shape[-2]} times of {x.shape[-1]} channels, and w has "
            f"{w.shape[-1]} lags: time belongs on axis -2 and channels last; if they are last here, swap the two axes",
            UserWarning,
            stacklevel=5,
        )


def warn_of_swap(w: Array, x: Array) -> None:
    """Warn where `w` looks to be signals and `x` their filter: most of that filter would multiply nothing."""
    sizes = (*w.shape, *x.shape)
    if w.ndim != 3 or x.ndim < 2 or 0 in sizes or not all(isinstance(size, int) for size in sizes):
        return
    (heads, rows, lags), (n, d) = w.shape, x.shape[-2:]
    if rows > max(d // heads, 16) and lags > n:  # kernels are small; sequences are not
        warnings.warn(
            f"w of shape {tuple(w.shape)} has {rows} rows for the {d // heads} channels of a head, and {lags} lags for "
            f"the {n} times of x: the filter comes first and the signals second; if they are in the other order here, "
            "swap the two arguments",
            UserWarning,
            stacklevel=5,
        )


def check_heads(name: str, heads: int, channels: int) -> None:
    """Refuse heads that cannot share the channels equally."""
    if channels % heads if heads else channels:
        raise InputError(
            f"{name}, {heads} heads, must divide the {channels} channels: every head owns as many channels"
        )


def check_kind(name: str, value: object, kind: type, remedy: str) -> None:
    """Refuse an argument of another kind: mostly, two have changed places."""
    if not isinstance(value, kind):
        what = repr(value) if isinstance(value, str) else f"a {class_name(value)}"
        raise InputTypeError(f"{name} must be a {kind.__name__}, and is {what}: {remedy}")


def check_flag(name: str, value: bool) -> bool:
    """Return whether a flag is set, and refuse what is neither true nor false, which mostly passes for true."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool)):
        return bool(value)
    raise InputTypeError(f"{name} must be True or False, not {value!r}")


def check_method(method: str) -> None:
    """Refuse a way of computing that there is not."""
    if not isinstance(method, str) or method not in ("auto", "direct"):
        raise InputError(f"method must be 'auto' or 'direct', and is {method!r}")


def check_rows(indices: Array, count: int) -> Array:
    """Return numbers of a batch's `count` rows, arrays of any library, as integers that hold all of them."""
    xp, (indices,) = check_arrays(indices=indices)
    check_integers("indices", indices, "rows of the batch")
    integers: Array = as_integers(indices)
    outside = xp.any((integers < 0) | (integers >= count))
    if values_within_reach(outside) and bool(outside):
        raise InputError(f"indices must be rows of the batch, 0 to {count - 1}")
    return integers


def check_integers(name: str, array: Array, what: str) -> None:
    """Refuse an array of anything but integers, which say `what`."""
    if not _is_of(array, "integral"):
        raise InputTypeError(f"{name} must be integers, {what}, not {dtype_name(array.dtype)}")


def check_mask(mask: Array) -> None:
    """Refuse an attention mask of anything but booleans or numbers."""
    if not (_is_of(mask, "bool") or _is_of(mask, "numeric")):
        raise InputTypeError(
            f"attention_mask must be booleans or numbers, 1 for a token and 0 for padding, not {dtype_name(mask.dtype)}"
        )


def _is_of(array: Array, kind: Literal["bool", "integral", "numeric"]) -> bool:
    """Return whether an array's dtype is of a kind."""
    try:
        return bool(namespace_of(array).isdtype(array.dtype, kind))
    except TypeError:  # NumPy will not tell of dtypes that are not its own, nor of strings
        return False


def check_count(name: str, value: int, least: int) -> int:
    """Return an integer of at least `least`, and refuse all else."""
    if getattr(value, "shape", None) == ():
        value = plain(name, value)
        with suppress(TypeError):  # not an array of integers
            value = operator.index(value)
    if isinstance(value, bool) or not hasattr(value, "__index__") or hasattr(value, "shape"):
        raise InputTypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise InputError(f"{name} must be at least {least}, not {value}")
    if isinstance(value, int) and value > sys.maxsize:
        raise InputError(f"{name} must be at most {sys.maxsize}, not {value}: no memory has more places")
    return value  # symbolic integers of a compiler stay


def check_segments(xp: Any, segment_ids: Array, x: Array, *, ordered: bool = False) -> tuple[Array, bool]:
    """Return `segment_ids` for each position of `x`, and whether they are known not to decrease."""
    check_integers("segment_ids", segment_ids, "numbers of documents")
    if compat.is_torch_array(segment_ids):
        segment_ids = xp.astype(segment_ids, xp.int64, copy=False)  # PyTorch does not order all unsigned integers
    try:
        ids = xp.broadcast_to(segment_ids, x.shape[:-1])
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError(
            f"segment_ids must broadcast to {tuple(x.shape[:-1])}, one a position, and are {tuple(segment_ids.shape)}"
        ) from error
    return ids, check_ordered(ids) if not ordered else values_known(ids)


def other_plan() -> InputError:
    """Return the error for a state that another plan's streams go on with."""
    return InputError("the state belongs to another plan: expected a state that stream_init made with this one")


def no_room(position: int, count: int, capacity: int, max_len: int) -> InputError:
    """Return the error for `count` more tokens than a stream has places for, of its own or of the position bias."""
    came = f"{position} tokens have come and {count} would follow"
    if position + count > capacity:
        return InputError(f"the stream is full: {came}, with {capacity=}: plan with a larger capacity")
    return InputError(
        f"the position bias ends at {max_len=}, and {came}: end the stream there, "
        "or use a model without position bias (position_bias=False), which runs on"
    )
