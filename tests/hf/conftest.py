"""A small model as users of transformers hold it."""

import copy
from pathlib import Path

import pytest
from support.requirements import import_or_skip

CONFIG = {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_len": 32, "position_bias": False, "linear_init": "scaled"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as our commands write it; nobody may change it."""
    import_or_skip("transformers")
    import tmm_adapters.hf  # noqa: F401  (registers the model)
    from tmm_adapters.pretrained import save_model
    from tmm_adapters.tokenizers import ByteTokenizer
    from tmm_adapters.torch import LanguageModel
    from tmm_core import TMMConfig

    path = tmp_path_factory.mktemp("hub") / "model"
    save_model(path, LanguageModel(TMMConfig(**CONFIG)), ByteTokenizer())
    return path


@pytest.fixture(scope="session")
def loaded(folder: Path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def model(loaded):
    """The model, for one test."""
    return copy.deepcopy(loaded)


@pytest.fixture(scope="session")
def tokenizer(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
