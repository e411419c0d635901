"""Numba: an engine for CPUs, transforms in SIMD registers by kernels that LLVM compiles for this very machine."""

import functools
import math

from tmm_core.backend import Backend, Engine, Request

__all__ = ["backend"]

# Microseconds of the product, on two cores, float32 as (batch, n, heads, channels of a head), as many lags as times:
#     NumPy arrays                  numba  definition     Torch tensors                 numba  torch
#     (1, 16, 1, 8)                   367         247     (1, 16, 1, 8)                   469    453
#     (8, 32, 4, 128)                 353         300     (8, 64, 8, 64)                 1055   1483
#     (8, 64, 4, 128)                 545        1692     (8, 128, 8, 16)                 889   1535
#     (8, 128, 8, 16)                 983         959     (8, 512, 8, 16)                2255   6408
#     (4, 256, 8, 16)                1110        1936     (8, 1024, 4, 128)             14864  51464
#
#     compiled JAX programs         numba         jax     jnp.fft, padded to twice the length
#     (1, 16, 1, 8)                   236          50          47
#     (1, 64, 1, 64)                  229         148          93
#     (4, 64, 1, 64)                  244         224         179
#     (1, 128, 4, 64)                 479         592         391
#     (2, 64, 4, 128)                 449         925         729
#     (4, 256, 8, 16)                 572        2697        1293
#     (8, 512, 8, 16)                1225       19476       11195
#     (8, 1024, 1, 512)              5160      108636       83591
#
# NumPy arrays with one filter, on one core: (64, 1) 119 and 76, (96, 64) 172 and 130, (8, 64, 512) 483 and 511,
# (8, 96, 64) 220 and 223, (2, 128, 64) 174 and 198, (8, 128, 128) 301 and 518. Some 120 are what any call takes here,
# and 60 what it takes there.
RANK = 20
SHORT_OF_NUMPY, SHORT_OF_JAX = 96, 128
FEW_OF_NUMPY, FEW_OF_JAX = 1 << 18, 1 << 14
"""Signals so short, with so few entries, are left to direct sums in the arrays' own library."""


def _rank_unless_small(request: Request, *, short: int, few: int) -> int | None:
    shape = request.shape
    return None if len(shape) > 1 and shape[-2] <= short and math.prod(shape) < few else RANK


def _rank_for_jax(request: Request) -> int | None:
    if not all(isinstance(size, int) for size in request.shape):
        return None  # symbols, of a program that is exported: it can take no function of this process along
    # Documents are many small operations of JAX's, which take seconds to compile.
    return RANK if request.segments else _rank_unless_small(request, short=SHORT_OF_JAX, few=FEW_OF_JAX)


def _engine() -> Engine:
    import ml_dtypes  # noqa: F401  (without it bfloat16 has no name in NumPy, and half of what is trained is bfloat16)

    from .engine import NumbaEngine

    return NumbaEngine()


backend = Backend(
    name="numba",
    requires=("numba", "ml_dtypes"),
    serves="arrays on the CPU of every real floating dtype",
    load_engine=_engine,
    ranks={
        "numpy": functools.partial(_rank_unless_small, short=SHORT_OF_NUMPY, few=FEW_OF_NUMPY),
        "torch": RANK,
        "jax": _rank_for_jax,
        "dask": RANK,
    },
)
