"""Token-mixing layers of every kind, and what comes out of them by definition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .. import streaming
from .._arrays.exchange import Array
from ..streaming import StreamPlan, StreamState
from .fuzz.cases import Case
from .fuzz.definition import expected
from .libraries import Library
from .oracles import Numbers, normal

__all__ = ["LEAF", "Layer", "layers"]

LEAF = 4
"""Of most laws: lengths of some 20 tokens then meet tiles of three sizes."""


@dataclass(frozen=True)
class Layer:
    """A token-mixing layer, and signals of some tokens that go through it."""

    w: Numbers
    x: Numbers
    bias: Numbers | None = None
    softplus: bool = False
    mean: bool = False
    dtype: str = "float32"

    @property
    def n(self) -> int:
        """How many tokens there are."""
        return int(self.x.shape[-2])

    def arrays(self, library: Library) -> tuple[Array, Array, Array | None]:
        """Return lags, signals and bias in a library."""
        bias = None if self.bias is None else library.asarray(self.bias, self.dtype)
        return library.asarray(self.w, self.dtype), library.asarray(self.x, self.dtype), bias

    def plan(self, library: Library, backend: str, capacity: int | None = None, leaf: int | None = LEAF) -> StreamPlan:
        """Return the plan of a backend's streams, for as many tokens as there are unless a capacity is given."""
        w, _, bias = self.arrays(library)
        return streaming.stream_plan(
            w, capacity or self.n, bias=bias, softplus=self.softplus, mean=self.mean, backend=backend, leaf=leaf
        )

    def begin(self, plan: StreamPlan, library: Library) -> StreamState:
        """Return a stream without tokens, of as many rows and channels as the signals."""
        x = self.arrays(library)[1]
        return streaming.stream_init(plan, tuple(x.shape[:-2]), x.shape[-1], dtype=x.dtype)

    def expected(self) -> tuple[Numbers, Numbers]:
        """Return the layer's outputs by definition, NaN where that is right, and a bound on the error of each."""
        arrays = {"w": self.w, "x": self.x} | ({} if self.bias is None else {"bias": self.bias})
        options = {"capacity": self.n, "softplus": self.softplus, "mean": self.mean}
        found = expected(Case("stream", "numpy", arrays, dict.fromkeys(arrays, self.dtype), options=options))
        return np.where(found.nans, np.nan, found.values), found.bound


def layers(dtype: str, n: int) -> dict[str, Layer]:
    """Return a layer of every kind: heads, kernels, bands, depthwise, with what is put around products."""
    rng = np.random.default_rng(20)

    def draw(*shape: int) -> Numbers:
        return normal(rng, *shape, dtype=dtype)

    found = {
        "one filter": Layer(draw(n), draw(n, 3), draw(n)),
        "kernel": Layer(draw(2, 3, n), draw(2, n, 8), draw(2, n + 2)),
        "banded kernel": Layer(draw(2, 2, 5), draw(2, 1, n, 4)),
        "depthwise, three lags": Layer(draw(4, 3), draw(n, 4)),
        "one lag": Layer(draw(1, 1), draw(n, 2), draw(1, n)),
        "unused lags": Layer(draw(1, n + 9), draw(n, 2)),
    }
    if not dtype.startswith("complex"):
        found["mean"] = Layer(draw(2, n), draw(3, n, 4), draw(2, n), softplus=True, mean=True)
        found["banded mean"] = Layer(draw(2, 3), draw(n, 4), softplus=True, mean=True)
    return {name: replace(layer, dtype=dtype) for name, layer in found.items()}
