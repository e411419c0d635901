"""The PyTorch model: the same function as `tmm_core.lm`, with gradients, and what training tools ask of it."""

import copy
import dataclasses
import functools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from support.model_variants import VARIANTS, random_ids, random_params
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig, lm

HEADS = VARIANTS["heads"]


@pytest.fixture(params=sorted(VARIANTS))
def config(request: pytest.FixtureRequest) -> TMMConfig:
    return VARIANTS[request.param]


def model_of(config: TMMConfig, dtype: Any = np.float32) -> LanguageModel:
    return LanguageModel.from_params(random_params(config, dtype), config)


def ids_of(config: TMMConfig, shape: tuple[int, ...] = (2, 12)) -> Tensor:
    return torch.from_numpy(random_ids(config, shape))


# --- The same model ---------------------------------------------------------------------------------------------------


def test_logits_loss_and_gradients_are_those_of_the_definition(config: TMMConfig):
    params, ids = random_params(config), random_ids(config)
    model = LanguageModel.from_params(params, config)
    out = model(torch.from_numpy(ids), labels=torch.from_numpy(ids))
    out["loss"].backward()
    assert out["logits"].dtype == torch.float64
    assert out["logits"].detach().numpy() == pytest.approx(lm.forward(params, ids, config), rel=1e-9, abs=1e-9)
    assert out["loss"].item() == pytest.approx(lm.loss(params, ids, config), rel=1e-9)
    rng = np.random.default_rng(2)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        direction = rng.standard_normal(parameter.shape)
        slope = _slope(params, name, direction, ids, config)
        assert np.vdot(parameter.grad.numpy(), direction) == pytest.approx(slope, rel=1e-6, abs=1e-8), name


def _slope(params: dict[str, Any], name: str, direction: Any, ids: Any, config: TMMConfig, h: float = 1e-3) -> float:
    """Return the directional derivative of the definition's loss by the central formula of order 4."""
    f = [lm.loss({**params, name: params[name] + s * h * direction}, ids, config) for s in (-2, -1, 1, 2)]
    return float((f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h))


def test_names_and_shapes_are_those_of_the_definition(config: TMMConfig):
    model = LanguageModel(config)
    assert {name: tuple(p.shape) for name, p in model.state_dict().items()} == lm.parameter_shapes(config)


def test_the_same_seed_is_the_same_model_and_draws_nothing_from_torch():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    params = LanguageModel(HEADS, seed=7).params()
    assert torch.equal(torch.rand(3), expected)
    for name, p in lm.init_params(HEADS, np.random.default_rng(7)).items():
        assert np.array_equal(params[name], p)


