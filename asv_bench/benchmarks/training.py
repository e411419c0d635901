"""Training speed of one model with its token mixing done in different ways: python asv_bench/benchmarks/training.py

The ways take turns within one process, a step each, so that a change of the machine's speed meets them all; a ratio is
the median over turns of one way's time over another's in the same turn, with the quartiles beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor

import tmm_adapters.torch
import tmm_core
from tmm_adapters.torch import LanguageModel

Mixing = Callable[..., Tensor]


def dense(w: Tensor, x: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
    """Multiply by the dense matrix: a view of the lags holds it upside down, against the time-reversed signal."""
    heads, n = w.shape[0], x.shape[-2]
    lags = torch.cat([w.new_zeros(heads, n - 1), w[:, :n]], dim=1)
    matrices = lags.unfold(1, n, 1)  # (h, n, n)
    parts = x.flip(-2).unflatten(-1, (heads, -1)).transpose(-3, -2)  # (b, h, n, d/h)
    y = (matrices @ parts).transpose(-3, -2).flatten(-2)  # (b, n, d)
    return y if bias is None else y + bias[:, :n].T.repeat_interleave(x.shape[-1] // heads, dim=-1)


def identity(w: Tensor, x: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
    """Mix nothing."""
    return x


WAYS: dict[str, Mixing] = {"toeplitz": tmm_core.mix_tokens, "dense T @ x": dense, "no mixing": identity}


def step(model: LanguageModel, optimizer: torch.optim.Optimizer, tokens: Tensor, mixing: Mixing) -> float:
    """Return the seconds of one training step."""
    with mock.patch.object(tmm_adapters.torch, "mix_tokens", mixing):
        start = time.perf_counter()
        model(tokens, labels=tokens)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start


def measure(config: tmm_core.TMMConfig, tokens_a_step: int, turns: int) -> dict[str, list[float]]:
    """Return the seconds of each way's steps, after one turn to warm up."""
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = max(1, tokens_a_step // config.max_len)
    tokens = torch.randint(config.vocab_size, (batch, config.max_len), generator=torch.Generator().manual_seed(0))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(turns + 1):
        for way, mixing in WAYS.items():
            seconds[way].append(step(model, optimizer, tokens, mixing))
    return {way: times[1:] for way, times in seconds.items()}


def main() -> None:
    """Print one row a context."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192], help="(default: 512 2048 8192)")
    parser.add_argument("--d-model", type=int, default=512, help="channels (default: %(default)s)")
    parser.add_argument("--n-layers", type=int, default=4, help="blocks (default: %(default)s)")
    parser.add_argument("--n-heads", type=int, default=4, help="filters a layer (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=8000, help="token ids (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a step (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="timed steps a way, 2 or more (default: %(default)s)")
    a = parser.parse_args()
    if a.turns < 2:
        parser.error(f"--turns must be at least 2, to show a spread, and is {a.turns}")
    sizes = {"d_model": a.d_model, "n_layers": a.n_layers, "n_heads": a.n_heads, "vocab_size": a.vocab_size}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(f"{sizes}, {a.tokens} tokens a step, {a.turns} turns; median tokens/s, and toeplitz over the others")
    for context in a.contexts:
        seconds = measure(tmm_core.TMMConfig(max_len=context, **sizes), max(a.tokens, context), a.turns)
        row = [f"context {context:5d}"]
        for way, times in seconds.items():
            row.append(f"{way} {max(a.tokens, context) / statistics.median(times):6.0f}")
        for way in ("dense T @ x", "no mixing"):
            ratios = [other / ours for ours, other in zip(seconds["toeplitz"], seconds[way], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            row.append(f"over {way} {middle:.2f} ({low:.2f} to {high:.2f})")
        print("; ".join(row), flush=True)


if __name__ == "__main__":
    main()
