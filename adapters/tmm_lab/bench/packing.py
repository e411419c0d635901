"""What it costs to keep packed documents apart in training, against training on documents joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tmm_core
from tmm_core import TMMConfig

from .process import wanted
from .training import TRAINING
from .turns import Pace, Ratio, compare

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PACKED", "PACKED_MODELS", "compare_packing", "documents", "packed_step"]

PACKED = (512, 2048)
"""Contexts."""
PACKED_MODELS: dict[str, TMMConfig] = {
    "joined, default preset": TMMConfig.preset("default"),
    "joined, d 512": TMMConfig(d_model=512, n_layers=4, n_heads=4, vocab_size=8000, position_bias=False),
}
"""By the name that tables print."""
SHORTEST, LONGEST = 100, 500
"""Tokens of a document, drawn evenly."""


def documents(rows: int, context: int) -> Tensor:
    """Return the number of each token's document, (rows, context): a text of documents, cut into rows."""
    import torch

    count = rows * context
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(SHORTEST, LONGEST, (count // SHORTEST + 1,), generator=generator)
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return numbers[:count].reshape(rows, context)


def packed_step(config: TMMConfig, tokens_a_step: int, *, packed: bool) -> Callable[[], float]:
    """Return one step of training with AdamW as a callable without arguments, which returns the loss.

    Raises
    ------
    NotImplementedError
        If Torch is missing.
    """
    with wanted("torch"):
        import torch

    from tmm_adapters.torch import LanguageModel

    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    shape = (max(1, tokens_a_step // config.max_len), config.max_len)
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(config.vocab_size, (2, *shape), generator=generator)
    ids = documents(*shape) if packed else None

    def step() -> float:
        loss = model(tokens, targets=targets, segment_ids=ids)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def compare_packing(
    context: int, against: str, backend: str, pace: Pace = TRAINING, tokens_a_step: int = 8192
) -> Ratio:
    """Return the speed of training on packed documents over that on joined ones.

    Parameters
    ----------
    context : int
        Positions.
    against : str
        A name in `PACKED_MODELS`.
    backend : str
        Who computes the products of both.
    pace : Pace
        How long they take turns.
    tokens_a_step : int
        Tokens of a step.

    Raises
    ------
    NotImplementedError
        If Torch is missing.
    """
    fields = {**PACKED_MODELS[against].to_dict(), "max_len": context}
    config = TMMConfig.from_dict(fields)
    ours, theirs = (packed_step(config, tokens_a_step, packed=packed) for packed in (True, False))
    with tmm_core.use_backend(backend):
        return compare(ours, theirs, pace)