def test_parameters_are_copied_both_ways():
    given = random_params(HEADS)
    model = LanguageModel.from_params(given, HEADS)
    taken = model.params()
    before = {name: p.copy() for name, p in given.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    for name, p in before.items():
        assert np.array_equal(given[name], p)
        assert np.array_equal(taken[name], p)


def test_parameters_of_any_layout_are_taken():
    given = random_params(HEADS)
    turned = {name: np.flip(np.flip(p).copy()) for name, p in given.items()}  # the same values, strides below zero
    for p in turned.values():
        p.flags.writeable = False
    again = LanguageModel.from_params(turned, HEADS).params()
    assert all(np.array_equal(again[name], p) for name, p in given.items())


def test_bfloat16_parameters_go_there_and_back():
    model = model_of(HEADS).to(torch.bfloat16)
    again = LanguageModel.from_params(model.params(), HEADS)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    out = again(ids_of(HEADS), labels=ids_of(HEADS))
    assert (out["logits"].dtype, out["loss"].dtype) == (torch.bfloat16, torch.float32)
    exact = model_of(HEADS)(ids_of(HEADS))["logits"]
    assert (out["logits"] - exact).abs().max() < 0.05 * exact.abs().max()  # eps 8e-3, ten roundings deep


def test_the_model_can_be_made_without_values():
    with torch.device("meta"):
        model = LanguageModel(HEADS)
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("change", [np.ndarray.tolist, lambda p: p.astype(int), lambda p: p + 0j])
def test_parameters_that_are_no_floating_arrays_are_refused(change: Any):
    params = random_params(HEADS)
    with pytest.raises(TypeError, match=r"embed\.weight must be a floating array, got (list|int64|complex128)"):
        LanguageModel.from_params({**params, "embed.weight": change(params["embed.weight"])}, HEADS)


def test_foreign_parameters_are_refused():
    with pytest.raises(ValueError, match=r"unembed\.weight is missing"):
        LanguageModel.from_params(random_params(VARIANTS["tied"]), HEADS)
    with pytest.raises(TypeError, match="config must be a TMMConfig, and is 'paper': make one, such as"):
        LanguageModel("paper")  # type: ignore[arg-type]


# --- What training tools ask for --------------------------------------------------------------------------------------


def test_weights_of_linear_maps_decay(config: TMMConfig):
    linear = {f"{name}.weight" for name, m in model_of(config).named_modules() if isinstance(m, nn.Linear)}
    assert lm.decayed_names(config) == linear


def test_the_modules_are_standard_ones():
    kinds = {name: type(module) for name, module in LanguageModel(HEADS).named_modules()}
    for name in ("mlp.up", "mlp.down", "mix.in_proj", "mix.out_proj"):
        assert kinds[f"blocks.0.{name}"] is nn.Linear
    assert (kinds["embed"], kinds["unembed"], kinds["blocks.0.mix_norm"]) == (nn.Embedding, nn.Linear, nn.LayerNorm)
    assert type(LanguageModel(VARIANTS["rms"]).blocks[0].mlp_norm) is nn.RMSNorm


def test_every_module_computes_by_its_own_call(config: TMMConfig):
    """Adapters and quantisers replace modules: a weight that is read past its module would ignore them."""
    model, called = model_of(config), set()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    model(ids_of(config))
    assert called >= {name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)}


def test_frozen_parameters_stay(config: TMMConfig):
    model = model_of(config)
    before = model.params()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(ids_of(config), labels=ids_of(config))["loss"].backward()
    optimizer.step()
    moved = {name for name, p in model.params().items() if not np.array_equal(p, before[name])}
    assert moved == set(before) - lm.frozen_names(config)


def test_labels_of_minus_100_do_not_count():
    model, ids = model_of(HEADS, np.float64), ids_of(HEADS)
    labels = ids.clone()
    labels[0, 2:] = -100
    expected = lm.loss(model.params(), ids.numpy(), HEADS, labels=labels.numpy())
    assert model(ids, labels=labels)["loss"].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("token", "named"), [(11, "11"), (-3, "-3")])
def test_a_token_outside_the_vocabulary_is_refused(token: int, named: str):
    model, ids = model_of(HEADS), ids_of(HEADS)
    ids[1, 3] = token
    with pytest.raises(ValueError, match=f"token {named} is outside the vocabulary of 11"):
        model(ids)


def test_a_label_outside_the_vocabulary_is_refused():
    ids = ids_of(HEADS)
    with pytest.raises(ValueError, match="label 11 is outside the vocabulary of 11"):
        model_of(HEADS)(ids, labels=torch.full_like(ids, 11))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_integers_of_any_width_are_tokens(dtype: torch.dtype):
    model, ids = model_of(HEADS), ids_of(HEADS)
    expected, out = model(ids, labels=ids), model(ids.to(dtype), labels=ids.to(dtype))
    assert torch.equal(out["logits"], expected["logits"])
    assert torch.equal(out["loss"], expected["loss"])


@pytest.mark.parametrize("ids", [[[1, 2]], np.ones((1, 2), int), torch.zeros(1, 3), torch.ones(1, 3).bool()])
def test_tokens_and_labels_that_are_no_tensors_of_integers_are_refused(ids: Any):
    model = model_of(HEADS)
    with pytest.raises(TypeError, match="input_ids must be a tensor of integers"):
        model(ids)
    with pytest.raises(TypeError, match="input_ids must be a tensor of integers"):
        model.generate(ids, 1)
    with pytest.raises(TypeError, match="labels must be a tensor of integers"):
        model(ids_of(HEADS), labels=ids)


