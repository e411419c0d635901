"""Who decodes: ours by streaming, the research code's cached decode, and a Transformer of the same size."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import tmm_core
from tmm_adapters.torch import MLP, LanguageModel
from tmm_adapters.torch.streaming import stream_copy
from tmm_core import TMMConfig

__all__ = ["JoinedDecoder", "JoinedHistory", "Text", "Transformer", "model_of"]

Seconds = NDArray[np.float64]


def model_of(config: TMMConfig, kind: Any = LanguageModel) -> Any:
    """Return a model in eval mode with small parameters, drawn in a tenth of the time of its proper ones."""
    options = {"seed": None} if kind is LanguageModel else {}
    with torch.device("meta"):
        model = kind(config, **options)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.05, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1)
    return model.eval().requires_grad_(False)


class JoinedHistory:
    """A product's past as the research code keeps it: for each head, joined with the next token at every step.

    Parameters
    ----------
    lags : tensor, (h, k)
        The filters.
    bias : tensor, (h, positions), or None
        Added at each position.
    """

    def __init__(self, lags: Tensor, bias: Tensor | None) -> None:
        """Begin without a past."""
        self.lags, self.bias = lags, bias
        self.history: list[Tensor] = []

    def put(self, x: Tensor) -> Tensor:
        """Return the output for the next token, (b, d): the reversed lags times the history."""
        parts = x[:, None].chunk(len(self.lags), dim=-1)  # (b, 1, d/h) each
        if self.history:
            self.history = [torch.cat(pair, dim=1) for pair in zip(self.history, parts, strict=True)]
        else:
            self.history = list(parts)
        reach, t = self.lags.shape[1], self.history[0].shape[1]
        outputs = [
            lags[:t].flip(0) @ history[:, -reach:] for lags, history in zip(self.lags, self.history, strict=True)
        ]  # (b, d/h) each
        if self.bias is not None:
            outputs = [y + bias[t - 1] for y, bias in zip(outputs, self.bias, strict=True)]
        return torch.cat(outputs, dim=-1)


class JoinedDecoder:
    """A model whose layers each keep their history, joined at every step."""

    def __init__(self, model: LanguageModel) -> None:
        """Begin a text."""
        self.model = model
        self.layers = {name: JoinedHistory(*filters) for name, filters in model.filters().items()}

    def begin_after(self, count: int) -> None:
        """Let `count` tokens have come, of one text: random ones, since time does not depend on them."""
        c = self.model.tmm_config
        for layer in self.layers.values():
            layer.history = [torch.randn(1, count, c.d_model // c.heads) for _ in range(c.heads)]

    def mix(self, x: Tensor) -> None:
        """Put a token (b, d) through the layers' products alone."""
        for layer in self.layers.values():
            layer.put(x)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Return the logits, (b, V), after the next tokens, (b,)."""
        return self.model.logits_of(self.model.residual_stream(tokens, mix=lambda name, x: self.layers[name].put(x)))


class Text:
    """A text of one row that a model writes by streaming, `capacity` tokens from scratch."""

    def __init__(self, model: Any, capacity: int, backend: str) -> None:
        """Plan, and begin."""
        self.model, self.capacity = model, capacity
        self.plan = model.stream_plan(capacity, backend=backend)
        self.state = model.stream_init(self.plan, 1)
        self.token = torch.tensor([1])

    def copy(self) -> Text:
        """Return a text that goes on by itself from here."""
        other: Text = object.__new__(type(self))
        other.__dict__.update(self.__dict__, state=stream_copy(self.state))
        return other

    def mix(self, x: Tensor) -> None:
        """Put a token (1, d) through the layers' products alone."""
        for name, plan in self.plan.layers.items():
            tmm_core.stream_step(plan, self.state.layers[name], x)
        self.state.position += 1

    def mix_to(self, position: int, inputs: Tensor | None = None) -> Seconds:
        """Let the layers' products alone take tokens up to `position`; return the seconds of each token in all layers.

        So the tapes are as long, and hold as much, as after as many steps of the whole model, and each tile of the run
        has been added. `inputs` (n, 1, d) are repeated; random ones unless given.
        """
        begin, d = self.state.position, self.model.tmm_config.d_model
        inputs = torch.randn(64, 1, d) if inputs is None else inputs
        rows = list(inputs.unbind())
        seconds = np.zeros(position - begin)
        clock = time.perf_counter
        for name, plan in self.plan.layers.items():
            state = self.state.layers[name]
            for i in range(len(seconds)):
                start = clock()
                tmm_core.stream_step(plan, state, rows[i % len(rows)])
                seconds[i] += clock() - start
        self.state.position = position
        return seconds

    def step(self) -> Tensor:
        """Return the logits after one more token."""
        logits: Tensor = self.model.stream_step(self.plan, self.state, self.token)[0]
        return logits


class _Attention(nn.Module):
    """Causal attention with a cache that is allocated beforehand."""

    def __init__(self, config: TMMConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, cache: Tensor, at: int) -> Tensor:
        """Return (b, n, d) for tokens from position `at` on; `cache`, (2, b, h, length, d/h), takes keys and values."""
        n = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (b, h, n, d/h)
        cache[0, :, :, at : at + n], cache[1, :, :, at : at + n] = k, v
        if at == 0:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        else:  # one token, which sees all
            y = F.scaled_dot_product_attention(q, *cache[:, :, :, : at + n])
        mixed: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return mixed


class Transformer(nn.Module):
    """A plain Transformer of a configuration's channels, blocks, heads, MLP and vocabulary; positions are learned.

    It has as many blocks as `LanguageModel`, attention in place of token mixing: `x += attention(norm(x))`, then
    `x += MLP(norm(x))`.
    """

    def __init__(self, config: TMMConfig) -> None:
        """Make the model."""
        super().__init__()
        d = config.d_model
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, d)
        self.positions = nn.Embedding(config.max_len, d)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(config.n_layers))
        self.attentions = nn.ModuleList(_Attention(config) for _ in range(config.n_layers))
        self.mlp_norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(config.n_layers))
        self.mlps = nn.ModuleList(MLP(config) for _ in range(config.n_layers))
        self.unembed = nn.Linear(d, config.vocab_size, bias=False)

    def new_cache(self, batch: int, length: int) -> list[Tensor]:
        """Return room for `length` keys and values a block, (2, b, h, length, d/h)."""
        c = self.config
        return [torch.zeros(2, batch, c.heads, length, c.d_model // c.heads) for _ in self.attentions]

    @torch.no_grad()
    def forward(self, ids: Tensor, cache: list[Tensor], at: int = 0) -> Tensor:
        """Return the logits, (b, V), after tokens (b, n) at the positions from `at` on: a prompt at 0, or one token."""
        x = self.embed(ids) + self.positions.weight[at : at + ids.shape[1]]
        layers = zip(self.attention_norms, self.attentions, self.mlp_norms, self.mlps, cache, strict=True)
        for attention_norm, attention, mlp_norm, mlp, kept in layers:
            x = x + attention(attention_norm(x), kept, at)
            x = x + mlp(mlp_norm(x))
        logits: Tensor = self.unembed(x[:, -1])
        return logits
