"""Hyena (arXiv 2302.10866), order 2: gated long convolutions whose filters are a small network of time.

With u = W x + b of 3 d channels, each convolved causally with 3 taps of its own and split into g0, g1 and v (b, n, d):

    y = W_o (g0 * (T(h) (g1 * v) + D * g1 * v)) + b_o

T(h) is the causal Toeplitz product with a filter h_c of `max_len` lags for each channel c, a head a channel. Lag t of
it, where features(t) = (t / (n-1), cos f t, -sin f t) for frequencies f = 2 pi / n * (1e-4 .. bands - 1) start a
trained table, is

    h_c[t] = (W4 sin(a sin(a sin(a features(t)))))_c exp(-|delta_c| t / (n-1))

with a linear map before each sine, one trained vector of 64 sine frequencies `a` shared by all three, and fixed rates
delta from 3.07 to 15.35 over the channels. The block is that of `residual`; there is no position embedding and no final
norm.

`hyena` is the configuration of the Toeplitz paper's experiments, the stand-alone default of the Hyena authors' code:
one band, whose frequency is nearly 0, and a = 1, so that initial filters are smooth. `hyena-tuned` takes the filters of
their language models (HazyResearch/safari, configs/experiment/pile/hyena.yaml): 33 features, a = 14. Those models also
have MLPs of width 2 d (`d_mlp`); both are compared with 4 d here, so that they differ in their filters only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn

import tmm_core
from tmm_core import streaming
from tmm_core.errors import InputError
from tmm_core.fields import Bounds, Count

from .comparison import BATCH, Comparison
from .flops import Flops, linear, long_convolution
from .residual import Mixer, ResidualConfig, ResidualModel, residual_flops

__all__ = ["Hyena", "HyenaConfig", "HyenaModel", "HyenaTuned", "HyenaTunedConfig"]

TAPS = 3


@dataclass(frozen=True, kw_only=True)
class HyenaConfig(ResidualConfig):
    """Describe a Hyena model as the Toeplitz paper's experiments configure it."""

    model_type: ClassVar[str] = "hyena"

    n_features: Annotated[int, Bounds(at_least=3)] = 3
    """Features of time that the filters are computed from: time, and two for each band."""
    filter_width: Count = 64
    """Hidden width of the filters' network."""
    sine_frequency: Annotated[float, Bounds(above=0)] = 1.0
    """What the filters' network multiplies before its sines, at first."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        if self.n_features % 2 == 0:
            raise InputError(f"n_features must be odd, time and two for each band, and is {self.n_features}")


@dataclass(frozen=True, kw_only=True)
class HyenaTunedConfig(HyenaConfig):
    """Describe a Hyena model with the filters of the Hyena authors' own language models."""

    model_type: ClassVar[str] = "hyena-tuned"

    n_features: Annotated[int, Bounds(at_least=3)] = 33
    """Features of time that the filters are computed from: time, and two for each band."""
    sine_frequency: Annotated[float, Bounds(above=0)] = 14.0
    """What the filters' network multiplies before its sines, at first."""


class ImplicitFilter(nn.Module):
    """The filters of all channels, (d, n), as a function of time."""

    decay: Tensor

    def __init__(self, config: HyenaConfig) -> None:
        """Make the network and its table of features."""
        super().__init__()
        n, width, bands = config.max_len, config.filter_width, (config.n_features - 1) // 2
        time = torch.linspace(0, 1, n)[:, None]
        phase = torch.arange(n)[:, None] * (2 * math.pi / n) * torch.linspace(1e-4, bands - 1, bands)
        self.features = nn.Parameter(torch.cat([time, phase.cos(), -phase.sin()], dim=1))  # (n, n_features)
        self.layers = nn.ModuleList(nn.Linear(size, width) for size in (config.n_features, width, width))
        self.frequency = nn.Parameter(torch.full((width,), float(config.sine_frequency)))
        self.out = nn.Linear(width, config.d_model, bias=False)
        slow, fast = math.log(100) / 1.5, math.log(100) / 0.3
        rates = torch.linspace(slow, fast, config.d_model)
        self.register_buffer("decay", torch.exp(-time * rates), persistent=False)  # (n, d)
        self.skip = nn.Parameter(torch.randn(config.d_model))

    def forward(self, n: int) -> Tensor:
        """Return the first `n` lags of every channel, (d, n); the skip connection D is added to lag 0."""
        x = self.features[:n]
        for layer in self.layers:
            x = torch.sin(self.frequency * layer(x))
        h = self.out(x) * self.decay[:n]  # (n, d)
        skip = nn.functional.pad(self.skip[None].to(h.dtype), (0, 0, 0, n - 1))
        return cast(Tensor, (h + skip).mT)


