"""What is done within registers: butterflies of LLVM's vectors, from a buffer and back to it.

A buffer is a one-dimensional array of real numbers; its entry i holds a register of real parts and one of imaginary
parts. Each intrinsic here is a straight piece of code; `passes` has the loops around them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .butterflies import join, split
from .lanes import LLVM, Lanes, splat
from .plans import LEAF
from .target import FAST


class Vector:
    """A complex vector while LLVM's code is being written: a `Number` of `butterflies`."""

    def __init__(self, builder: Any, re: Any, im: Any) -> None:
        """Make the number `re + i im` of two LLVM values; None for an imaginary part that is zero."""
        self.builder, self.re, self.im = builder, re, im

    def _op(self, name: str, a: Any, b: Any) -> Any:
        return getattr(self.builder, name)(a, b, flags=FAST)

    def __add__(self, other: Vector) -> Vector:
        """Return the sum."""
        if other.im is None:
            return Vector(self.builder, self._op("fadd", self.re, other.re), self.im)
        if self.im is None:
            return other + self
        return Vector(self.builder, self._op("fadd", self.re, other.re), self._op("fadd", self.im, other.im))

    def __sub__(self, other: Vector) -> Vector:
        """Return the difference."""
        re = self._op("fsub", self.re, other.re)
        if other.im is None:
            return Vector(self.builder, re, self.im)
        im = self.builder.fneg(other.im) if self.im is None else self._op("fsub", self.im, other.im)
        return Vector(self.builder, re, im)

    def __mul__(self, other: Vector) -> Vector:
        """Return the product with a number that is not known to be real."""
        if self.im is None:
            return other * self
        if other.im is None:
            return Vector(self.builder, self._op("fmul", self.re, other.re), self._op("fmul", self.im, other.re))
        re = self._op("fsub", self._op("fmul", self.re, other.re), self._op("fmul", self.im, other.im))
        im = self._op("fadd", self._op("fmul", self.re, other.im), self._op("fmul", self.im, other.re))
        return Vector(self.builder, re, im)

    def times_i(self) -> Vector:
        """Return i times the number."""
        return Vector(self.builder, self.builder.fneg(self.im), self.re)

    def conjugate(self) -> Vector:
        """Return the complex conjugate."""
        return Vector(self.builder, self.re, self.builder.fneg(self.im))

    def scaled(self, factor: float) -> Vector:
        """Return a real multiple."""
        many = ir.Constant(self.re.type, [factor] * self.re.type.count)
        return Vector(self.builder, self._op("fmul", self.re, many), self._op("fmul", self.im, many))


class Memory:
    """Complex numbers in a one-dimensional array, as vectors, or as pairs that are repeated in every lane."""

    def __init__(self, context: Any, builder: Any, array: Any, value: Any, first: Any) -> None:
        """Make the numbers of an array argument from the number `first` on."""
        self.builder, self.lanes, self.align = builder, Lanes(array.dtype), array.dtype.bitwidth // 8
        self.base = context.make_array(array)(context, builder, value).data
        self.first = first

    def _at(self, offset: Any, size: int, llvm: Any) -> tuple[Any, Any]:
        """Return the pointers to the real and the imaginary part of a number of `size` reals a part."""
        b = self.builder
        index = b.mul(b.add(self.first, offset), ir.Constant(self.first.type, 2 * size))
        re = b.gep(self.base, [index])
        im = b.gep(re, [ir.Constant(index.type, size)])
        return b.bitcast(re, llvm.as_pointer()), b.bitcast(im, llvm.as_pointer())

    def vector(self, offset: Any) -> Vector:
        """Return a vector."""
        re, im = self._at(offset, self.lanes.width, self.lanes.llvm)
        return Vector(self.builder, self.builder.load(re, align=self.align), self.builder.load(im, align=self.align))

    def put(self, offset: Any, z: Vector) -> None:
        """Write a vector."""
        re, im = self._at(offset, self.lanes.width, self.lanes.llvm)
        self.builder.store(z.re, re, align=self.align)
        self.builder.store(z.im, im, align=self.align)

    def repeated(self, offset: Any) -> Vector:
        """Return a pair in every lane; nothing writes such numbers while a kernel runs."""
        parts = []
        for pointer in self._at(offset, 1, LLVM[self.lanes.dtype]):
            number = self.builder.load(pointer)
            number.set_metadata("invariant.load", self.builder.module.add_metadata([]))
            parts.append(splat(self.builder, number, self.lanes.llvm))
        return Vector(self.builder, *parts)


def _integers(first: Any, count: int) -> list[Any]:
    return [ir.Constant(first.type, i) for i in range(count)]


