"""Numba intrinsics for the computation within registers: they load vectors from a buffer, compute, and store them.

A buffer of N complex vectors is a one-dimensional array of 2 N L real numbers, for L lanes of a register: entry i is L
real parts followed by L imaginary parts. An intrinsic is code without loops or branches; `passes` has the loops.
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
    """A complex vector in the LLVM code that is being generated, with the operations that `butterflies` use."""

    def __init__(self, builder: Any, re: Any, im: Any) -> None:
        """Hold `re + i im`, two LLVM values; `im` is None where the imaginary part is zero."""
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
        """Return the product; at least one factor has an imaginary part."""
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
        vector = ir.Constant(self.re.type, [factor] * self.re.type.count)
        return Vector(self.builder, self._op("fmul", self.re, vector), self._op("fmul", self.im, vector))


class Memory:
    """A one-dimensional array of complex numbers, read as vectors, or as scalars that are repeated in every lane."""

    def __init__(self, context: Any, builder: Any, array: Any, value: Any, first: Any) -> None:
        """Read and write the array argument `value` from complex number `first` on."""
        self.builder, self.lanes, self.align = builder, Lanes(array.dtype), array.dtype.bitwidth // 8
        self.base = context.make_array(array)(context, builder, value).data
        self.first = first

    def _at(self, offset: Any, size: int, llvm: Any) -> tuple[Any, Any]:
        """Return pointers to the real and imaginary part of number `first + offset`; each part has `size` reals."""
        b = self.builder
        index = b.mul(b.add(self.first, offset), ir.Constant(self.first.type, 2 * size))
        re = b.gep(self.base, [index])
        im = b.gep(re, [ir.Constant(index.type, size)])
        return b.bitcast(re, llvm.as_pointer()), b.bitcast(im, llvm.as_pointer())

    def load(self, offset: Any) -> Vector:
        """Return a vector."""
        re, im = self._at(offset, self.lanes.width, self.lanes.llvm)
        return Vector(self.builder, self.builder.load(re, align=self.align), self.builder.load(im, align=self.align))

    def store(self, offset: Any, z: Vector) -> None:
        """Write a vector."""
        re, im = self._at(offset, self.lanes.width, self.lanes.llvm)
        self.builder.store(z.re, re, align=self.align)
        self.builder.store(z.im, im, align=self.align)

    def broadcast(self, offset: Any) -> Vector:
        """Return a scalar in every lane; no kernel writes to such arrays, so LLVM may move the load."""
        parts = []
        for pointer in self._at(offset, 1, LLVM[self.lanes.dtype]):
            number = self.builder.load(pointer)
            number.set_metadata("invariant.load", self.builder.module.add_metadata([]))
            parts.append(splat(self.builder, number, self.lanes.llvm))
        return Vector(self.builder, *parts)


def _integers(first: Any, count: int) -> list[Any]:
    return [ir.Constant(first.type, i) for i in range(count)]


def _butterfly(function: Callable[..., list[Any]], radix: int) -> Any:
    """Return an intrinsic that applies `function` to the entries `at + step * k`, k < radix, of a buffer.

    Its constants are the numbers from `first` on of the array `constants`.
    """

    @intrinsic
    def block(typingctx: Any, buffer: Any, at: Any, step: Any, constants: Any, first: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            memory = Memory(context, builder, buffer, args[0], args[1])
            table = Memory(context, builder, constants, args[3], args[4])
            offsets = [builder.mul(args[2], i) for i in _integers(args[2], radix)]
            twiddles = [table.broadcast(i) for i in _integers(args[4], radix - 1)]
            for offset, z in zip(offsets, function([memory.load(o) for o in offsets], twiddles), strict=True):
                memory.store(offset, z)
            return context.get_dummy_value()

        return types.void(buffer, types.intp, types.intp, constants, types.intp), codegen

    return block


split_by_2, split_by_3, split_by_4, split_by_5, split_by_8 = (_butterfly(split, radix) for radix in (2, 3, 4, 5, 8))
join_by_2, join_by_3, join_by_4, join_by_5, join_by_8 = (_butterfly(join, radix) for radix in (2, 3, 4, 5, 8))


def _leaf(*, splits: bool, joins: bool) -> Any:
    """Return an intrinsic that splits a leaf, multiplies its values by those of a filter, and joins them.

    Only splits it without `joins`, only joins it without `splits`; there is no filter then.
    """

    @intrinsic
    def leaf(typingctx: Any, buffer: Any, at: Any, constants: Any, first: Any, filters: Any, place: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            memory = Memory(context, builder, buffer, args[0], args[1])
            table = Memory(context, builder, constants, args[2], args[3])
            offsets = _integers(args[1], LEAF)
            twiddles = [table.broadcast(i) for i in _integers(args[3], LEAF - 1)]
            values = [memory.load(i) for i in offsets]
            if splits:
                values = split(values, twiddles)
            if splits and joins:
                # A filter for all lanes is a one-dimensional array; rows have a filter for each lane.
                spectrum = Memory(context, builder, filters, args[4], args[5])
                read = spectrum.broadcast if filters.ndim == 1 else spectrum.load
                values = [read(i) * z for i, z in zip(offsets, values, strict=True)]
            if joins:
                values = join(values, twiddles)
            for i, z in zip(offsets, values, strict=True):
                memory.store(i, z)
            return context.get_dummy_value()

        return types.void(buffer, types.intp, constants, types.intp, filters, types.intp), codegen

    return leaf


@intrinsic
def correlate_leaf(
    typingctx: Any, total: Any, x_buffer: Any, g_buffer: Any, at: Any, constants: Any, first: Any
) -> Any:
    """Split a leaf of each of two buffers; add `conj(x) * g`, for their values x and g, to `total`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        sums, x, g = (Memory(context, builder, array, args[i], args[3]) for i, array in enumerate(sig.args[:3]))
        table = Memory(context, builder, constants, args[4], args[5])
        offsets = _integers(args[3], LEAF)
        twiddles = [table.broadcast(i) for i in _integers(args[5], LEAF - 1)]
        x_values, g_values = (split([memory.load(i) for i in offsets], twiddles) for memory in (x, g))
        for i, x_value, g_value in zip(offsets, x_values, g_values, strict=True):
            sums.store(i, sums.load(i) + x_value.conjugate() * g_value)
        return context.get_dummy_value()

    return types.void(total, x_buffer, g_buffer, types.intp, constants, types.intp), codegen


