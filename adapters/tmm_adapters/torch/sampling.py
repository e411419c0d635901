"""Tokens sampled from logits in PyTorch: greedily, or by temperature, top-k and top-p."""

from __future__ import annotations

import torch
from torch import Tensor

from tmm_core.errors import InputError

from ..generation import Sampling

__all__ = ["RowGenerators", "sample"]

_AT_A_TIME = 64


class RowGenerators:
    """Numbers in [0, 1) for each row of a batch, which depend on the row's seed only.

    Parameters
    ----------
    generator : torch.Generator or None
        Gives a seed for each row, one after the other.
    rows : int
        Size of the batch.
    device : torch.device
        Where the numbers are wanted.
    """

    def __init__(self, generator: torch.Generator | None, rows: int, device: torch.device) -> None:
        """Sample the seeds."""
        home = "cpu" if generator is None else generator.device
        seeds = [int(torch.randint(1 << 62, (), generator=generator, device=home)) for _ in range(rows)]
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._device = device
        self._block = torch.empty(0, 0)

    def uniform(self, step: int) -> Tensor:
        """Return the numbers (rows,) of a step; steps come in their order."""
        if step % _AT_A_TIME == 0:
            dtype = torch.float32 if self._device.type == "mps" else torch.float64  # which has none
            rows = [
                torch.rand(_AT_A_TIME, generator=generator, device=self._device, dtype=dtype)
                for generator in self._generators
            ]
            self._block = torch.stack(rows)
        return self._block[:, step % _AT_A_TIME]


def sample(logits: Tensor, uniform: Tensor | None, sampling: Sampling, *, counts: Tensor) -> Tensor:
    """Return a token for each row of logits (b, V).

    Parameters
    ----------
    logits : tensor, (b, V)
        -inf rules out a token.
    uniform : tensor, (b,), or None
        Numbers in [0, 1) that choose; None takes the likeliest.
    counts : tensor of bool, (b,), on the CPU
        Rows whose logits must be finite.
    """
    top = logits.max(dim=-1, keepdim=True).values
    if not bool(top.isfinite().cpu()[counts].all()):
        raise InputError("the model's logits are not finite: its weights are damaged, or too large for their dtype")
    if uniform is None:
        return logits.argmax(dim=-1)
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    logits = (logits.to(wide) - top.to(wide)).float()  # however small the temperature, the likeliest stays finite
    finite = torch.finfo(torch.float32)
    p = torch.softmax(logits / min(max(temperature, finite.tiny), finite.max), dim=-1)
    ids = None
    if top_p < 1 or top_k is not None:
        k = p.shape[1] if top_k is None else min(top_k, p.shape[1])
        p, ids = p.topk(k) if k < p.shape[1] else p.sort(descending=True)  # (b, k)
        p = p / p.sum(dim=-1, keepdim=True)
        kept = p.cumsum(dim=-1) - p < top_p
        kept[:, 0] = True  # also where top_p is zero in float32
        p = torch.where(kept, p, 0)
    total = p.to(uniform.dtype).cumsum(dim=-1)
    # The first whose running sum exceeds the number times the whole sum, which is less than the whole, rounded too.
    at = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True)
    return (at if ids is None else ids.gather(1, at))[:, 0]
