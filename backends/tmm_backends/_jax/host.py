"""Engines of NumPy arrays, called by compiled programs on a CPU through XLA's foreign functions.

XLA calls a function of C with a frame of pointers (its stable interface, `xla/ffi/api/c_api.h` in jaxlib's include
folder). The function is one of `ctypes`: it takes the GIL and calls the engine on arrays that lie in XLA's own buffers,
so nothing is copied, and an engine behaves as it does when Python calls it. JAX gives the GIL back where it waits for a
program (but not in `unsafe_buffer_pointer` of an array that is not ready, which waits for ever, here and with JAX's own
callbacks).
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import dis
import functools
import itertools
import json
import math
import sys
import threading
import time
from types import FrameType
from typing import Any

import jax
import jaxlib.version
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tmm_core.backend import Engine, UnsupportedError, get_backend

from . import evaluate

__all__ = ["call", "cause_of"]

TARGET = "tmm_core_host_engine"

PATIENCE = 60.0
"""Seconds that the end of a process waits for programs whose results nobody holds."""

_called: set[str] = set()
"""The engines that programs of this process call."""


def call(engine: Engine, operation: str, like: Any, /, *arrays: jax.Array, **options: Any) -> jax.Array:
    """Return a traced result of the shape and dtype of `like`: the engine computes when the compiled program runs."""
    if _refused:
        raise _refused[0]
    _called.add(engine.name)
    what = json.dumps([engine.name, operation, options], sort_keys=True)
    result: jax.Array = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(like.shape, like.dtype))(*arrays, what=what)
    return result


@functools.lru_cache(maxsize=256)
def _read(what: bytes) -> tuple[str, Any, dict[str, Any]]:
    """Return the engine's name, the operation and the options of a call."""
    name, operation, options = json.loads(what)
    return name, operation, options


def _compute(what: bytes, out: NDArray[Any], *arrays: NDArray[Any]) -> None:
    """Compute into `out`, without a copy where the engine can write there."""
    name, operation, options = _read(what)
    engine = get_backend(name).engine
    if operation == "matmul":
        evaluate.product(engine, *arrays, out=out, **options)
    else:
        out[...] = evaluate.correlation(engine, *arrays, **options)


# XLA's threads read and write zero for what is smaller than the smallest normal number; engines do not, wherever they
# are called, and nor do the threads that they start.
ENVIRONMENT = 256
"""Bytes enough for the floating-point environment of any machine."""
_libm = ctypes.PyDLL("ucrtbase" if sys.platform == "win32" else None)
_OURS = ctypes.create_string_buffer(ENVIRONMENT)
_libm.fegetenv(_OURS)


# The frame that XLA passes, in words of 8 bytes ----------------------------------------------------------------------

EXTENSION, API, ARGUMENTS, RESULTS, ATTRIBUTES = 1, 2, 9, 14, 20
"""Where a frame holds its extension, XLA's own functions, and the pointers to buffers and attributes."""
ARGUMENT_COUNT, FRAME_WORDS = 7, 21
DTYPE, DATA, RANK, DIMENSIONS, BUFFER_WORDS = 2, 3, 4, 5, 6
"""Where a buffer holds what it is."""
API_VERSION, ERROR_CREATE = 4, 6
"""Where XLA's functions hold the version of the interface, and the function that makes errors."""
SIZES = {0: 168, 5: 40, 10: 40, 15: 48}
"""Where a frame and the parts of it hold their sizes in bytes, and those that this module is written for."""
BUFFER_SIZE = 48
MAJOR_VERSION = 0
INTERNAL = 13
"""The code of errors in a handler."""

_DTYPES = {
    2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16, 8: np.uint32, 9: np.uint64,
    10: np.float16, 11: np.float32, 12: np.float64, 15: np.complex64, 16: ml_dtypes.bfloat16, 18: np.complex128,
}  # fmt: skip
_DTYPES_OF_XLA = {number: np.dtype(dtype) for number, dtype in _DTYPES.items()}


def _words(address: int, count: int) -> Any:
    return (ctypes.c_int64 * count).from_address(address)


def _array(address: int) -> NDArray[Any]:
    """Return an array on the memory of a buffer."""
    buffer = _words(address, BUFFER_WORDS)
    if buffer[0] != BUFFER_SIZE:
        raise _unknown(f"buffers of {buffer[0]} bytes, not {BUFFER_SIZE}")
    shape = tuple(_words(buffer[DIMENSIONS], buffer[RANK])) if buffer[RANK] else ()
    dtype = _DTYPES_OF_XLA[buffer[DTYPE] & 0xFFFFFFFF]
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(buffer[DATA]))


def _text(address: int) -> bytes:
    """Return a string attribute."""
    start, length = _words(address, 2)
    return ctypes.string_at(start, length)


def _error(api: int, error: BaseException) -> int | None:
    """Return what tells XLA of an error: the program that called raises it."""
    _told.append(error)
    message = ctypes.create_string_buffer(_message(error).encode())
    arguments = (ctypes.c_int64 * 4)(32, 0, ctypes.addressof(message), INTERNAL)
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_words(api, ERROR_CREATE + 1)[ERROR_CREATE])
    made: int | None = create(ctypes.addressof(arguments))
    return made


def _unknown(found: str) -> UnsupportedError:
    return UnsupportedError(
        f"compiled programs of jaxlib {jaxlib.version.__version__} call engines in a form that is not known here "
        f"({found}): choose backend='jax', call outside of jit, vmap and shard_map, or install jax 0.10"
    )