convolve_leaf = _leaf(splits=True, joins=True)
split_leaf = _leaf(splits=True, joins=False)
join_leaf = _leaf(splits=False, joins=True)


@intrinsic
def split_reals(typingctx: Any, buffer: Any, at: Any, step: Any, constants: Any, x: Any) -> Any:
    """Split a polynomial of four real coefficients, and store its values at the entries `at + step * k` of a buffer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        memory = Memory(context, builder, buffer, args[0], args[1])
        table = Memory(context, builder, constants, args[3], ir.Constant(args[1].type, 0))
        twiddles = [table.broadcast(i) for i in _integers(args[1], 3)]
        reals = [Vector(builder, builder.extract_value(args[4], i), None) for i in range(4)]
        for i, z in zip(_integers(args[2], 4), split(reals, twiddles), strict=True):
            memory.store(builder.mul(args[2], i), z)
        return context.get_dummy_value()

    return types.void(buffer, types.intp, types.intp, constants, x), codegen


@intrinsic
def join_reals(typingctx: Any, buffer: Any, at: Any, step: Any, constants: Any) -> Any:
    """Join the entries `at + step * k` of a buffer; return the real parts of the four coefficients, times 4."""
    reals = types.UniTuple(Lanes(buffer.dtype), 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        memory = Memory(context, builder, buffer, args[0], args[1])
        table = Memory(context, builder, constants, args[3], ir.Constant(args[1].type, 0))
        twiddles = [table.broadcast(i) for i in _integers(args[1], 3)]
        values = [memory.load(builder.mul(args[2], i)) for i in _integers(args[2], 4)]
        return context.make_tuple(builder, reals, [z.re for z in join(values, twiddles)])

    return reals(buffer, types.intp, types.intp, constants), codegen
