"""CuPy: an engine on cuFFT for arrays on NVIDIA GPUs."""

from tmm_core.backend import Backend, Engine

__all__ = ["backend"]


def _engine() -> Engine:
    from .engine import CupyEngine
    from .gpu import Gpu

    return CupyEngine(Gpu())


backend = Backend(
    name="cupy",
    requires=("cupy",),
    serves="CuPy arrays of every floating and complex dtype, on one GPU",
    load_engine=_engine,
    ranks={"cupy": 10, "dask": 10},
)
