"""A vector type for kernels: neighbouring channels side by side in one SIMD register.

`Lanes` are as many real numbers as a register of the target processor holds: in LLVM one `<16 x float>`, `<4 x double>`
and so on. Kernels add, subtract and multiply them.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from .target import FAST, REGISTER_BYTES

__all__ = [
    "LLVM",
    "WIDTHS",
    "Lanes",
    "broadcast",
    "load",
    "magnitude",
    "splat",
    "store",
    "subnormal",
    "total",
    "width",
    "zeros",
]


WIDTHS = {types.float32: REGISTER_BYTES // 4, types.float64: REGISTER_BYTES // 8}
"""Lanes of a register, by dtype."""

LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_BITS = {types.float32: ir.IntType(32), types.float64: ir.IntType(64)}
_I32 = ir.IntType(32)


class Lanes(types.Type):
    """The Numba type of a full register of one dtype, float32 or float64."""

    def __init__(self, dtype: Any) -> None:
        """Create the type for a dtype."""
        self.dtype = dtype
        self.width = WIDTHS[dtype]
        self.llvm = ir.VectorType(LLVM[dtype], self.width)
        self.bits = ir.VectorType(_BITS[dtype], self.width)
        super().__init__(name=f"Lanes({dtype}, {self.width})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.llvm)


# Arithmetic ----------------------------------------------------------------------------------------------------------


def _operator(symbol: Any, name: str) -> None:
    """Define the operator `symbol` of two `Lanes` by the LLVM instruction `name`."""

    @infer_global(symbol)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and args[0] == args[1] and isinstance(args[0], Lanes):
                return signature(args[0], *args)
            return None

    @lower_builtin(symbol, Lanes, Lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, name)(*args, flags=FAST)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")


@intrinsic
def magnitude(typingctx: Any, largest: Any, lanes: Any) -> Any:
    """Return, lane by lane, the larger of `largest` and `|lanes|`; NaN and infinity count as larger than any number.

    It compares bits as integers, so it is right whatever fast-math flags are set.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = lanes.bits
        a, b = (builder.bitcast(arg, bits) for arg in args)
        width = bits.element.width
        b = builder.and_(b, ir.Constant(bits, [(1 << (width - 1)) - 1] * lanes.width))
        return builder.bitcast(builder.select(builder.icmp_unsigned(">", a, b), a, b), lanes.llvm)

    return lanes(largest, lanes), codegen


@intrinsic
def subnormal(typingctx: Any, lanes: Any) -> Any:
    """Return whether any of the lanes, which are not negative, is below the normal numbers, but not zero."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits, number = lanes.bits, lanes.bits.element
        first_normal = 1 << (23 if number.width == 32 else 52)
        less = builder.sub(
            builder.bitcast(args[0], bits), ir.Constant(bits, [1] * lanes.width)
        )  # zero gets the largest
        found = builder.icmp_unsigned("<", less, ir.Constant(bits, [first_normal - 1] * lanes.width))
        packed = builder.bitcast(found, ir.IntType(lanes.width))
        return builder.icmp_unsigned("!=", packed, ir.Constant(packed.type, 0))

    return types.boolean(lanes), codegen


@intrinsic
def total(typingctx: Any, lanes: Any) -> Any:
    """Return the sum over all lanes, in an order that LLVM chooses for the processor."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = lanes.llvm.element
        name = f"llvm.vector.reduce.fadd.v{lanes.width}f{lanes.dtype.bitwidth}"
        function_type = ir.FunctionType(number, [number, lanes.llvm])
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        return builder.call(function, [ir.Constant(number, 0), args[0]], fastmath=FAST)

    return lanes.dtype(lanes), codegen


@intrinsic
def width(typingctx: Any, array: Any) -> Any:
    """Return how many numbers of the dtype of `array` a register holds."""
    count = Lanes(array.dtype).width

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_constant(types.intp, count)

    return types.intp(array), codegen


@intrinsic
def zeros(typingctx: Any, array: Any) -> Any:
    """Return lanes of zeros, of the dtype of `array`."""
    lanes = Lanes(array.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(lanes.llvm, None)

    return lanes(array), codegen


def splat(builder: Any, value: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


# Memory: one-dimensional arrays of the dtype in which kernels compute; see `memory` for others -----------------------


def _place(context: Any, builder: Any, array: Any, value: Any, index: Any, llvm: Any) -> Any:
    """Return the pointer to entry `index` of an array, as one to `llvm`."""
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [index]), llvm.as_pointer())


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """Return the lanes that begin at entry `index` of `array`."""
    lanes = Lanes(array.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        where = _place(context, builder, sig.args[0], args[0], args[1], lanes.llvm)
        return builder.load(where, align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write the lanes to `array` from entry `index` on."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        where = _place(context, builder, sig.args[0], args[0], args[1], lanes.llvm)
        builder.store(args[2], where, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), codegen


@intrinsic
def broadcast(typingctx: Any, array: Any, index: Any) -> Any:
    """Return `array[index]` in every lane."""
    lanes = Lanes(array.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        where = _place(context, builder, sig.args[0], args[0], args[1], LLVM[array.dtype])
        return splat(builder, builder.load(where), lanes.llvm)

    return lanes(array, types.intp), codegen
