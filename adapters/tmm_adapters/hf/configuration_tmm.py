"""The configuration of a Toeplitz MLP Mixer as transformers holds configurations."""

# mypy: allow-untyped-calls
from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from tmm_core import TMMConfig
from tmm_core.errors import InputError

from ..architecture import config_to_dict

__all__ = ["TMMPretrainedConfig"]

_FIELDS = frozenset(field.name for field in dataclasses.fields(TMMConfig))


class TMMPretrainedConfig(PreTrainedConfig):
    """A `tmm_core.TMMConfig` among the fields of transformers.

    Parameters
    ----------
    tmm : mapping, optional
        The fields of a `TMMConfig`, as `config.json` holds them. They are attributes as well, which are checked when
        they are set, `hidden_size`, `num_hidden_layers` and `max_position_embeddings` among them.
    **options
        Fields of a `TMMConfig`, which replace those in `tmm`, and of `transformers.PreTrainedConfig`.

    Raises
    ------
    TypeError, ValueError
        If the fields cannot be a model, or are those of another architecture.

    Examples
    --------
    >>> config = TMMPretrainedConfig(d_model=64, n_layers=2)
    >>> config.hidden_size, config.core().n_layers
    (64, 2)
    """

    model_type = TMMConfig.model_type
    attribute_map = {  # noqa: RUF012  (typed by the base class)
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_len",
        "tie_word_embeddings": "tie_embeddings",
    }

    def __init__(self, tmm: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Check the model's fields, and hand on those of transformers."""
        fields = dict(tmm or {})
        for kind in (options.pop("model_type", self.model_type), fields.pop("model_type", self.model_type)):
            if kind != self.model_type:
                raise InputError(
                    f"the configuration is that of the architecture {kind!r}, not of {self.model_type!r}: load its "
                    "folder by transformers.AutoModelForCausalLM, or by tmm_adapters.pretrained.load_model"
                )
        options = {self.attribute_map.get(name, name): value for name, value in options.items()}
        fields |= {name: options.pop(name) for name in _FIELDS & options.keys()}
        if type(self) is TMMPretrainedConfig:
            options.pop("auto_map", None)  # names files that are beside a folder's `config.json`, not beside another
        core = TMMConfig.from_dict(fields)
        self.tmm = config_to_dict(core)
        super().__init__(**{**options, "tie_word_embeddings": core.tie_embeddings})

    def core(self) -> TMMConfig:
        """Return the configuration of the model."""
        return TMMConfig.from_dict({name: self.tmm[name] for name in _FIELDS})

    def __getattr__(self, name: str) -> Any:
        """Return a field of the model."""
        name = type(self).attribute_map.get(name, name)
        if name in _FIELDS and "tmm" in self.__dict__:
            return self.tmm[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field of the model, checked, or of transformers."""
        name = type(self).attribute_map.get(name, name)
        if name in _FIELDS:
            self.tmm = config_to_dict(dataclasses.replace(self.core(), **{name: value}))
        else:
            super().__setattr__(name, value)
