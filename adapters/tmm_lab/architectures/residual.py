"""The language model around a token mixer: embedding, blocks of mixing and MLP with residuals, output projection.

    x += mixer(norm(x));  x += W2 gelu(W1 norm(x) + b1) + b2

with LayerNorm, as in the masked mixer, Hyena and linear attention of the paper's experiments (arXiv 2605.06683).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from tmm_core.fields import Count

from .causal import CausalModel, Decoder
from .comparison import ComparisonConfig
from .flops import Flops, linear

__all__ = ["Mixer", "ResidualConfig", "ResidualModel", "residual_flops"]


@dataclass(frozen=True, kw_only=True)
class ResidualConfig(ComparisonConfig):
    """The size of a model with an MLP in each block."""

    d_mlp: Count | None = None
    """Hidden width of the MLP; `4 * d_model` unless given."""

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp


class Mixer(nn.Module, ABC):
    """Mixes the tokens of (b, n, d) causally."""

    @abstractmethod
    def begin(self, batch_size: int, capacity: int) -> dict[str, Any]:
        """Return what is kept of texts that have not begun."""

    @abstractmethod
    def extend(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        """Return the mixed next tokens, of the shape of `x`, (b, t, d), and keep in `cache` what later ones need."""

    def select(self, cache: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        """Return a cache of `rows` (c,) of the texts, copied: of each tensor in it, as many of its first axis."""
        return {name: kept[rows.to(kept.device)] if isinstance(kept, Tensor) else kept for name, kept in cache.items()}


class Block(nn.Module):
    """Mixing and MLP, each with a norm before it and a residual around it."""

    def __init__(self, d: int, width: int, mixer: Mixer) -> None:
        """Make the block around its mixer."""
        super().__init__()
        self.mix_norm = nn.LayerNorm(d)
        self.mix = mixer
        self.mlp_norm = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, width), nn.GELU(), nn.Linear(width, d))

    def forward(self, x: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the residual stream after the block, of the shape of `x`."""
        x = x + mix(self.mix_norm(x))
        return cast(Tensor, x + self.mlp(self.mlp_norm(x)))


class ResidualModel(CausalModel, nn.Module):
    """A language model whose blocks mix tokens by `mixer(config)`.

    Parameters
    ----------
    config : ResidualConfig
        The size.
    mixer : callable
        Makes the mixer of a block.
    positions : module, optional
        Of position numbers (n,), what is added to the embedded tokens, (n, d).
    final_norm, head_bias : bool
        Whether the last residual stream is normalised, and the output projection has a bias.
    """

    def __init__(
        self,
        config: ResidualConfig,
        mixer: Callable[[Any], Mixer],
        *,
        positions: nn.Module | None = None,
        final_norm: bool = False,
        head_bias: bool = False,
    ) -> None:
        """Make the model with PyTorch's initial parameters."""
        super().__init__()
        self.vocab_size, self.longest_text = config.vocab_size, config.max_len
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = positions
        d, width = config.d_model, config.mlp_width
        self.blocks = nn.ModuleList(Block(d, width, mixer(config)) for _ in range(config.n_layers))
        self.final_norm = nn.LayerNorm(config.d_model) if final_norm else nn.Identity()
        self.unembed = nn.Linear(config.d_model, config.vocab_size, bias=head_bias)

    def forward(
        self, input_ids: Tensor, *, targets: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the logits, and with targets the loss; see `tmm_adapters.architecture`."""
        return self.losses(input_ids, targets=targets, segment_ids=segment_ids)

    def logits(self, input_ids: Tensor) -> Tensor:
        """Return the logits (b, n, V) of tokens (b, n)."""
        x = self.embedded(input_ids, 0)
        for block in self.blocks:
            x = block(x, block.mix)
        return cast(Tensor, self.unembed(self.final_norm(x)))

    def embedded(self, input_ids: Tensor, begin: int) -> Tensor:
        """Return the embedded tokens (b, t, d), the first at position `begin`."""
        x: Tensor = self.embed(input_ids)
        if self.positions is None:
            return x
        return cast(Tensor, x + self.positions(torch.arange(begin, begin + x.shape[1], device=x.device)))

    def decoder(self, batch_size: int, capacity: int) -> Decoder:
        """Begin to read texts; see `CausalModel.decoder`."""
        return _Decoder(self, [mixer.begin(batch_size, capacity) for mixer in self.mixers])

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each block."""
        return [cast(Block, block).mix for block in self.blocks]


class _Decoder(Decoder):
    """A cache a block."""

    def __init__(self, model: ResidualModel, caches: list[dict[str, Any]], position: int = 0) -> None:
        self._model, self._caches, self._position = model, caches, position

    def extend(self, input_ids: Tensor) -> Tensor:
        """Take the next tokens."""
        model = self._model
        x = model.embedded(input_ids, self._position)
        for block, mixer, cache in zip(model.blocks, model.mixers, self._caches, strict=True):
            x = block(x, lambda y, mixer=mixer, cache=cache: mixer.extend(y, cache))
        self._position += input_ids.shape[1]
        return cast(Tensor, model.unembed(model.final_norm(x[:, -1])))

    def select(self, rows: Tensor) -> Decoder:
        """Copy rows of each block's cache."""
        model = self._model
        caches = [mixer.select(cache, rows) for mixer, cache in zip(model.mixers, self._caches, strict=True)]
        return _Decoder(model, caches, self._position)


def residual_flops(config: ResidualConfig, mixer: Flops) -> Flops:
    """Return the operations a token of the whole model, given those of one mixer."""
    d = config.d_model
    return (mixer + linear(2 * d * config.mlp_width)) * config.n_layers + linear(d * config.vocab_size)
