"""The Toeplitz MLP Mixer language model in PyTorch: layer, block and model, of standard modules.

`tmm_core.lm` computes the same logits from the same parameters in array-API calls; `state_dict` has its names. The
mathematics of token mixing is `tmm_core.mix_tokens`; everything else is `torch.nn`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmm_core import TMMConfig, lm, mix_tokens
from tmm_core.backend import share
from tmm_core.errors import InputError
from tmm_core.lm import Mix

from .batches import check_tokens, targets_of
from .generation import TextGeneration
from .outputs import Output
from .streaming import FilterStreaming

__all__ = ["MLP", "Block", "LanguageModel", "Network", "TokenMixing"]


class TokenMixing(nn.Module):
    """Project into heads, multiply each by its causal Toeplitz matrix, project back."""

    def __init__(self, config: TMMConfig) -> None:
        """Make the layer with parameters yet to be filled."""
        super().__init__()
        d = config.d_model
        self.config = config
        self.in_proj = nn.Linear(d, d) if config.has_projections else nn.Identity()
        self.lags, self.bias = _filters(config)
        if config.mix_layers == 2:
            self.lags2, self.bias2 = _filters(config)
        self.out_proj = nn.Linear(d, d, bias=config.out_proj_bias) if config.has_projections else nn.Identity()

    def filters(self) -> dict[str, lm.Filter]:
        """Return the filter of each product, in their order, by the names of their lags."""
        pairs = {"lags": (self.lags, self.bias)}
        if self.config.mix_layers == 2:
            pairs["lags2"] = (self.lags2, self.bias2)
        c = self.config
        return {name: lm.Filter(*pair, c.d_model, c.softplus, c.mean) for name, pair in pairs.items()}

    def forward(
        self, x: Tensor, segment_ids: Tensor | None = None, positions: Tensor | None = None, mix: Mix | None = None
    ) -> Tensor:
        """Return the mixed tokens, of the shape of `x`.

        Documents, numbered by `segment_ids`, (b, n), stay apart; `positions` are those of tokens within them, where
        layers share them; `mix` mixes tokens with those that came before.
        """
        mixed = functools.partial(mix_tokens, segment_ids=segment_ids, positions=positions)
        x = self.in_proj(x)  # (b, n, d); head i owns the channels [i d/h, (i+1) d/h)
        for name, (lags, bias, _, softplus, mean) in self.filters().items():
            x = x if name == "lags" else F.silu(x)
            x = mixed(lags, x, bias, softplus=softplus, mean=mean) if mix is None else mix(name, x)
        return cast(Tensor, self.out_proj(x))


class MLP(nn.Module):
    """Mix the channels of each token."""

    def __init__(self, config: TMMConfig) -> None:
        """Make the layer with parameters yet to be filled."""
        super().__init__()
        self.up = nn.Linear(config.d_model, config.mlp_width)
        self.activation = nn.SiLU() if config.activation == "silu" else nn.GELU(approximate="tanh")
        self.down = nn.Linear(config.mlp_width, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed channels, of the shape of `x`."""
        x = self.activation(self.up(x))  # (b, n, d) -> (b, n, d_mlp)
        return cast(Tensor, self.down(x))  # (b, n, d_mlp) -> (b, n, d)


class Block(nn.Module):
    """One residual block: channels and tokens, in the order of the configuration."""

    def __init__(self, config: TMMConfig) -> None:
        """Make the block with parameters yet to be filled."""
        super().__init__()
        self.mlp_first = config.order == "mlp_first"
        self.mlp_norm = _norm(config)
        self.mlp = MLP(config)
        self.mix_norm = _norm(config)
        self.mix = TokenMixing(config)

    def forward(
        self, x: Tensor, segment_ids: Tensor | None = None, positions: Tensor | None = None, mix: Mix | None = None
    ) -> Tensor:
        """Return the residual stream after the block, of the shape of `x`."""
        if self.mlp_first:
            x = x + self.mlp(self.mlp_norm(x))
        x = x + self.mix(self.mix_norm(x), segment_ids, positions, mix)
        if not self.mlp_first:
            x = x + self.mlp(self.mlp_norm(x))
        return x


