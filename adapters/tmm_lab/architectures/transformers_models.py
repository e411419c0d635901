"""Models of transformers as comparison models: their own modules, trained, read and continued as all others."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, TypeVar, cast

from torch import Tensor
from transformers import PreTrainedModel

from tmm_adapters.architecture import config_to_dict
from tmm_adapters.torch.batches import check_tokens
from tmm_core.errors import InputError

from .causal import CausalModel, Decoder
from .comparison import Comparison, ComparisonConfig

__all__ = ["NO_SPECIAL_TOKENS", "TransformersArchitecture", "TransformersConfig", "TransformersModel"]

NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Which tokens begin and end a text is the tokenizer's business."""


class TransformersConfig(ComparisonConfig, ABC):
    """The size of a model of transformers."""

    @abstractmethod
    def to_transformers(self) -> Any:
        """Return the configuration of transformers."""


C = TypeVar("C", bound=TransformersConfig)


class TransformersArchitecture(Comparison[C]):
    """An architecture whose model folders are those of transformers: its `from_pretrained` loads them."""

    limited = False

    def file_fields(self, config: C) -> dict[str, Any]:
        """Return the fields of transformers, and the configuration itself as `tmm`."""
        theirs = next(cls for cls in self.model_class.__mro__ if cls.__module__.startswith("transformers."))
        fields: dict[str, Any] = config.to_transformers().to_diff_dict()
        return {**fields, "architectures": [theirs.__name__], "tmm": config_to_dict(config)}


class TransformersModel(CausalModel):
    """Base of a subclass of a causal language model of transformers, whose second base that is.

    Called without targets and segment ids it returns what that one returns; it continues texts as all models here do.
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
            if input_ids is not None:
                input_ids = check_tokens("input_ids", input_ids, self.vocab_size)
            return super().forward(input_ids, **options)  # type: ignore[misc]
        if input_ids is None:
            raise InputError("targets and segment_ids belong to input_ids, which are missing: give them")
        if options:
            raise InputError(
                f"{', '.join(options)} cannot be given with targets or segment_ids: leave one or the other"
            )
        return self.losses(input_ids, targets=targets, segment_ids=segment_ids)

    def logits(self, input_ids: Tensor) -> Tensor:
        """Return the logits (b, n, V) of tokens (b, n)."""
        return cast(Tensor, super().forward(input_ids, use_cache=False).logits)  # type: ignore[misc]

    def decoder(self, batch_size: int, capacity: int) -> Decoder:
        """Begin to read texts; see `CausalModel.decoder`."""
        return _Decoder(cast(PreTrainedModel, self))


class _Decoder(Decoder):
    """The cache of transformers, of keys and values or of states."""

    def __init__(self, model: PreTrainedModel, cache: dict[str, Any] | None = None) -> None:
        self._model, self._cache = model, cache or {}

    def extend(self, input_ids: Tensor) -> Tensor:
        """Take the next tokens."""
        outputs = self._model(input_ids, use_cache=True, logits_to_keep=1, **self._cache)
        name = "cache" if "cache" in outputs else "past_key_values"
        self._cache = {name: outputs[name]}
        return cast(Tensor, outputs.logits[:, -1])

    def select(self, rows: Tensor) -> Decoder:
        """Copy the cache, and reorder the copy."""
        cache = copy.deepcopy(self._cache)
        for kept in cache.values():
            kept.reorder_cache(rows)
        return _Decoder(self._model, cache)
