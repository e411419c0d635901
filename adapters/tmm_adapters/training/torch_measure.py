"""A model in PyTorch, to be measured and to write."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tmm_core import TMMConfig

from ..folder import load_model
from ..tokenizers import Tokenizer
from ..torch import ContextFullError, LanguageModel
from .measure import Batch

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
        with self._evaluating():
            return float(self.model(**tensors, num_items_in_batch=1)["loss"])

    def continued(
        self, ids: list[int], n_tokens: int, *, seed: int, temperature: float, top_p: float
    ) -> Generator[int]:
        """Yield up to `n_tokens` tokens that follow `ids`, as they are drawn; fewer where the context is full."""
        device = next(self.model.parameters()).device
        tokens = torch.tensor(ids, device=device)
        generator = torch.Generator(device).manual_seed(seed)
        with self._evaluating():
            for _ in range(n_tokens):
                try:
                    tokens = self.model.generate(tokens, 1, temperature=temperature, top_p=top_p, generator=generator)
                except ContextFullError:
                    return
                yield int(tokens[-1])

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)


def open_model(folder: Path, *, device: str) -> tuple[TorchModel, Tokenizer]:
    """Return the model in a model folder, ready to use, and its tokenizer; raises what `folder.load_model` does."""
    model, tokenizer = load_model(folder, device=device)
    return TorchModel(model), tokenizer
