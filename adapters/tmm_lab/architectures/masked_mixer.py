"""The masked mixer (arXiv 2409.01482): tokens are mixed by a trained matrix, dense below its diagonal.

With channels c, positions t and s, a bias a position, and kernel size m over neighbouring channels, padded with zeros,

    y[t, c] = bias[t] + sum_{s<=t} sum_{i<m} W[t, s, i] x[s, c + i - (m-1)//2]

The flat layer shares W over all channels. With heads, x is projected (d -> d) into h heads of d/h channels, each of
which has its own W and bias, and the concatenated heads are projected back. A TMM's matrix is this one with W[t, s] a
function of t - s. The block is that of `residual`: mixing comes first, unlike the paper's TMM; no final norm. Weights W
are (h, n, n, m), and what they hold above the diagonal is never read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmm_core.fields import Count, Size

from .comparison import BATCH, Comparison, check_heads
from .flops import Flops, linear
from .residual import Mixer, ResidualConfig, ResidualModel, residual_flops

__all__ = ["MaskedMixer", "MaskedMixerConfig", "MaskedMixerModel"]


@dataclass(frozen=True, kw_only=True)
class MaskedMixerConfig(ResidualConfig):
    """Describe a masked mixer."""

    model_type: ClassVar[str] = "masked-mixer"

    n_heads: Size = 0
    """Matrices a layer, each over `d_model / n_heads` channels; 0 is the flat layer, one matrix and no projections."""
    kernel_size: Count = 1
    """Neighbouring channels that each matrix reads."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        check_heads(self.heads, self.d_model)

    @property
    def heads(self) -> int:
        """Matrices a layer: the flat layer has one."""
        return max(self.n_heads, 1)


class MaskedMixing(Mixer):
    """Products with lower-triangular matrices."""

    def __init__(self, config: MaskedMixerConfig) -> None:
        """Make the layer, whose weights are uniform in +-1 / sqrt(n m), as those of a convolution over n channels."""
        super().__init__()
        d, n, h, m = config.d_model, config.max_len, config.heads, config.kernel_size
        bound = 1 / math.sqrt(n * m)
        self.weight = nn.Parameter(torch.empty(h, n, n, m).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(h, n).uniform_(-bound, bound))
        self.in_proj = nn.Linear(d, d) if config.n_heads else nn.Identity()
        self.out_proj = nn.Linear(d, d) if config.n_heads else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens, of the shape of `x`."""
        return self.extend(x, self.begin(len(x), x.shape[1]))

    def begin(self, batch_size: int, capacity: int) -> dict[str, Any]:
        """Return the inputs of no tokens, (b, h, 0, d/h), before the matrix: it has no smaller state."""
        return {"inputs": None}

    def extend(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """Return the mixed next tokens: O(n d) each."""
        h, _, _, m = self.weight.shape
        x = self.in_proj(x).view(*x.shape[:2], h, -1).transpose(1, 2)  # (b, h, t, d/h)
        if cache["inputs"] is not None:
            x = torch.cat([cache["inputs"], x], dim=2)  # (b, h, n, d/h)
        begin, (n, width) = 0 if cache["inputs"] is None else cache["inputs"].shape[2], x.shape[2:]
        cache["inputs"] = x
        x = F.pad(x, ((m - 1) // 2, m // 2))
        y = self.bias[:, begin:n, None].to(x.dtype)
        for i in range(m):
            y = y + self.weight[:, begin:n, :n, i].tril(begin) @ x[..., i : i + width]
        return cast(Tensor, self.out_proj(y.transpose(1, 2).flatten(2)))  # (b, t, d)


class MaskedMixerModel(ResidualModel):
    """The language model."""

    def __init__(self, config: MaskedMixerConfig) -> None:
        """Make the model with initial parameters."""
        super().__init__(config, MaskedMixing)


class MaskedMixer(Comparison[MaskedMixerConfig]):
    """The masked mixer."""

    title = "masked mixer"
    config_class = MaskedMixerConfig
    model_class = MaskedMixerModel

    def flops(self, config: MaskedMixerConfig, n: int, batch: int = BATCH) -> Flops:
        """Return the operations a token of texts of `n` tokens; the square of weights counts whole."""
        d = config.d_model
        projections = 2 * d * d if config.n_heads else 0
        return residual_flops(config, linear(config.kernel_size * n * d + projections))
