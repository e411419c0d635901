"""Lanes that are read from and written to the memory of NumPy arrays, by address, in any of the floating dtypes.

The first argument is a dtype tag, which is not read: its type tells the dtype of the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .lanes import Lanes

__all__ = ["DTYPE_TAGS", "read", "read_partial", "write", "write_partial"]

DTYPE_TAGS = {"float32": np.float32(0), "float64": np.float64(0), "float16": np.int16(0), "bfloat16": np.uint16(0)}
"""By name of a dtype, a number whose type tells a kernel the dtype of the data at an address.

Numba has no types for float16 and bfloat16: integers of 16 bits stand for them.
"""

_STORED = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int16: ir.HalfType(),
    types.uint16: ir.IntType(16),
}
_LANE = ir.IntType(32)
_COMPUTED: dict[Any, Any] = {
    types.float32: types.float32,
    types.float64: types.float64,
    types.int16: types.float32,
    types.uint16: types.float32,
}


def _widened(builder: Any, dtype_tag: Any, value: Any, lanes: Lanes) -> Any:
    """Return lanes as read, converted to the dtype in which kernels compute."""
    if dtype_tag == types.int16:
        return builder.fpext(value, lanes.llvm)
    if dtype_tag == types.uint16:  # bfloat16 is the upper half of float32
        sixteen = ir.Constant(lanes.bits, [16] * lanes.width)
        return builder.bitcast(builder.shl(builder.zext(value, lanes.bits), sixteen), lanes.llvm)
    return value


def _narrowed(builder: Any, dtype_tag: Any, value: Any, lanes: Lanes) -> Any:
    """Return lanes converted to the dtype in memory, rounded to nearest, ties to even."""
    if dtype_tag == types.int16:
        return builder.fptrunc(value, ir.VectorType(ir.HalfType(), lanes.width))
    if dtype_tag == types.uint16:

        def constant(number: int) -> Any:
            return ir.Constant(lanes.bits, [number] * lanes.width)

        bits = builder.bitcast(value, lanes.bits)
        even = builder.and_(builder.lshr(bits, constant(16)), constant(1))
        bits = builder.add(builder.add(bits, constant(0x7FFF)), even)
        return builder.trunc(builder.lshr(bits, constant(16)), ir.VectorType(ir.IntType(16), lanes.width))
    return value


def _pointer(builder: Any, address: Any, llvm: Any) -> Any:
    return builder.inttoptr(address, llvm.as_pointer())


@intrinsic
def read(typingctx: Any, dtype_tag: Any, address: Any) -> Any:
    """Return the lanes at `address`."""
    lanes = Lanes(_COMPUTED[dtype_tag])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        stored = ir.VectorType(_STORED[dtype_tag], lanes.width)
        value = builder.load(_pointer(builder, args[1], stored), align=1)
        return _widened(builder, dtype_tag, value, lanes)

    return lanes(dtype_tag, types.intp), codegen


@intrinsic
def read_partial(typingctx: Any, dtype_tag: Any, address: Any, stride: Any, count: Any) -> Any:
    """Return `count` entries, `stride` bytes apart, in the first lanes, and zeros in the others; count >= 1."""
    lanes = Lanes(_COMPUTED[dtype_tag])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, base, step, some = args
        stored = ir.VectorType(_STORED[dtype_tag], lanes.width)
        value = ir.Constant(stored, None)
        nothing = ir.Constant(stored.element, 0)
        for lane in range(lanes.width):  # other lanes read the first entry, and drop it
            index = ir.Constant(base.type, lane)
            within = builder.icmp_signed("<", index, some)
            offset = builder.select(within, builder.mul(step, index), ir.Constant(base.type, 0))
            entry = builder.load(_pointer(builder, builder.add(base, offset), stored.element), align=1)
            entry = builder.select(within, entry, nothing)
            value = builder.insert_element(value, entry, ir.Constant(_LANE, lane))
        return _widened(builder, dtype_tag, value, lanes)

    return lanes(dtype_tag, types.intp, types.intp, types.intp), codegen


@intrinsic
def write(typingctx: Any, dtype_tag: Any, address: Any, lanes: Any) -> Any:
    """Write the lanes to `address`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = _narrowed(builder, dtype_tag, args[2], lanes)
        builder.store(value, _pointer(builder, args[1], value.type), align=1)
        return context.get_dummy_value()

    return types.void(dtype_tag, types.intp, lanes), codegen


@intrinsic
def write_partial(typingctx: Any, dtype_tag: Any, address: Any, lanes: Any, count: Any) -> Any:
    """Write the first `count` lanes to `address`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = _narrowed(builder, dtype_tag, args[2], lanes)
        size = ir.Constant(args[1].type, _STORED[dtype_tag].get_abi_size(context.target_data))
        for lane in range(lanes.width):
            index = ir.Constant(args[1].type, lane)
            with builder.if_then(builder.icmp_signed("<", index, args[3])):
                entry = builder.extract_element(value, ir.Constant(_LANE, lane))
                where = builder.add(args[1], builder.mul(size, index))
                builder.store(entry, _pointer(builder, where, entry.type), align=1)
        return context.get_dummy_value()

    return types.void(dtype_tag, types.intp, lanes, types.intp), codegen
