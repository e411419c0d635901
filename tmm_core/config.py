"""The configuration of a Toeplitz MLP Mixer language model: one frozen dataclass, importable without any framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from .errors import InputError
from .fields import Bounds, Configuration, Count, Size

__all__ = ["TMMConfig"]


@dataclass(frozen=True, kw_only=True)
class TMMConfig(Configuration):
    """Describe one model completely: equal configurations have equal parameter names and shapes.

    The defaults of the fields are the paper's block (arXiv 2605.06683): per block `x += MLP(norm(x))`, then
    `x += mix(norm(x))`, with LayerNorm and SiLU. `preset` gives whole models.

    Raises
    ------
    TypeError
        If a field is no plain value of its type.
    ValueError
        If the fields cannot be a model; the message names the field.
    """

    model_type: ClassVar[str] = "tmm"
    """The name of the architecture, as in the `config.json` of a model folder."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {
            "max_len": 256,
            "d_model": 128,
            "n_heads": 8,
            "position_bias": False,
            "lag_init": "shift",
            "activation": "gelu_tanh",
            "order": "mix_first",
            "linear_init": "scaled",
        },
        "paper": {"vocab_size": 8000, "d_model": 1024, "n_layers": 16},
        "paper-later": {
            "vocab_size": 8000,
            "d_model": 1024,
            "n_layers": 16,
            "order": "mix_first",
            "norm": "rms",
            "final_norm": True,
            "softplus": True,
            "mean": True,
            "activation": "gelu_tanh",
            "out_proj_bias": False,
        },
    }
    """`default` is the best that two CPU cores train in three minutes; the others are the models of the paper."""

    vocab_size: Count = 257
    """Number of token ids; 257 is every byte and an end-of-text."""
    max_len: Count = 512
    """Positions of the training context (tokens); the length of the position bias."""
    d_model: Count = 256
    """Channels of the residual stream."""
    n_layers: Size = 4
    """Number of blocks."""
    n_heads: Size = 4
    """Filters per layer, each over `d_model / n_heads` channels; 0 is the flat layer: one filter, no projections."""
    n_lags: Count | None = None
    """Lags of each filter, by default `max_len`; fewer make the mixing matrix banded."""
    kernel_size: Count = 1
    """Neighbouring channels that each filter reads."""
    mix_layers: Literal[1, 2] = 1
    """Toeplitz products per layer; 2 is the ablation `T2 silu(T1 x + bias1) + bias2`."""
    projections: bool = True
    """Linear maps into and out of the heads."""
    out_proj_bias: bool = True
    """Bias of the linear map out of the heads."""
    position_bias: bool = True
    """A learned bias for each head and position, added to the mixed tokens."""
    softplus: bool = False
    """Lags are `softplus` of the parameters, hence positive."""
    mean: bool = False
    """Divide the product by the running sum of its lags; requires `softplus`."""
    lag_init: Literal["normal", "shift", "decay"] = "normal"
    """Initial lags: N(0, 2/n) as in the paper, one shift a head, or exponential decays of several lengths."""
    d_mlp: Count | None = None
    """Hidden width of the MLP, by default `4 * d_model`."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Non-linearity of the MLP."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (eps 1e-5) or RMSNorm (eps the machine epsilon of the dtype)."""
    final_norm: bool = False
    """Normalise once more before the output projection."""
    order: Literal["mlp_first", "mix_first"] = "mlp_first"
    """Which half of a block comes first."""
    tie_embeddings: bool = False
    """Use the embedding as the output projection."""
    linear_init: Literal["uniform", "scaled", "kaiming"] = "uniform"
    """Initial linear maps: uniform in +-1/sqrt(fan_in) as PyTorch's own; N(0, 1/fan_in) with biases of zero, where the
    two maps that end in the residual stream are divided by sqrt(2 n_layers); or N(0, 2/fan_in) with biases of zero, as
    in the paper's experiments."""
    embed_std: Annotated[float, Bounds(at_least=0)] = 1.0
    """Standard deviation of the initial embedding."""
    frozen: Literal["none", "lags", "projections"] = "none"
    """Parameters that are not trained (ablation)."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a model; every later stage relies on it."""
        super().__post_init__()
        if self.d_model % self.heads:
            raise InputError(
                f"n_heads={self.n_heads} does not divide d_model={self.d_model}: every head needs as many channels"
            )
        if self.mean and not self.softplus:
            raise InputError("mean=True asks for softplus=True: only positive lags have a mean")
        if self.mean and self.kernel_size > 1:
            raise InputError("mean=True asks for kernel_size=1")

    @property
    def heads(self) -> int:
        """Filters a layer: the flat layer has one."""
        return max(self.n_heads, 1)

    @property
    def lags(self) -> int:
        """Lags of each filter."""
        return self.max_len if self.n_lags is None else self.n_lags

    @property
    def longest_text(self) -> float:
        """Tokens that a text can have: the positions of the position bias, or infinity without one."""
        return self.max_len if self.position_bias and self.n_layers else math.inf

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    @property
    def has_projections(self) -> bool:
        """Whether linear maps lead into and out of the heads; the flat layer has none."""
        return self.projections and self.n_heads > 0
