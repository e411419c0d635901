"""Models that decode: ours by streaming, ours as the research code decodes, and a Transformer of the same size."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmm_adapters.torch import MLP, LanguageModel
from tmm_core import TMMConfig


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


class JoinedDecoder:
    """Our model, decoding as the research code does: each head's history is joined with the token at every step."""

    def __init__(self, model: Any) -> None:
        """Begin a text."""
        self.model, self.filters = model, model.filters()
        self.histories: dict[str, list[Tensor]] = {}

    def begin_after(self, count: int) -> None:
        """Let `count` tokens have come, of one text: random ones, since time does not depend on them."""
        c = self.model.config
        for name in self.filters:
            self.histories[name] = [torch.randn(1, count, c.d_model // c.heads) for _ in range(c.heads)]

    def mix(self, name: str, x: Tensor) -> Tensor:
        """Return a layer's output for the next token, (b, d): the reversed lags times the history, head by head."""
        lags, bias, *_ = self.filters[name]
        parts = x[:, None].chunk(len(lags), dim=-1)  # (b, 1, d/h) each
        past = self.histories.get(name)
        joined = [torch.cat(pair, dim=1) for pair in zip(past, parts, strict=True)] if past else list(parts)
        self.histories[name] = joined
        reach, t = lags.shape[1], joined[0].shape[1]
        outputs = [own[:t].flip(0) @ history[:, -reach:] for own, history in zip(lags, joined, strict=True)]
        if bias is not None:
            outputs = [y + own[t - 1] for y, own in zip(outputs, bias, strict=True)]
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Return the logits, (b, V), after the next tokens, (b,)."""
        logits: Tensor = self.model.logits_of(self.model.residual_stream(tokens, mix=self.mix))
        return logits


class Text:
    """A text of one row that our model writes by streaming, `capacity` tokens from scratch."""

    def __init__(self, model: Any, capacity: int, backend: str) -> None:
        """Plan, and begin."""
        self.model = model
        self.plan = model.stream_plan(capacity, backend=backend)
        self.state = model.stream_init(self.plan, 1)
        self.token = torch.tensor([1])

    def mix(self, *rows: Tensor) -> None:
        """Put tokens, (1, d) each, through the layers' products alone: what they keep grows as by the whole model."""
        state = self.state
        for name, layer in self.plan.layers.items():
            for i, x in enumerate(rows):
                _, state.caches[name] = layer.step(state.caches[name], state.at + i, state.position + i, None, x)
        state.position, state.at = state.position + len(rows), state.at + len(rows)

    def mix_to(self, position: int) -> None:
        """Let the layers' products alone take random tokens up to a position."""
        rows = torch.randn(64, 1, self.model.config.d_model).unbind()
        while self.state.position < position:
            self.mix(*rows[: position - self.state.position])

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
        d, blocks = config.d_model, range(config.n_layers)
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, d)
        self.positions = nn.Embedding(config.max_len, d)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(d) for _ in blocks)
        self.attentions = nn.ModuleList(_Attention(config) for _ in blocks)
        self.mlp_norms = nn.ModuleList(nn.LayerNorm(d) for _ in blocks)
        self.mlps = nn.ModuleList(MLP(config) for _ in blocks)
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