class HyenaMixer(Mixer):
    """The operator of order 2."""

    def __init__(self, config: HyenaConfig) -> None:
        """Make the layer."""
        super().__init__()
        d = config.d_model
        self.in_proj = nn.Linear(d, 3 * d)
        self.short = nn.Conv1d(3 * d, 3 * d, TAPS, groups=3 * d)
        self.filter = ImplicitFilter(config)
        self.out_proj = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens, of the shape of `x`."""
        u = nn.functional.pad(self.in_proj(x), (0, 0, TAPS - 1, 0))

        def product(v: Tensor) -> Tensor:
            return cast(Tensor, tmm_core.causal_toeplitz_matmul(self.filter(v.shape[1]), v)).to(v.dtype)

        return self._gated(u, product)

    def begin(self, batch_size: int, capacity: int) -> dict[str, Any]:
        """Plan the stream of the long convolution; the short one keeps its last inputs."""
        plan = streaming.stream_plan(self.filter(min(capacity, len(self.filter.features))), capacity)
        d = self.out_proj.out_features
        dtype = self.in_proj.weight.dtype
        past = torch.zeros(batch_size, TAPS - 1, 3 * d, dtype=dtype, device=self.in_proj.weight.device)
        return {"plan": plan, "long": streaming.stream_init(plan, (batch_size,), d, dtype=dtype), "short": past}

    def extend(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """Return the mixed next tokens."""
        u = torch.cat([cache["short"], self.in_proj(x)], dim=1)
        cache["short"] = u[:, 1 - TAPS :].clone()

        def product(v: Tensor) -> Tensor:
            if v.shape[1] == 1:  # a step of a stream costs less than a block of one
                y, cache["long"] = streaming.stream_step(cache["plan"], cache["long"], v[:, 0])
                return cast(Tensor, y)[:, None]
            y, cache["long"] = streaming.stream_prefill(cache["plan"], cache["long"], v)
            return cast(Tensor, y)

        return self._gated(u, product)

    def select(self, cache: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        """Return a cache of rows, of the stream too."""
        return super().select(cache, rows) | {"long": streaming.stream_reorder(cache["long"], rows)}

    def _gated(self, u: Tensor, product: Any) -> Tensor:
        """Return the output of (b, t + 2, 3 d) inputs, two of them past, given the long convolution."""
        g0, g1, v = self.short(u.mT).mT.chunk(3, dim=-1)  # (b, t, d) each
        return cast(Tensor, self.out_proj(g0 * product((g1 * v).contiguous())))


class HyenaModel(ResidualModel):
    """The language model."""

    def __init__(self, config: HyenaConfig) -> None:
        """Make the model with PyTorch's initial parameters."""
        super().__init__(config, HyenaMixer)


class Hyena(Comparison[HyenaConfig]):
    """Hyena as the experiments of the Toeplitz paper configure it."""

    title = "Hyena"
    has_toeplitz_products = True
    config_class = HyenaConfig
    model_class = HyenaModel

    def flops(self, config: HyenaConfig, n: int, batch: int = BATCH) -> Flops:
        """Return the operations a token of texts of `n` tokens, `batch` of them at a time, which share the filters."""
        d, width = config.d_model, config.filter_width
        network = linear(width * (config.n_features + 2 * width + d)) * (1 / batch)
        mixer = linear(4 * d * d + TAPS * 3 * d) + network + long_convolution(d, n, batch)
        return residual_flops(config, mixer)


class HyenaTuned(Hyena):
    """Hyena with the filters of its authors' language models."""

    title = "Hyena, tuned"
    config_class = HyenaTunedConfig
