"""What makes a model folder one of the Hugging Face Hub: the files that transformers and the Hub's pages read.

`config.json` and `model.safetensors` serve them as they are. Nothing here imports transformers, so that models of every
framework are written in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .architecture import Architecture, ModelConfig, get_architecture
from .files import as_json

if TYPE_CHECKING:
    from .tokenizers import Tokenizer

__all__ = ["AUTO_MAP", "hub_files"]

AUTO_MAP = {
    "AutoConfig": "modeling_tmm.TMMPretrainedConfig",
    "AutoModelForCausalLM": "modeling_tmm.TMMForCausalLM",
}
"""In a `config.json`, where transformers finds the classes of a model that it does not know."""

_MODELING = '''"""The classes of this model, for `trust_remote_code=True`: those of `pip install 'tmm-core[train]'`."""

import tmm_adapters.hf


class TMMPretrainedConfig(tmm_adapters.hf.TMMPretrainedConfig):
    pass


class TMMForCausalLM(tmm_adapters.hf.TMMForCausalLM):
    config_class = TMMPretrainedConfig
'''

_CARD = """---
library_name: {library}
pipeline_tag: text-generation
tags:
- {name}
- tmm-core
---

# {title}

A language model of {parameters:,} parameters: {summary}. Written by [tmm-core](https://pypi.org/project/tmm-core/).
{results}
## Use

```
pip install 'tmm-core[train]'
tmm generate DIR --prompt "Once upon a time"
```
{transformers}"""

_TRANSFORMERS = """
```python
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("DIR")
tokenizer = AutoTokenizer.from_pretrained("DIR")
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```
"""


def hub_files(
    fields: Mapping[str, Any], config: ModelConfig, tokenizer: Tokenizer | None, results: Mapping[str, float]
) -> dict[str, str]:
    """Return the texts of the files, by name, that the Hub's tools read beside those of the model.

    Parameters
    ----------
    fields : mapping
        What the `config.json` holds.
    config : ModelConfig
        The model.
    tokenizer : Tokenizer or None
        What turns text into the model's token ids.
    results : mapping
        Of the training, by name, for the model card.
    """
    architecture = get_architecture(config.model_type)
    files = {"README.md": _card(architecture, fields, config, results)}
    if "auto_map" in fields:
        files["modeling_tmm.py"] = _MODELING
    if tokenizer is not None:
        limit = architecture.longest_text(config)
        told = {
            "tokenizer_class": "TokenizersBackend",
            **dict.fromkeys(("bos_token", "eos_token", "pad_token"), tokenizer.end_name),
            "padding_side": "left",  # so that texts can go on
            "split_special_tokens": True,  # a text that spells one is split like any other
            "clean_up_tokenization_spaces": False,
            **({} if math.isinf(limit) else {"model_max_length": limit}),
        }
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.end_of_text)
        files |= {"tokenizer_config.json": as_json(told), "generation_config.json": as_json(ids)}
    return files


def _card(
    architecture: Architecture[Any], fields: Mapping[str, Any], config: ModelConfig, results: Mapping[str, float]
) -> str:
    """Return the model card."""
    loads = "architectures" in fields
    imports = "import tmm_adapters.hf  # or trust_remote_code=True below\n" if "auto_map" in fields else ""
    rows = [f"| {name.replace('_', ' ')} | {value:.6g} |" for name, value in results.items()]
    table = "\n".join(["", "## Results", "", "| | |", "|---|---|", *rows, ""]) if rows else ""
    return _CARD.format(
        library="transformers" if loads else "tmm-core",
        name=config.model_type,
        title=architecture.title,
        parameters=architecture.n_parameters(config),
        summary=architecture.summary(config),
        results=table,
        transformers=_TRANSFORMERS.format(imports=imports) if loads else "",
    )