def _block(butterfly: Callable[..., list[Any]], radix: int) -> Any:
    """Make the intrinsic that applies a butterfly to entries at, at + step, … of a buffer."""

    @intrinsic
    def block(typingctx: Any, buffer: Any, at: Any, step: Any, constants: Any, first: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            memory = Memory(context, builder, buffer, args[0], args[1])
            table = Memory(context, builder, constants, args[3], args[4])
            offsets = [builder.mul(args[2], i) for i in _integers(args[2], radix)]
            turns = [table.repeated(i) for i in _integers(args[4], radix - 1)]
            for offset, z in zip(offsets, butterfly([memory.vector(o) for o in offsets], turns), strict=True):
                memory.put(offset, z)
            return context.get_dummy_value()

        return types.void(buffer, types.intp, types.intp, constants, types.intp), codegen

    return block


split_by_2, split_by_3, split_by_4, split_by_5, split_by_8 = (_block(split, radix) for radix in (2, 3, 4, 5, 8))
join_by_2, join_by_3, join_by_4, join_by_5, join_by_8 = (_block(join, radix) for radix in (2, 3, 4, 5, 8))


def _leaf(*, splits: bool, joins: bool) -> Any:
    """Make the intrinsic that splits a leaf, multiplies its values by a filter's, and joins them."""

    @intrinsic
    def leaf(typingctx: Any, buffer: Any, at: Any, constants: Any, first: Any, filters: Any, place: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            memory = Memory(context, builder, buffer, args[0], args[1])
            table = Memory(context, builder, constants, args[2], args[3])
            places = _integers(args[1], LEAF)
            turns = [table.repeated(i) for i in _integers(args[3], LEAF - 1)]
            values = [memory.vector(i) for i in places]
            if splits:
                values = split(values, turns)
            if splits and joins:
                # One filter for all lanes is an array of pairs, one for each lane an array of rows.
                spectrum = Memory(context, builder, filters, args[4], args[5])
                read = spectrum.repeated if filters.ndim == 1 else spectrum.vector
                values = [read(i) * z for i, z in zip(places, values, strict=True)]
            if joins:
                values = join(values, turns)
            for i, z in zip(places, values, strict=True):
                memory.put(i, z)
            return context.get_dummy_value()

        return types.void(buffer, types.intp, constants, types.intp, filters, types.intp), codegen

    return leaf


@intrinsic
def correlate_leaf(
    typingctx: Any, total: Any, x_buffer: Any, g_buffer: Any, at: Any, constants: Any, first: Any
) -> Any:
    """Split a leaf of each of two buffers, and add the products of their values, the first conjugated, to `total`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums, x, g = (Memory(context, builder, array, args[i], args[3]) for i, array in enumerate(sig.args[:3]))
        table = Memory(context, builder, constants, args[4], args[5])
        places = _integers(args[3], LEAF)
        turns = [table.repeated(i) for i in _integers(args[5], LEAF - 1)]
        x_values, g_values = (split([memory.vector(i) for i in places], turns) for memory in (x, g))
        for i, x_value, g_value in zip(places, x_values, g_values, strict=True):
            sums.put(i, sums.vector(i) + x_value.conjugate() * g_value)
        return context.get_dummy_value()

    return types.void(total, x_buffer, g_buffer, types.intp, constants, types.intp), codegen


convolve_leaf = _leaf(splits=True, joins=True)
split_leaf = _leaf(splits=True, joins=False)
join_leaf = _leaf(splits=False, joins=True)


@intrinsic
def split_reals(typingctx: Any, buffer: Any, at: Any, step: Any, constants: Any, x: Any) -> Any:
    """Split four real coefficients, and write entries at, at + step, … of a buffer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        memory = Memory(context, builder, buffer, args[0], args[1])
        table = Memory(context, builder, constants, args[3], ir.Constant(args[1].type, 0))
        turns = [table.repeated(i) for i in _integers(args[1], 3)]
        reals = [Vector(builder, builder.extract_value(args[4], i), None) for i in range(4)]
        for i, z in zip(_integers(args[2], 4), split(reals, turns), strict=True):
            memory.put(builder.mul(args[2], i), z)
        return context.get_dummy_value()

    return types.void(buffer, types.intp, types.intp, constants, x), codegen


@intrinsic
def join_reals(typingctx: Any, buffer: Any, at: Any, step: Any, constants: Any) -> Any:
    """Join entries at, at + step, … of a buffer, and return the real parts of the four coefficients, times 4."""
    reals = types.UniTuple(Lanes(buffer.dtype), 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        memory = Memory(context, builder, buffer, args[0], args[1])
        table = Memory(context, builder, constants, args[3], ir.Constant(args[1].type, 0))
        turns = [table.repeated(i) for i in _integers(args[1], 3)]
        values = [memory.vector(builder.mul(args[2], i)) for i in _integers(args[2], 4)]
        return context.make_tuple(builder, reals, [z.re for z in join(values, turns)])

    return reals(buffer, types.intp, types.intp, constants), codegen