@pytest.mark.parametrize("shape", [(12,), (2, 11), (3, 8), (12, 2), (1, 12)])
def test_other_shapes_are_refused(shape: tuple[int, ...]):
    """Labels of another shape and as many entries would give a loss, and a wrong one."""
    model, ids = model_of(HEADS), ids_of(HEADS)
    with pytest.raises(ValueError, match=r"labels must have the shape of input_ids.* and \(2, 12\)"):
        model(ids, labels=torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ValueError, match="with two positions or more"):
        model(ids[:, :1], labels=ids[:, :1])
    with pytest.raises(ValueError, match=r"input_ids must have the shape \(batch, n\), got \(2,\)"):
        model(ids[:, 0])


def test_batches_and_sequences_may_be_empty():
    model, ids = model_of(HEADS), ids_of(HEADS)
    assert model(ids[:0])["logits"].shape == (0, 12, 11)
    assert model(ids[:, :0])["logits"].shape == (2, 0, 11)
    assert model(ids, labels=torch.full_like(ids, -100))["loss"].isnan()


def test_a_sequence_longer_than_the_position_bias_is_refused():
    with pytest.raises(ValueError, match=r"13 positions and the position bias only max_len=12"):
        model_of(HEADS)(ids_of(HEADS, (1, 13)))


@pytest.mark.parametrize("name", ["heads", "later", "two_layer_heads"])
def test_autocast_computes_in_bfloat16_and_the_loss_in_float32(name: str):
    model, ids = model_of(VARIANTS[name]), ids_of(VARIANTS[name])
    exact = model(ids, labels=ids)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(ids, labels=ids)
    out["loss"].backward()
    assert (out["logits"].dtype, out["loss"].dtype) == (torch.bfloat16, torch.float32)
    assert out["loss"].item() == pytest.approx(exact["loss"].item(), rel=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")  # of inductor's own import
@pytest.mark.parametrize(
    ("name", "backend"),
    [("heads", "aot_eager"), ("later", "aot_eager"), pytest.param("flat", "inductor", marks=pytest.mark.slow)],
)
def test_compiled_whole_it_computes_the_same(name: str, backend: str):
    config = dataclasses.replace(VARIANTS[name], n_layers=1)
    eager, ids = model_of(config, np.float64), ids_of(config)
    whole = copy.deepcopy(eager)
    compiled = torch.compile(whole, fullgraph=True, backend=backend)
    expected, out = eager(ids, labels=ids), compiled(ids, labels=ids)
    assert torch.allclose(out["logits"], expected["logits"], rtol=1e-9, atol=1e-9)
    assert torch.allclose(out["loss"], expected["loss"], rtol=1e-9)
    expected["loss"].backward()
    out["loss"].backward()
    for a, b in zip(whole.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-8, atol=1e-10)


def test_functional_transforms_see_through_the_model():
    """Per-example gradients and ensembles, as `torch.func` makes them."""
    model, other, ids = model_of(HEADS, np.float64), LanguageModel(HEADS, seed=5).double(), ids_of(HEADS)
    call = torch.func.functional_call
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return call(model, p, (row[None],), {"labels": row[None]})["loss"]

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, ids)
    for b in range(2):
        model.zero_grad()
        model(ids[b : b + 1], labels=ids[b : b + 1])["loss"].backward()
        assert all(torch.allclose(grads[name][b], p.grad) for name, p in model.named_parameters())
    stacked, _ = torch.func.stack_module_state([model, other])
    logits = torch.func.vmap(lambda p: call(copy.deepcopy(model).to("meta"), p, (ids,))["logits"])(stacked)
    assert torch.allclose(logits, torch.stack([model(ids)["logits"], other(ids)["logits"]]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_can_be_computed_again_in_the_backward_pass(reentrant: bool):
    plain, ids = model_of(HEADS), ids_of(HEADS)
    saving = copy.deepcopy(plain)
    for block in saving.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=reentrant)
    for model in (plain, saving):
        model(ids, labels=ids)["loss"].backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), saving.parameters(), strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_share_nothing(copied: Any):
    model, ids = model_of(VARIANTS["tied"]), ids_of(VARIANTS["tied"])
    expected = model(ids)["logits"]
    other = copied(model)
    torch.nn.utils.parametrize.register_parametrization(model.blocks[0].mix, "lags", nn.Softplus())
    assert torch.equal(other(ids)["logits"], expected)
    assert not torch.equal(model(ids)["logits"], expected)
