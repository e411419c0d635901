"""Models of transformers as comparison models: their own modules, trained, read and continued as all others."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from .causal import CausalModel, Decoder

__all__ = ["NO_SPECIAL_TOKENS", "TransformersModel"]

NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Which tokens begin and end a text is the tokenizer's business."""


class TransformersModel(CausalModel):
    """Base of a subclass of a causal language model of transformers, whose second base that is.

    Called without targets and segment ids it is that model, with all that transformers do with it.
    """

    longest_text = float("inf")

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        targets: Tensor | None = None,
        segment_ids: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Return the logits, and with targets the loss; see `tmm_adapters.architecture`."""
        if targets is None and segment_ids is None:
            return super().forward(input_ids, **options)  # type: ignore[misc]
        assert input_ids is not None
        return self.losses(input_ids, targets=targets, segment_ids=segment_ids)

    def logits(self, input_ids: Tensor) -> Tensor:
        """Return the logits (b, n, V) of tokens (b, n)."""
        return cast(Tensor, super().forward(input_ids, use_cache=False).logits)  # type: ignore[misc]

    def decoder(self, batch_size: int, capacity: int) -> Decoder:
        """Begin to read texts; see `CausalModel.decoder`."""
        return _Decoder(cast(PreTrainedModel, self))


class _Decoder(Decoder):
    """The cache of transformers, of keys and values or of states."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache: dict[str, Any] = {}

    def extend(self, input_ids: Tensor) -> Tensor:
        """Take the next tokens."""
        outputs = self._model(input_ids, use_cache=True, logits_to_keep=1, **self._cache)
        name = "cache" if "cache" in outputs else "past_key_values"
        self._cache = {name: outputs[name]}
        return cast(Tensor, outputs.logits[:, -1])
