"""Agreement with the paper authors' research code, on the numbers in tests/reference."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.model_variants import VARIANTS

from tmm_adapters.research_code import from_research_code
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig, lm

DATA = Path(__file__).parent.parent / "reference"
# TMM_REFERENCE names a folder with more such files, or newer ones.
FILES = {path.stem: path for folder in (DATA, os.environ.get("TMM_REFERENCE")) if folder for path in
         sorted(Path(folder).glob("*.safetensors"))}  # fmt: skip
# Largest difference over largest value: float32 rounding of three blocks, and that of NumPy float64.
FLOAT32, FLOAT64 = 1e-4, 1e-9


class Reference(NamedTuple):
    config: TMMConfig
    params: dict[str, Any]
    grads: dict[str, Any]
    tensors: dict[str, Any]


def read(name: str) -> tuple[dict[str, Any], dict[str, Any], bool | None]:
    with safe_open(FILES[name], "np") as file:
        tensors, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    told = {key: json.loads(value) for key, value in metadata.items()}
    return tensors, told, told.get("mean")


def part(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


@pytest.fixture(params=sorted(FILES))
def reference(request: pytest.FixtureRequest) -> Reference:
    tensors, _, mean = read(request.param)
    config, params = from_research_code(part(tensors, "param."), mean=mean)
    same, grads = from_research_code(part(tensors, "grad."), mean=mean)
    assert same == config
    return Reference(config, params, grads, tensors)


def difference(got: Any, expected: Any) -> float:
    return float(np.max(np.abs(np.asarray(got) - np.asarray(expected))) / np.max(np.abs(np.asarray(expected))))


def run(params: dict[str, Any], config: TMMConfig, ids: Any) -> tuple[LanguageModel, Any, float]:
    model = LanguageModel.from_params(params, config)
    out = model(torch.from_numpy(ids), labels=torch.from_numpy(ids))
    out["loss"].backward()
    return model, out["logits"].detach().numpy(), out["loss"].item()


def test_every_variant_has_its_file():
    assert set(FILES) >= {
        "flat", "heads4", "kernel3", "two_layer", "two_layer_heads2", "softplus_mean_heads4", "softplus_heads4",
    }  # fmt: skip


def test_torch_agrees_in_float32(reference: Reference):
    tensors = reference.tensors
    model, logits, loss = run(reference.params, reference.config, tensors["input_ids"])
    assert difference(logits, tensors["logits"]) < FLOAT32
    assert difference(loss, tensors["loss"]) < FLOAT32
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert grads.keys() == reference.grads.keys()
    for name, expected in reference.grads.items():
        assert difference(grads[name], expected) < FLOAT32, name


def test_numpy_agrees_in_float32(reference: Reference):
    tensors, ids = reference.tensors, reference.tensors["input_ids"]
    logits = lm.forward(reference.params, ids, reference.config)
    assert logits.dtype == np.float32
    assert difference(logits, tensors["logits"]) < FLOAT32
    assert difference(lm.loss(reference.params, ids, reference.config), tensors["loss"]) < FLOAT32


def test_numpy_and_torch_agree_in_float64(reference: Reference):
    ids = reference.tensors["input_ids"]
    params = {name: p.astype(np.float64) for name, p in reference.params.items()}
    _, logits, loss = run(params, reference.config, ids)
    assert logits.dtype == np.float64
    assert difference(lm.forward(params, ids, reference.config), logits) < FLOAT64
    assert difference(lm.loss(params, ids, reference.config), loss) < FLOAT64


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_configuration_is_that_of_the_file(name: str):
    tensors, told, mean = read(name)
    config, _ = from_research_code(part(tensors, "param."), mean=mean)
    assert (config.vocab_size, config.d_model, config.max_len, config.n_layers) == (
        told["vocab_size"], told["hidden_dim"], told["seq_len"], told["num_blocks"],
    )  # fmt: skip
    assert (config.n_heads, config.kernel_size) == (told.get("heads", 0), told.get("kernel", 1))
    assert (config.mix_layers, config.mean) == (2 if told.get("expanded") else 1, bool(mean))


def test_tensors_of_torch_are_taken():
    tensors, _, _ = read("heads4")
    whole = part(tensors, "param.")
    config, params = from_research_code(whole)
    same, others = from_research_code({name: torch.from_numpy(t).requires_grad_() for name, t in whole.items()})
    assert same == config
    assert all(np.array_equal(others[name], params[name]) for name in params)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
@pytest.mark.parametrize(("name", "mean"), [("heads4", None), ("softplus_heads4", False)])
def test_compiled_and_distributed_models_are_read(name: str, mean: bool | None, prefix: str):
    whole = part(read(name)[0], "param.")
    config, params = from_research_code(whole, mean=mean)
    same, others = from_research_code({prefix + key: tensor for key, tensor in whole.items()}, mean=mean)
    assert same == config
    assert all(np.array_equal(others[key], params[key]) for key in params)
    with pytest.raises(ValueError, match="a mix of two variants"):
        from_research_code({**whole, prefix + next(reversed(whole)): next(reversed(whole.values()))}, mean=mean)


def test_a_missing_output_layer_means_tied():
    tensors, _, _ = read("flat")
    whole = part(tensors, "param.")
    del whole["output_layer.weight"]
    config, params = from_research_code(whole)
    assert config.tie_embeddings
    assert "unembed.weight" not in params


def test_kernels_within_heads_are_read():
    tensors, _, _ = read("heads4")
    whole = part(tensors, "param.")
    rng = np.random.default_rng(0)
    for name in whole:
        if "mixer_heads" in name and name.endswith("weight"):
            whole[name] = rng.standard_normal((3, 20)).astype(np.float32)
    config, params = from_research_code(whole)
    assert (config.n_heads, config.kernel_size) == (4, 3)
    first = whole["mixer_blocks.1.token_mixing_layer.mixer_heads.2.weight"]
    assert np.array_equal(params["blocks.1.mix.lags"][2], first)


@pytest.mark.parametrize("name", ["softplus_heads4", "softplus_mean_heads4"])
def test_softplus_models_ask_for_mean(name: str):
    tensors, _, _ = read(name)
    with pytest.raises(ValueError, match=r"mean=True or mean=False.*--no-mean"):
        from_research_code(part(tensors, "param."))


def _drop(name: str) -> Any:
    return lambda t: t.pop(name)


def _set(name: str, value: Any) -> Any:
    return lambda t: t.update({name: value})


_MIXING = "mixer_blocks.1.token_mixing_layer."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("mixer_blocks.1.channel_norm.bias"), r"blocks\.1\.mlp_norm\.bias is missing"),
        (_drop("mixer_blocks.0.token_mixing_layer.mixer_heads.0.bias"), r"blocks\.0\.mix\.bias is made of the heads"),
        (_drop(_MIXING + "proj_head.3.weight"), r"in_proj\.weight has the shape \(18, 24\), expected \(24, 24\)"),
        (_drop("input_layer.weight"), "expected a state dict of the authors"),
        (_set("optimizer.state", np.zeros(3)), r"unknown tensors \['optimizer\.state'\]"),
        (_set("output_layer.weight", np.zeros((96, 24))), r"unembed\.weight has the shape \(96, 24\)"),
        (_set(_MIXING + "mixer_heads.1.weight", np.zeros((1, 19))), "heads differ in shape"),
        (_set(_MIXING + "weight", np.zeros((1, 20))), "is made of the heads"),
        (_set("input_layer.weight", np.zeros(24)), "two axes"),
        (_set("mixer_blocks.0.token_mixing_layer.out_proj.bias", np.zeros(())), r"out_proj\.bias has the shape \(\)"),
        (_set("mixer_blocks.1000000000.channel_norm.bias", np.zeros(24)), "too few for n_layers=1000000001"),
        (_set(5, np.zeros(24)), r"unknown tensors \['5'\]"),
        (_drop("mixer_blocks.0.channel_mixing_layer.0.weight"), r"give blocks\.0\.mlp\.up\.weight are missing"),
    ],
)  # fmt: skip
def test_other_state_dicts_are_refused(change: Any, message: str):
    tensors, _, _ = read("heads4")
    whole = part(tensors, "param.")
    change(whole)
    with pytest.raises(ValueError, match=message):
        from_research_code(whole)


def test_mean_is_refused_for_plain_lags():
    tensors, _, _ = read("flat")
    with pytest.raises(ValueError, match="leave mean out"):
        from_research_code(part(tensors, "param."), mean=True)


def test_what_is_no_array_is_refused():
    tensors, _, _ = read("flat")
    whole = part(tensors, "param.") | {"input_layer.weight": [[1.0]]}
    with pytest.raises(TypeError, match="expected an array"):
        from_research_code(whole)


def test_our_own_parameters_are_not_the_authors():
    with pytest.raises(ValueError, match="expected a state dict of the authors"):
        from_research_code(lm.init_params(VARIANTS["heads"], np.random.default_rng(0)))
