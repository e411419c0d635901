"""A model in PyTorch, to be measured and to write."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import torch

from tmm_adapters.pretrained import load_model
from tmm_adapters.tokenizers import Tokenizer
from tmm_adapters.torch import LanguageModel
from tmm_adapters.torch.streaming import eval_mode
from tmm_core import TMMConfig

from ...evaluation.measure import Batch

__all__ = ["TorchModel", "open_model"]


class TorchModel:
    """A `LanguageModel`, on any device; left in the mode it was in."""

    def __init__(self, model: LanguageModel) -> None:
        """Measure `model`."""
        self.model = model

    @property
    def config(self) -> TMMConfig:
        """The model."""
        return self.model.tmm_config

    @torch.no_grad()
    def nats(self, batch: Batch) -> float:
        """Return the summed cross-entropy (nats) of the targets of a batch."""
        device = next(self.model.parameters()).device
        tensors = {name: torch.from_numpy(array).to(device) for name, array in batch.items()}
        with eval_mode(self.model):
            return float(self.model(**tensors, num_items_in_batch=1)["loss"])

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        n_tokens: int,
        *,
        stop_token: int,
        seed: int,
        temperature: float,
        top_k: int | None,
        top_p: float,
    ) -> Generator[list[int]]:
        """Yield up to `n_tokens` times the next token of each prompt; see `measure.Model`."""
        device = next(self.model.parameters()).device
        longest = max(map(len, prompts))
        ids = torch.tensor([[stop_token] * (longest - len(row)) + list(row) for row in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        for tokens in self.model.new_tokens(
            ids,
            n_tokens,
            attention_mask=mask,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=torch.Generator().manual_seed(seed),
            stop_token=stop_token,
            end_where_full=True,
        ):
            yield tokens.tolist()


def open_model(folder: Path, *, device: str) -> tuple[TorchModel, Tokenizer]:
    """Return the model in a model folder, ready to use, and its tokenizer; raises what `folder.load_model` does."""
    model, tokenizer = load_model(folder, device=device)
    return TorchModel(model), tokenizer
