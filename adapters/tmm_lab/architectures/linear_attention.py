"""Linear attention: a kernel of features in place of the softmax, so that what came before is a sum of fixed size.

For each of h heads of e = d/h channels, with q, k, v (n, e) linear in x, and features phi, psi > 0,

    y_t = (sum_{s<=t} v_s psi(k_s)^T) phi(q_t) / (psi(k_1) + ... + psi(k_t)) . phi(q_t)

computed in chunks of 64 tokens: those before the chunk by their sum, (e, e + 1), those inside it by a masked square.
Heads are concatenated and projected. Sums are of float32 or wider.

`features="elu"`: phi = psi = elu + 1 (Katharopoulos et al., arXiv 2006.16236), which neither overflows nor vanishes.
`features="exp"`: the Toeplitz paper's experiments, by linear-attention-transformer: phi = softmax / sqrt(e) over the
channels, psi = exp, which is not normalised and overflows, and a denominator of at least 1e-3.

The rest is that library's model as those experiments configure it, with its residuals: the block of `residual`, an
embedding of positions that is the sum of one of t // 128 and one of t mod 128, a final norm, a bias of the output
projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmm_core.fields import Count

from .comparison import BATCH, Comparison, ComparisonConfig, check_heads
from .flops import Flops, linear
from .residual import Mixer, ResidualConfig, ResidualModel, residual_flops

__all__ = ["LinearAttention", "LinearAttentionConfig", "LinearAttentionModel", "attend"]

CHUNK = 64
"""Tokens of a chunk."""

COLUMNS = 128
"""Positions that share a row of the position table."""


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(ResidualConfig):
    """Describe a model of linear attention."""

    model_type: ClassVar[str] = "linear-attention"

    n_heads: Count = 4
    """Heads, each over `d_model / n_heads` channels."""
    features: Literal["elu", "exp"] = "elu"
    """Features of queries and keys: elu + 1, or those of the paper's experiments, whose exp(k) is not normalised."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        check_heads(self.n_heads, self.d_model)


class Attention(Mixer):
    """Attention by sums of features."""

    def __init__(self, config: LinearAttentionConfig) -> None:
        """Make the layer."""
        super().__init__()
        d = config.d_model
        self.heads, self.features = config.n_heads, config.features
        self.query, self.key, self.value = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.out_proj = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens, of the shape of `x`."""
        return self.extend(x, self.begin(len(x), x.shape[1]))

    def begin(self, batch_size: int, capacity: int) -> dict[str, Any]:
        """Return the sums of no tokens, (b, h, e, e + 1)."""
        weight, e = self.value.weight, self.value.out_features // self.heads
        return {"sums": weight.new_zeros(batch_size, self.heads, e, e + 1, dtype=_wide(weight.dtype))}

    def extend(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """Return the mixed next tokens."""
        q, k, v = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))  # (b, h, t, e)
        least = 1e-6
        if self.features == "elu":
            q, k = F.elu(q) + 1, F.elu(k) + 1
        else:
            q, k, least = q.softmax(-1) / math.sqrt(q.shape[-1]), k.exp(), 1e-3
        with torch.autocast(x.device.type, enabled=False):
            y, cache["sums"] = attend(q, k, v, cache["sums"], least=least)
        return cast(Tensor, self.out_proj(y.transpose(1, 2).flatten(2).to(x.dtype)))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2).to(_wide(x.dtype))


def attend(q: Tensor, k: Tensor, v: Tensor, sums: Tensor, *, least: float) -> tuple[Tensor, Tensor]:
    """Return what features of queries read of values by features of keys, and the sums after them.

    Parameters
    ----------
    q, k, v : tensors, (b, h, n, e)
        Positive features of queries and keys, and values.
    sums : tensor, (b, h, e, e + 1)
        Of `k v^T`, and of `k` in the last column, over the tokens before.
    least : float
        What denominators are at least.

    Returns
    -------
    y : tensor, (b, h, n, e)
        The weighted means.
    sums : tensor, (b, h, e, e + 1)
        With these tokens.

    Notes
    -----
    O(n e (e + chunk)) time and memory for n e / chunk sums of e numbers. Error: sums of positive terms, rounded n/64 +
    64 times.
    """
    n, e = q.shape[-2:]
    chunk = min(CHUNK, n)
    v = F.pad(v, (0, 1), value=1.0)  # the last column sums the weights
    b, h, m = *q.shape[:2], -(-n // chunk)
    q, k, v = (F.pad(a, (0, 0, 0, m * chunk - n)).view(b, h, m, chunk, -1) for a in (q, k, v))
    totals = torch.cat([sums[:, :, None], k.mT @ v], dim=2).cumsum(2)  # (b, h, m + 1, e, e + 1)
    y = ((q @ k.mT).tril() @ v + q @ totals[:, :, :-1]).flatten(2, 3)[:, :, :n]  # (b, h, n, e + 1)
    return y[..., :e] / y[..., e:].clamp(min=least), totals[:, :, -1].clone()  # a view keeps all sums


class AxialPositions(nn.Module):
    """The sum of an embedding of a position's row and one of its column."""

    def __init__(self, config: ComparisonConfig) -> None:
        """Make two tables that reach as far as the context."""
        super().__init__()
        self.rows = nn.Embedding(-(-config.max_len // COLUMNS), config.d_model)
        self.columns = nn.Embedding(COLUMNS, config.d_model)

    def forward(self, positions: Tensor) -> Tensor:
        """Return the embedding, (n, d), of positions (n,)."""
        return cast(Tensor, self.rows(positions // COLUMNS) + self.columns(positions % COLUMNS))


class LinearAttentionModel(ResidualModel):
    """The language model."""

    def __init__(self, config: LinearAttentionConfig) -> None:
        """Make the model with PyTorch's initial parameters."""
        super().__init__(
            config,
            Attention,
            positions=AxialPositions(config),
            final_norm=True,
            head_bias=True,
        )


class LinearAttention(Comparison[LinearAttentionConfig]):
    """Linear attention."""

    title = "linear attention"
    config_class = LinearAttentionConfig
    model_class = LinearAttentionModel

    def flops(self, config: LinearAttentionConfig, n: int, batch: int = BATCH) -> Flops:
        """Return the operations a token of texts of `n` tokens."""
        d = config.d_model
        e, chunk = d // config.n_heads, min(CHUNK, n)
        padded = -(-n // chunk) * chunk / n
        attention = linear(d * (2 * (e + 1)) + d * chunk + config.n_heads * (e + 1) * chunk) * padded
        return residual_flops(config, linear(4 * d * d) + attention)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums are computed in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
