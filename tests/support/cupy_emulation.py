"""A stand-in for CuPy on NumPy arrays: kernels of its form are compiled for the CPU, and plans follow their layouts.

So the very sources of the kernels run, and all calls around them, where there is no GPU, but a compiler of C++.
"""

import ctypes
import functools
import math
import re
import shutil
import subprocess
import tempfile
import types
from pathlib import Path

import numpy as np

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

TYPES = {
    "bool": "bool", "int32": "int", "int64": "long long", "float16": "_Float16", "float32": "float",
    "float64": "double", "complex64": "complex<float>", "complex128": "complex<double>",
}  # fmt: skip

HEAD = """
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#define __device__
using namespace std;

inline void sincospif(float a, float* s, float* c) { *s = float(sin(M_PI * a)); *c = float(cos(M_PI * a)); }
inline void sincospi(double a, double* s, double* c) { *s = sin(M_PI * a); *c = cos(M_PI * a); }

static ptrdiff_t offset(ptrdiff_t i, ptrdiff_t ndim, const ptrdiff_t* shape, const ptrdiff_t* strides) {
    ptrdiff_t bytes = 0;
    for (ptrdiff_t axis = ndim; axis--; i /= shape[axis]) bytes += i % shape[axis] * strides[axis];
    return bytes;
}

template <typename T, int N> struct Raw {
    char* data;
    const ptrdiff_t *shape_, *strides;
    const ptrdiff_t* shape() const { return shape_; }
    T& operator[](ptrdiff_t i) const { return *reinterpret_cast<T*>(data + offset(i, N, shape_, strides)); }
    T& operator[](const ptrdiff_t (&at)[N]) const {
        ptrdiff_t bytes = 0;
        for (int axis = 0; axis < N; ++axis) bytes += at[axis] * strides[axis];
        return *reinterpret_cast<T*>(data + bytes);
    }
};
"""


class ElementwiseKernel:
    """See `cupy.ElementwiseKernel`."""

    def __init__(self, inputs, outputs, operation, *, name, preamble):
        given, made = ([p.split() for p in text.split(",")] for text in (inputs, outputs))
        # Of each: raw or not, type, name, written or not.
        self.params = [(p[0] == "raw", p[-2], p[-1], p in made) for p in given + made]
        self.operation, self.name, self.preamble = operation, name, preamble

    def __call__(self, *arguments):
        assert len(arguments) == len(self.params), f"{self.name} takes {len(self.params)} arguments"
        known, arrays = {}, []
        for (_, kind, name, written), value in zip(self.params, arguments, strict=True):
            array = np.asarray(value, None if kind not in TYPES or isinstance(value, np.ndarray) else kind)
            dtype = known.setdefault(kind, array.dtype.name) if kind not in TYPES else kind
            assert array.dtype.name == dtype, f"{self.name}: {name} is {array.dtype} and not {dtype}"
            assert not written or isinstance(value, np.ndarray)
            arrays.append(array)
        plain = [a for a, p in zip(arrays, self.params, strict=True) if not p[0]]
        shape = np.broadcast_shapes(*(a.shape for a in plain))
        for a, (raw, _, name, written) in zip(arrays, self.params, strict=True):
            assert raw or not written or a.shape == shape, f"{self.name}: {name} is {a.shape} and not {shape}"
        views = [a if p[0] else np.broadcast_to(a, shape) for a, p in zip(arrays, self.params, strict=True)]
        ndims = tuple(a.ndim for a, p in zip(arrays, self.params, strict=True) if p[0])
        run = self.compiled(tuple(sorted(known.items())), ndims)
        data = (ctypes.c_void_p * len(views))(*(a.ctypes.data for a in views))
        tables = [(ctypes.c_ssize_t * max(1, a.ndim))(*sizes) for a in views for sizes in (a.shape, a.strides)]
        pointers = (ctypes.POINTER(ctypes.c_ssize_t) * len(tables))(
            *(ctypes.cast(t, ctypes.POINTER(ctypes.c_ssize_t)) for t in tables)
        )
        run(ctypes.c_ssize_t(math.prod(shape)), ctypes.c_ssize_t(len(shape)), data, pointers)

    @functools.cache  # noqa: B019  (kernels live as long as the process)
    def compiled(self, known, ndims):
        types_of, ranks, lines = {**TYPES, **{kind: TYPES[name] for kind, name in known}}, list(ndims), []
        for at, (raw, kind, name, written) in enumerate(self.params):
            kind = types_of[kind]
            if raw:
                lines.append(
                    f"Raw<{kind}, {ranks.pop(0)}> {name}{{data[{at}], tables[{2 * at}], tables[{2 * at + 1}]}};"
                )
            else:
                where = f"data[{at}] + offset(i, ndim, tables[{2 * at}], tables[{2 * at + 1}])"
                lines.append(f"{'' if written else 'const '}{kind}& {name} = *reinterpret_cast<{kind}*>({where});")
        names = "".join(f"typedef {TYPES[name]} {kind};\n" for kind, name in known)
        code = f"""{HEAD}{names}{self.preamble}
extern "C" void run(ptrdiff_t size, ptrdiff_t ndim, char** data, const ptrdiff_t** tables) {{
    for (ptrdiff_t i = 0; i < size; ++i) {{ {" ".join(lines)} {self.operation}; }}
}}"""
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "kernel.so")
            options = ["-std=c++17", "-O0", "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", str(library)]
            done = subprocess.run([COMPILER, *options], input=code, text=True, capture_output=True, check=False)
            assert done.returncode == 0, f"{self.name} {known}: {done.stderr}"
            return ctypes.CDLL(str(library)).run


