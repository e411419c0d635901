"""Where training begins with a model that was trained before: its folder, its configuration and its tokenizer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tmm_adapters.pretrained import read_config
from tmm_adapters.tokenizers import check_fits, load_tokenizer, read_tokenizer
from tmm_core.errors import InputError

from ..data.config import DataConfig

__all__ = ["pretrained_start"]


def pretrained_start(model: Path, data: DataConfig) -> dict[str, Any]:
    """Return the arguments of `session.begin` that tell of the model in a folder, and of its text.

    Parameters
    ----------
    model : Path
        Its folder.
    data : DataConfig
        The text; it is read by the model's tokenizer.

    Raises
    ------
    FileNotFoundError
        If the tokenizer is missing.
    ValueError
        If the text is to be read by another tokenizer, or the model has none and nothing says which.
    """
    config, own = read_config(model), load_tokenizer(model)
    if data.vocab is not None:
        raise InputError(f"--vocab trains a tokenizer, and the model in {model} knows the ids of its own: leave it out")
    if own is None and data.tokenizer is None:
        raise InputError(
            f"the model in {model} has no tokenizer.json: give the one that it was trained with, --tokenizer FILE"
        )
    if data.tokenizer is None:
        data = dataclasses.replace(data, tokenizer=str(model / "tokenizer.json"))
    else:
        given = read_tokenizer(Path(data.tokenizer))
        check_fits(given, config.vocab_size)
        if own is not None and own.fingerprint != given.fingerprint:
            raise InputError(
                f"{data.tokenizer} is another tokenizer than that of the model in {model}, whose ids would mean other "
                "text: leave --tokenizer out"
            )
    return {"preset": "continued", "config": config, "vocab_given": True, "data": data, "start": model}