class Network(FilterStreaming, TextGeneration, nn.Module):
    """The modules of the whole model and what they compute: embedding, blocks, output projection.

    Who derives from it fills the parameters: `LanguageModel`, and the model of `tmm_adapters.hf`.
    """

    tmm: TMMConfig
    """The model."""

    def make_modules(self, config: TMMConfig) -> None:
        """Make the modules, with parameters on the `meta` device: shapes only, without values."""
        lm.check_config(config)
        self.tmm = config
        with torch.device("meta"):  # values come from one NumPy generator, not from torch's own
            self.embed = nn.Embedding(config.vocab_size, config.d_model)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
            self.final_norm = _norm(config) if config.final_norm else nn.Identity()
            tied = config.tie_embeddings
            self.unembed = None if tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.freeze()

    def freeze(self) -> None:
        """Let the parameters that are not trained require no gradient."""
        frozen = lm.frozen_names(self.tmm)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in frozen)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        segment_ids: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Output:
        """Return the logits of the next token at every position, and the loss where labels or targets are given.

        See `tmm_core.lm.loss` for the parameters, tensors (b, n), and what is raised; in compiled code, and on other
        devices than the CPU, rows with a bad mask or segment ids become NaN.

        Returns
        -------
        Output
            `logits`, (b, n, vocab_size), and `loss`, () in float32 or above: the mean of what counts, NaN if nothing
            does.
        """
        input_ids, attention_mask = self.checked_tokens(input_ids, attention_mask)
        if input_ids.ndim != 2:
            raise InputError(f"input_ids must have the shape (batch, n), got {tuple(input_ids.shape)}")
        documents = lm.documents_of(input_ids, attention_mask, segment_ids)  # (b, n), or None
        targets = targets_of(input_ids, labels, targets, documents, self.vocab_size)
        logits = self.logits_of(self.residual_stream(input_ids, documents))
        refused = lm.refused_rows(documents)
        if refused is not None:
            logits = torch.where(refused[..., None], torch.nan, logits)
        if targets is None:
            return Output(logits=logits)
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=lm.IGNORED)
        return Output(loss=loss, logits=logits)

    def residual_stream(self, input_ids: Tensor, documents: Tensor | None = None, *, mix: Mix | None = None) -> Tensor:
        """Return what comes out of the last block, (b, n, d), or (b, d) where `mix` takes the next of a stream."""
        return self.through_blocks(self.embed(input_ids), documents, mix=mix)  # (b, n) -> (b, n, d)

    def through_blocks(self, x: Tensor, documents: Tensor | None = None, *, mix: Mix | None = None) -> Tensor:
        """Return what comes out of the last block, of the shape of `x`, the embedded tokens."""
        positions = lm.positions_of(documents, self.tmm)
        for i, block in enumerate(self.blocks):
            x = self.through(
                block, x, documents, positions, None if mix is None else functools.partial(_of_block, mix, i)
            )
        return x

    def through(self, block: nn.Module, *given: Any) -> Tensor:
        """Return what comes out of a block."""
        return cast(Tensor, block(*given))

    def filters(self) -> dict[str, lm.Filter]:
        """Return the token-mixing layers, in their order, by the names of their lags."""
        mixers = enumerate(cast(Block, block).mix for block in self.blocks)
        return {f"blocks.{i}.mix.{name}": filter for i, mixer in mixers for name, filter in mixer.filters().items()}

    def logits_of(self, x: Tensor) -> Tensor:
        """Return the logits, (..., vocab_size), of what comes out of the last block."""
        x = self.final_norm(x)
        return F.linear(x, self.embed.weight) if self.unembed is None else cast(Tensor, self.unembed(x))

    def checked_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return tokens as embeddings take them, refused where they are none, and a mask as it is."""
        return check_tokens("input_ids", input_ids, self.vocab_size), attention_mask

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.tmm.vocab_size

    @property
    def longest_text(self) -> float:
        """How many tokens a text can have, infinity without a position bias."""
        return self.tmm.longest_text


class LanguageModel(Network):
    """The whole model.

    Parameters
    ----------
    config : TMMConfig
        The model.
    seed : int or None
        Seed of the initial parameters, which are those of `tmm_core.lm.init_params` on every framework; None leaves
        the parameters on the `meta` device, without values.
    """

    def __init__(self, config: TMMConfig, *, seed: int | None = 0) -> None:
        """Make the model and its initial parameters."""
        super().__init__()
        self.config = config
        self.make_modules(config)
        device = torch.get_default_device()
        if seed is not None and device.type != "meta":
            self._fill(lm.init_params(config, np.random.default_rng(seed)), device)

    @classmethod
    def from_params(cls, params: Mapping[str, Any], config: TMMConfig) -> LanguageModel:
        """Return the model with copies of `params`, arrays of any library under the names of `tmm_core.lm`.

        Raises
        ------
        TypeError
            If a parameter is no floating array.
        ValueError
            If names or shapes are not those of `config`.
        """
        lm.check_params(params, config)
        model = cls(config, seed=None)
        model._fill(params, torch.get_default_device())
        return model

    def params(self) -> dict[str, Any]:
        """Return copies of the parameters as NumPy arrays, for `tmm_core.lm`."""
        state = self.state_dict()
        return {name: share(state[name].cpu(), np).copy() for name in lm.parameter_shapes(self.config)}

    def _fill(self, params: Mapping[str, Any], device: torch.device) -> None:
        tensors = {
            name: (p.detach() if isinstance(p, Tensor) else share(p, torch)).to(device, copy=True)
            for name, p in params.items()
        }
        self.load_state_dict(tensors, assign=True)


def _of_block(mix: Mix, i: int, name: str, x: Tensor) -> Tensor:
    return cast(Tensor, mix(f"blocks.{i}.mix.{name}", x))


def _filters(config: TMMConfig) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Return the lags of all heads, (h, k) or (h, m, k), and their position bias, (h, max_len)."""
    h, m, k = config.heads, config.kernel_size, config.lags
    lags = nn.Parameter(torch.empty((h, k) if m == 1 else (h, m, k)))
    return lags, nn.Parameter(torch.empty(h, config.max_len)) if config.position_bias else None


def _norm(config: TMMConfig) -> nn.Module:
    """Return the configured norm; RMSNorm's own eps is the machine epsilon."""
    return nn.RMSNorm(config.d_model) if config.norm == "rms" else nn.LayerNorm(config.d_model, eps=1e-5)