def _check_frame(frame: Any) -> None:
    """Refuse a frame of another layout: its pointers would be read in the wrong places."""
    sizes = {at: frame[at] for at in SIZES}
    if sizes != SIZES:
        raise _unknown(f"structures of {list(sizes.values())} bytes, not {list(SIZES.values())}")
    major = _words(frame[API], API_VERSION + 1)[API_VERSION] & 0xFFFFFFFF
    if major != MAJOR_VERSION:
        raise _unknown(f"version {major} of the interface, not {MAJOR_VERSION}")


_refused: list[UnsupportedError] = []
"""Why no program can call engines, found when XLA asks first."""


def _answer(address: int) -> None:
    """Answer a question of XLA's, or compute what it asks for."""
    frame = _words(address, FRAME_WORDS)
    if frame[EXTENSION]:
        extension = _words(frame[EXTENSION], 4)
        if extension[1] & 0xFFFFFFFF == 1:  # a question: which version of the interface is this written for?
            try:
                _check_frame(frame)
            except UnsupportedError as error:
                _refused.append(error)
            metadata = (ctypes.c_int32 * 9).from_address(extension[3])
            metadata[6], metadata[7], metadata[8] = 0, 1, 0  # 0.1, and no traits
            return
    out = _array(_words(frame[RESULTS], 1)[0])
    theirs = ctypes.create_string_buffer(ENVIRONMENT)
    _libm.fegetenv(theirs)
    try:
        _libm.fesetenv(_OURS)
        arguments = [_array(at) for at in _words(frame[ARGUMENTS], frame[ARGUMENT_COUNT])]
        _compute(_text(_words(frame[ATTRIBUTES], 1)[0]), out, *arguments)
    except BaseException:
        out[...] = np.nan  # what the rest of the program goes on with
        raise
    finally:
        _libm.fesetenv(theirs)


# Exceptions ----------------------------------------------------------------------------------------------------------
#
# An error that XLA is told of reaches who waits for the program as an error of JAX's, whatever it was; `cause_of` finds
# it where the bridge itself waits. On the main thread, where small programs run, Python's handlers of signals raise: a
# KeyboardInterrupt, the end of a time limit. There XLA is told that all went well, and the interpreter is asked to
# raise the exception itself where it next asks for signals: at the end of the call of the program, whose result nobody
# sees, or in the program's next call of an engine, which does the same.
#
# The interpreter asks at the entry of a function, after a call and where a loop goes round. In `_serve` none of these
# may lie outside of its `try`: ctypes would print the exception, drop it and return any number to XLA.


_told: collections.deque[BaseException] = collections.deque(maxlen=16)
"""The last errors that XLA was told of; it hands on their messages only."""


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def cause_of(error: Exception) -> BaseException:
    """Return the error of an engine that XLA has made another one of; that one if it is not known."""
    return next((told for told in reversed(_told) if _message(told) in str(error)), error)


class _Raising:
    """What raises an exception when the interpreter wants to know whether it is true."""

    error: BaseException
    caller: FrameType | None
    """The frame that called the program."""

    def __bool__(self) -> bool:
        if self._in_callback():
            for _ in _raise_later:
                return False
        try:
            raise self.error
        finally:
            del self.error, self.caller

    def _in_callback(self) -> bool:
        """Return whether the program has called a function of JAX's, which would make another error of it."""
        above: FrameType | None = None
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame is not self.caller:
            above, frame = frame, frame.f_back
        return frame is not None and above is not None and above.f_globals["__name__"].startswith("jax.")


def _without_signals_at_entry(function: Any) -> None:
    """Have the interpreter not ask for signals where a function begins, as it does not where `yield from` goes on."""
    code = function.__code__
    begin, after_yield_from = bytes([dis.opmap["RESUME"], 0]), bytes([dis.opmap["RESUME"], 2])
    if code.co_code.startswith(begin):
        function.__code__ = code.replace(co_code=after_yield_from + code.co_code[2:])


_raising = _Raising()
_raise_later = map(  # an iterator, since the interpreter asks for signals after a call, but not after a step
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(("Py_AddPendingCall", ctypes.pythonapi)),
    itertools.repeat(ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)),
    itertools.repeat(_raising),
)
"""Each step asks the interpreter to raise `_raising.error` in the main thread; it is 0 if that will happen."""


def _serve(address: int) -> int | None:
    """Serve one call of XLA's; None says that it went well."""
    on_main_thread = True  # until it is known: no handler raises in another
    try:
        on_main_thread = threading.get_ident() == threading.main_thread().ident
        _answer(address)
    except BaseException as error:
        caller = error.__traceback__ and error.__traceback__.tb_frame.f_back
        error.__traceback__ = error.__context__ = error.__cause__ = None  # their frames hold XLA's memory
        if on_main_thread:
            _raising.error, _raising.caller = error, caller
            for refused in _raise_later:
                if not refused:
                    return None
                break
        return _error(_words(address, FRAME_WORDS)[API], error)
    return None


_without_signals_at_entry(_Raising.__bool__)
_without_signals_at_entry(_serve)
_handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_serve)  # kept, since XLA keeps only its address
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="cpu")


@atexit.register
def _finish() -> None:
    """Wait for programs that are still running: JAX ends with the GIL held, and waits for calls that wait for the GIL.

    Results that nobody holds any more cannot be waited for, so this waits until the process does nothing, too.
    """
    if not _called:
        return
    for array in jax.live_arrays("cpu"):
        with contextlib.suppress(Exception):  # of a program that failed, which is not news at the end
            array.block_until_ready()
    idle, end = 0, time.monotonic() + PATIENCE
    while idle < 3 and time.monotonic() < end:
        before = time.process_time()
        time.sleep(0.01)
        idle = idle + 1 if time.process_time() - before < 0.002 else 0
