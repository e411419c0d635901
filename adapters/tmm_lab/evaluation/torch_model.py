"""A model in PyTorch, to be measured and to write."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from tmm_adapters.architecture import ModelConfig, get_architecture
from tmm_adapters.generation import Sampling
from tmm_adapters.pretrained import load_model, read_config
from tmm_core.lm import IGNORED

from .measure import Batch

__all__ = ["TorchModel", "open_model"]


class TorchModel:
    """A PyTorch model, on any device; left in the mode it was in.

    Parameters
    ----------
    model : nn.Module
        As `Architecture.torch_model` describes it.
    config : ModelConfig
        What it was made from.
    """

    def __init__(self, model: Any, config: ModelConfig) -> None:
        """Measure `model`."""
        self.model = model
        self.max_len = config.max_len
        self.longest_text = get_architecture(config.model_type).longest_text(config)

    @torch.no_grad()
    def nats(self, batch: Batch) -> float:
        """Return the summed cross-entropy (nats) of the targets of a batch."""
        device = next(self.model.parameters()).device
        tensors = {name: torch.from_numpy(array).to(device) for name, array in batch.items()}
        training = self.model.training
        self.model.eval()
        try:
            return float(self.model(**tensors)["loss"]) * int((batch["targets"] != IGNORED).sum())
        finally:
            self.model.train(training)

    def continued(
        self,
        prompts: Sequence[Sequence[int]],
        n_tokens: int,
        sampling: Sampling,
        *,
        eos_token_id: int,
        seed: int,
    ) -> Generator[list[int]]:
        """Yield up to `n_tokens` times the next token of each prompt; see `measure.Model`."""
        device = next(self.model.parameters()).device
        longest = max(map(len, prompts))
        ids = torch.tensor([[eos_token_id] * (longest - len(row)) + list(row) for row in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        for tokens in self.model.new_tokens(
            ids,
            n_tokens,
            sampling=sampling,
            attention_mask=mask,
            generator=torch.Generator().manual_seed(seed),
            eos_token_id=eos_token_id,
            end_where_full=True,
        ):
            yield tokens.tolist()


def open_model(folder: Path, *, device: str) -> TorchModel:
    """Return the model in a model folder, ready to use; raises what `load_model` does."""
    model, _ = load_model(folder, device=device)
    return TorchModel(model, read_config(folder))