class ReductionKernel:
    """See `cupy.ReductionKernel`; what it adds up is added by NumPy."""

    def __init__(self, inputs, outputs, mapped, reduced, last, identity, *, name, preamble):
        assert (reduced, re.sub(r"\s", "", last), identity) == ("a + b", "y=a", "0")
        self.kernel = ElementwiseKernel(inputs, outputs, f"y = {mapped}", name=name, preamble=preamble)

    def __call__(self, *arrays, axis):
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        terms = np.empty(shape, arrays[0].dtype)
        self.kernel(*arrays, terms)
        return terms.sum(axis)


class PlanNd:
    """See `cupy.cuda.cufft.PlanNd`: complex transforms along one axis, in any advanced data layout of cuFFT."""

    made = 0

    def __init__(self, shape, inembed, istride, idist, onembed, ostride, odist, kind, batch, order, axis, last):
        assert (inembed, istride, idist) == (onembed, ostride, odist)
        assert inembed is not None, "cuFFT would ignore the strides"
        self.at = np.arange(batch)[:, None] * idist + np.arange(*shape) * istride
        self.dtype = {0: np.complex64, 1: np.complex128}[kind]
        size = self.at.size * np.dtype(self.dtype).itemsize
        self.work_area = types.SimpleNamespace(mem=types.SimpleNamespace(size=size))
        PlanNd.made += 1

    def fft(self, a, out, direction):
        assert a is out
        assert a.dtype == self.dtype
        assert a.flags.c_contiguous
        flat = a.reshape(-1)
        transform = {-1: np.fft.fft, 1: functools.partial(np.fft.ifft, norm="forward")}[direction]
        flat[self.at] = transform(flat[self.at], axis=-1)


class CuPy:
    """What `tmm_backends._cupy.gpu` uses of CuPy; all else is NumPy's."""

    ElementwiseKernel, ReductionKernel = ElementwiseKernel, ReductionKernel
    cuda = types.SimpleNamespace(
        cufft=types.SimpleNamespace(PlanNd=PlanNd, CUFFT_C2C=0, CUFFT_Z2Z=1),
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
        get_current_stream=lambda: types.SimpleNamespace(ptr=0),
        Device=lambda number: types.SimpleNamespace(mem_info=(0, 1 << 30)),
    )

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def empty(shape, dtype):
        array = np.empty(shape, dtype)
        array.view(np.uint8).fill(0xFF) if array.size else None  # NaN, for what is read before it is written
        return array
