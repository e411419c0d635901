"""Model folders that transformers and our readers both read, whoever wrote them."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.requirements import import_or_skip

import_or_skip("transformers")
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils

from tmm_adapters.architecture import architectures, get_architecture
from tmm_adapters.hf import TMMForCausalLM, TMMPretrainedConfig
from tmm_adapters.pretrained import load_model, read_config, save_model, save_params
from tmm_adapters.tokenizers import ByteTokenizer, Tokenizer, train_tokenizer
from tmm_core import TMMConfig, lm

IDS = torch.arange(22).reshape(2, 11)
TEXT = "Née à <|endoftext|> 北京 \n\x00🙂"


def test_they_go_from_us_to_transformers_and_back(folder: Path, loaded, tmp_path: Path):
    assert type(loaded) is TMMForCausalLM
    ours, _ = load_model(folder, device="cpu")
    assert torch.equal(loaded(IDS).logits, ours(IDS).logits)
    assert AutoConfig.from_pretrained(folder).core() == read_config(folder) == ours.config
    loaded.save_pretrained(tmp_path / "theirs")
    again, _ = load_model(tmp_path / "theirs", device="cpu")
    assert torch.equal(again(IDS).logits, ours(IDS).logits)
    assert again.config == ours.config


@pytest.mark.parametrize(
    "options", [{}, {"device_map": "cpu"}, {"dtype": "bfloat16"}, {"dtype": torch.float64}], ids=str
)
def test_shards_are_read_on_any_device_in_any_dtype(loaded, tmp_path: Path, options: dict):
    loaded.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    again = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    dtype = options.get("dtype", torch.float32)
    assert again.dtype == (getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    assert all(torch.equal(p, q.to(p.dtype)) for p, q in zip(again.parameters(), loaded.parameters(), strict=True))


@pytest.mark.parametrize("frozen", ["none", "lags", "projections"])
def test_parameters_that_are_not_trained_are_not_after_loading(tmp_path: Path, frozen: str):
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16, frozen=frozen, tie_embeddings=True)
    save_params(tmp_path / "model", lm.init_params(config, np.random.default_rng(0)), config)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == set(lm.frozen_names(config))


def test_a_larger_vocabulary_is_kept(model, tmp_path: Path):
    model.resize_token_embeddings(300, mean_resizing=False)
    model.save_pretrained(tmp_path)
    assert read_config(tmp_path).vocab_size == 300
    assert AutoModelForCausalLM.from_pretrained(tmp_path)(IDS + 278).logits.shape == (2, 11, 300)


@pytest.fixture(params=["bytes", "words"], scope="module")
def ours(request) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else train_tokenizer(["to be or not to be " * 9], 270)


def test_tokenizers_read_and_write_as_ours(ours: Tokenizer, tmp_path: Path):
    config = TMMConfig(vocab_size=ours.vocab_size, d_model=8, n_layers=1, n_heads=2, max_len=16)
    save_params(tmp_path / "model", lm.init_params(config, np.random.default_rng(0)), config, ours)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert theirs(TEXT)["input_ids"] == ours.encode(TEXT)
    assert theirs.eos_token_id == theirs.pad_token_id == ours.end_of_text
    assert theirs.model_max_length == config.max_len  # texts end with the position bias
    rng = np.random.default_rng(0)
    ids = [token for token in range(ours.vocab_size) if token != ours.end_of_text]
    for _ in range(500):  # of bytes at random hardly any are UTF-8
        some = rng.choice(ids, rng.integers(9)).tolist()
        assert theirs.decode(some) == ours.decode(some), some
    batch = theirs(["to", "to be"], padding=True, return_tensors="pt")
    assert batch["attention_mask"][0].tolist() == sorted(batch["attention_mask"][0].tolist())


@pytest.mark.parametrize("name", architectures())
def test_every_architecture_writes_whole_folders(name: str, tmp_path: Path):
    architecture = get_architecture(name)
    sizes = {"vocab_size": 257, "max_len": 16, "d_model": 64, "n_layers": 1}
    if name == "linear-attention":
        import_or_skip("linear_attention_transformer")
    config = architecture.config_class.preset(**sizes)
    model = architecture.torch_model(config, seed=0)
    save_model(tmp_path / "model", model, ByteTokenizer(), config=config)
    card = (tmp_path / "model" / "README.md").read_text()
    assert architecture.title in card
    assert f"{architecture.n_parameters(config):,} parameters" in card
    assert AutoTokenizer.from_pretrained(tmp_path / "model").decode(list(b"text")) == "text"
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert set(generation.values()) == {256}
    assert ("AutoModelForCausalLM" in card) == (config.model_type in {"tmm", "llama", "window", "mamba2"})
    if "AutoModelForCausalLM" in card:
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
        torch.testing.assert_close(theirs(IDS).logits, model.eval()(IDS).logits)


def test_the_card_has_the_results_of_the_run(tmp_path: Path):
    config = TMMConfig(d_model=8, n_layers=1, n_heads=2, max_len=16)
    params = lm.init_params(config, np.random.default_rng(0))
    save_params(tmp_path / "model", params, config, results={"held-out bits per byte": 2.125})
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| held-out bits per byte | 2.125 |" in card
    front = card.split("---\n")[1].splitlines()
    assert {"library_name: transformers", "pipeline_tag: text-generation", "- tmm"} <= set(front)


def test_code_that_has_never_heard_of_us_loads_it(folder: Path, loaded, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(CONFIG_MAPPING._extra_content, "tmm")  # as before tmm_adapters.hf is imported
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        AutoConfig.from_pretrained(folder, trust_remote_code=False)
    for where in (folder, tmp_path / "again"):
        model = AutoModelForCausalLM.from_pretrained(where, trust_remote_code=True)
        assert type(model) is not TMMForCausalLM
        assert isinstance(model, TMMForCausalLM)
        assert torch.equal(model(IDS).logits, loaded(IDS).logits)
        model.save_pretrained(tmp_path / "again")
        assert (tmp_path / "again" / "modeling_tmm.py").is_file()


def test_what_is_not_whole_or_not_ours_is_refused(folder: Path, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match="architecture 'llama', not of 'tmm'"):
        TMMForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["blocks.0.mix.lags"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"the weights lack blocks\.0\.mix\.lags"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    assert TMMPretrainedConfig.from_pretrained(folder, n_layers=3).core().n_layers == 3
