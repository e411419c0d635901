"""Batches of PyTorch models: tokens and labels as embeddings and losses take them, and what is refused.

On other devices than the CPU the embedding and the loss check values by themselves, without waiting for them.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from tmm_core import lm
from tmm_core.errors import InputTypeError

__all__ = ["check_tokens", "targets_of"]


def check_tokens(name: str, ids: Tensor, vocab_size: int) -> Tensor:
    """Return tokens as embeddings take them, refused where they are none."""
    ids = _as_ids(name, ids)
    lm.check_vocabulary("token", ids, vocab_size)
    return ids


def targets_of(
    input_ids: Tensor, labels: Tensor | None, targets: Tensor | None, documents: Tensor | None, vocab_size: int
) -> Tensor | None:
    """Return the next-token targets (b, n), -100 for none, of labels or targets; None where neither is given."""
    labels = None if labels is None else _as_ids("labels", labels)
    targets = None if targets is None else _as_ids("targets", targets)
    found = cast("Tensor | None", lm.targets_of(input_ids, labels, targets, documents))
    if found is not None:
        lm.check_vocabulary("label", found, vocab_size)
    return found


def _as_ids(name: str, ids: Tensor) -> Tensor:
    """Return integers of any width as those that embeddings and losses take."""
    if not isinstance(ids, Tensor) or ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise InputTypeError(f"{name} must be a tensor of integers, got {kind}: tokens are whole numbers")
    return ids.long()
