"""The JAX model: the same function as the Torch model, with its gradients, its training, and what it refuses."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh
from safetensors import safe_open
from support.model_variants import VARIANTS, random_ids, random_params

import tmm_core
from tmm_adapters import jax as model
from tmm_adapters.jax.optimisation import _train_step
from tmm_adapters.research_code import from_research_code
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig, lm
from tmm_lab.training.schedule import learning_rate_factor

HEADS = VARIANTS["heads"]
SMALL = TMMConfig(vocab_size=11, max_len=12, d_model=8, n_layers=1, n_heads=2, d_mlp=12)
# Between them they have every kind of layer; operation by operation each takes JAX seconds.
QUICK = ("later", "kernel_heads", "two_layer_softplus_mean", "tied", "no_blocks")
DATA = sorted((Path(__file__).parent.parent / "reference").glob("*.safetensors"))


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def double(request: pytest.FixtureRequest):
    """Let JAX have 64 bits, unless a test asks for 32."""
    with jax.enable_x64(request.node.get_closest_marker("usefixtures") is None):
        yield


@pytest.fixture
def single() -> None:
    """Leave JAX as it comes, with 32 bits."""


def value_and_grads(params: Any, config: TMMConfig, **batch: Any) -> tuple[float, dict[str, Any]]:
    """Return the loss and its gradients, operation by operation: programs of 29 variants would take a minute."""
    value, grads = jax.value_and_grad(lambda p: model.loss(p, batch["input_ids"], config, **without_ids(batch)))(params)
    return float(value), grads


def without_ids(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in batch.items() if name != "input_ids"}


# --- The same model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in sorted(VARIANTS)]
)
def test_logits_loss_and_gradients_are_those_of_torch(name: str):
    config = VARIANTS[name]
    params, ids = random_params(config), random_ids(config)
    ours = model.from_params(params, config)
    theirs = LanguageModel.from_params(params, config)
    out = theirs(torch.from_numpy(ids), labels=torch.from_numpy(ids))
    out["loss"].backward()
    logits = model.apply(ours, ids, config)
    assert logits.dtype == jnp.float64
    assert np.asarray(logits) == pytest.approx(out["logits"].detach().numpy(), rel=1e-9, abs=1e-9)
    value, grads = value_and_grads(ours, config, input_ids=ids)
    assert value == pytest.approx(out["loss"].item(), rel=1e-9)
    for key, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            assert np.asarray(grads[key]) == pytest.approx(parameter.grad.numpy(), rel=1e-8, abs=1e-10), key


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_the_research_code_is_met(path: Path):
    with safe_open(path, "np") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        mean = json.loads((file.metadata() or {}).get("mean", "null"))
    kinds = [{k.removeprefix(p): t for k, t in tensors.items() if k.startswith(p)} for p in ("param.", "grad.")]
    (config, params), (_, expected) = (from_research_code(kind, mean=mean) for kind in kinds)
    ours, ids = model.from_params(params, config), tensors["input_ids"]
    assert difference(model.apply(ours, ids, config), tensors["logits"]) < 1e-4
    value, grads = value_and_grads(ours, config, input_ids=ids)
    assert difference(value, tensors["loss"]) < 1e-4
    assert grads.keys() == expected.keys()
    for key, grad in expected.items():
        assert grads[key].dtype == jnp.float32
        assert difference(grads[key], grad) < 1e-4, key


def difference(got: Any, expected: Any) -> float:
    return float(np.max(np.abs(np.asarray(got) - np.asarray(expected))) / np.max(np.abs(np.asarray(expected))))


@pytest.mark.usefixtures("single")
def test_the_same_seed_is_the_same_model():
    params = model.init(HEADS, seed=7)
    assert {name: p.shape for name, p in params.items()} == lm.parameter_shapes(HEADS)
    for name, p in lm.init_params(HEADS, np.random.default_rng(7)).items():
        assert np.array_equal(params[name], p)
        assert params[name].dtype == jnp.float32


def test_parameters_are_copied_from_any_library():
    given = {name: torch.from_numpy(p) for name, p in random_params(HEADS).items()}
    before = {name: tensor.numpy().copy() for name, tensor in given.items()}
    params = model.from_params(given, HEADS)
    for tensor in given.values():
        tensor.add_(1)
    assert all(np.array_equal(p, before[name]) for name, p in params.items())


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize("name", [pytest.param("two_layer_heads", marks=pytest.mark.slow), "later"])
def test_bfloat16_is_that_of_autocast(name: str):
    config = VARIANTS[name]
    params, ids = random_params(config, np.float32), random_ids(config)
    theirs = LanguageModel.from_params(params, config)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        expected = theirs(torch.from_numpy(ids), labels=torch.from_numpy(ids))
    ours = model.from_params(params, config)
    exact = model.apply(ours, ids, config)
    logits = model.apply(ours, ids, config, precision="bfloat16")
    assert (exact.dtype, logits.dtype) == (jnp.float32, jnp.bfloat16)
    assert 0 < difference(logits.astype("float32"), exact) < 0.05  # eps 8e-3, ten roundings deep
    assert difference(logits.astype("float32"), expected["logits"].float().numpy()) < 0.05
    value, grads = jax.value_and_grad(model.loss)(ours, ids, config, precision="bfloat16")
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(expected["loss"].item(), rel=0.02)
    assert {grad.dtype for grad in grads.values()} == {jnp.dtype("float32")}


# --- Batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heads", "later", "kernel_heads"])
def test_rows_do_not_depend_on_padding_or_packing(name: str):
    config = VARIANTS[name]
    params, ids = model.from_params(random_params(config), config), random_ids(config, (1, 12))
    alone = [np.asarray(model.apply(params, row, config)) for row in (ids[:, :5], ids[:, 5:])]
    packed = model.apply(params, ids, config, segment_ids=np.asarray([[3] * 5 + [8] * 7]))
    assert np.asarray(packed) == pytest.approx(np.concatenate(alone, axis=1), abs=1e-12)
    for mask, slots, row in (([0] * 7 + [1] * 5, slice(7, 12), ids[:, :5]), ([1] * 7 + [0] * 5, slice(7), ids[:, 5:])):
        padded = np.zeros_like(ids)
        padded[:, slots] = row
        logits = np.asarray(model.apply(params, padded, config, attention_mask=np.asarray([mask])))
        assert np.isfinite(logits).all()
        assert logits[:, slots] == pytest.approx(alone[0 if mask[0] == 0 else 1], abs=1e-12)


def test_the_loss_counts_what_the_definition_counts():
    params, ids = random_params(SMALL), random_ids(SMALL)
    ours = model.from_params(params, SMALL)
    labels, mask = ids.copy(), np.ones_like(ids)
    labels[0, 3] = -100
    mask[1, :4] = 0
    segments = np.asarray([[0] * 5 + [1] * 7] * 2)
    shifted = np.concatenate([ids[:, 1:], np.full((2, 1), 4)], axis=1)
    for batch in (
        {"labels": labels},
        {"segment_ids": segments},
        {"attention_mask": mask},
        {"attention_mask": mask, "segment_ids": segments, "labels": labels},
        {"targets": shifted, "segment_ids": segments},
    ):
        expected = lm.loss(params, ids, SMALL, **batch)
        assert float(model.loss(ours, ids, SMALL, **batch)) == pytest.approx(float(expected), rel=1e-12), list(batch)
    assert np.isnan(model.loss(ours, ids, SMALL, labels=np.full_like(ids, -100)))


def test_traced_code_makes_nan_of_what_eager_code_refuses():
    config = dataclasses.replace(SMALL, n_layers=0)
    params, ids = model.from_params(random_params(config), config), random_ids(config)
    run = jax.jit(lambda ids, mask: model.apply(params, ids, config, attention_mask=mask))
    mask = np.ones_like(ids)
    ids[1, 3], ids[0, 2] = 11, -1
    logits = run(ids, mask)
    assert np.isnan(logits[1, 3]).all()
    assert np.isnan(logits[0, 2]).all()
    assert np.isfinite(logits).sum() == 22 * 11
    mask[0, 2:4] = 0
    assert np.isnan(run(random_ids(config), mask)[0]).all()
    assert np.isfinite(run(random_ids(config), mask)[1]).all()
    run = jax.jit(lambda labels: model.loss(params, random_ids(config), config, labels=labels))
    assert np.isnan(run(np.full_like(ids, 11)))
    assert np.isnan(run(np.full_like(ids, -3)))


# --- Training ---------------------------------------------------------------------------------------------------------


def torch_losses(params: Any, config: TMMConfig, batches: Any, rate: float, clip: float) -> list[float]:
    """Train as `tmm train` does, by Torch's own AdamW and clipping."""
    theirs = LanguageModel.from_params(params, config)
    linear = {f"{name}.weight" for name, module in theirs.named_modules() if isinstance(module, torch.nn.Linear)}
    trained = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for name, p in trained.items() if name in linear], "weight_decay": 0.1},
        {"params": [p for name, p in trained.items() if name not in linear], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step, ids in enumerate(map(torch.from_numpy, batches)):
        for group in adamw.param_groups:
            group["lr"] = rate * learning_rate_factor(step, len(batches), 20)
        loss = theirs(ids, labels=ids)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), clip)
        adamw.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses


def jax_losses(params: Any, config: TMMConfig, batches: Any, rate: float, clip: float) -> tuple[list[float], Any]:
    params = model.from_params(params, config)
    adamw = model.optimizer(config, learning_rate=rate, clip=clip)
    state, losses = adamw.init(params), []
    for step, ids in enumerate(batches):
        factor = learning_rate_factor(step, len(batches), 20)
        params, state, loss = model.train_step(params, state, {"input_ids": ids}, config, adamw, rate=factor)
        losses.append(float(loss))
    return losses, params


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 1e-4), (np.float64, 1e-9)])
def test_200_steps_are_those_of_torch(dtype: Any, most: float):
    config = dataclasses.replace(SMALL, frozen="projections", max_len=16)
    first = lm.init_params(config, np.random.default_rng(0))
    first = {name: p.astype(dtype) for name, p in first.items()}
    batches = np.cumsum(np.random.default_rng(1).integers(0, 3, (200, 4, 16)), axis=-1) % 11
    with jax.enable_x64(dtype == np.float64):
        losses, params = jax_losses(first, config, batches, 0.02, clip=0.5)
    expected = torch_losses(first, config, batches, 0.02, clip=0.5)
    assert np.max(np.abs(np.asarray(losses) / expected - 1)) < most
    assert losses[-1] < 0.7 * losses[0]
    moved = {name for name, p in params.items() if not np.array_equal(p, first[name])}
    assert moved == set(first) - lm.frozen_names(config)


def test_accumulated_batches_are_one_batch():
    config = dataclasses.replace(SMALL, n_layers=0)
    first, ids = random_params(config), random_ids(config, (6, 12))
    targets = np.roll(ids, -1, axis=1)
    targets[0, 2:] = -100
    adamw = model.optimizer(config, learning_rate=0.1)

    def step(*shape: int) -> Any:
        params = model.from_params(first, config)
        batch = {"input_ids": ids.reshape(*shape, 12), "targets": targets.reshape(*shape, 12)}
        return model.train_step(params, adamw.init(params), batch, config, adamw)

    (whole, _, loss), (parts, _, same) = step(6), step(3, 2)
    assert float(same) == pytest.approx(float(loss), rel=1e-12)
    for name, p in whole.items():
        assert np.asarray(parts[name]) == pytest.approx(np.asarray(p), abs=1e-12), name


def test_the_state_before_a_step_is_given_up_and_no_step_compiles_again():
    config = dataclasses.replace(SMALL, n_layers=0)
    params = model.init(config)
    adamw = model.optimizer(config, learning_rate=0.1)
    assert adamw is model.optimizer(config, learning_rate=0.1)
    before, compiled = (params, adamw.init(params)), _train_step._cache_size()
    for _ in range(3):
        params, state, _ = model.train_step(*before, {"input_ids": random_ids(config)}, config, adamw)
        assert all(array.is_deleted() for array in jax.tree.leaves(before))
        before = params, state
    assert _train_step._cache_size() == compiled + 1


def test_a_choice_of_backend_reaches_each_step():
    """A program keeps the engine that it was compiled with: another choice is another program."""
    config = dataclasses.replace(SMALL, n_layers=0, d_model=2)
    adamw = model.optimizer(config, learning_rate=0.1)

    def step(**options: Any) -> None:
        params = model.init(config)
        model.train_step(params, adamw.init(params), {"input_ids": random_ids(config)}, config, adamw, **options)

    compiled = _train_step._cache_size()
    step(backend="numpy")
    with tmm_core.use_backend("jax"):
        step()
        step(backend="numpy")
    assert _train_step._cache_size() == compiled + 2


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("single")
def test_64_bits_are_refused_where_jax_makes_32_of_them():
    with pytest.raises(TypeError, match=r"jax.* makes float32 of float64.*jax_enable_x64"):
        model.from_params(random_params(HEADS), HEADS)
    with jax.enable_x64(True):
        params = model.from_params(random_params(HEADS), HEADS)
    with pytest.raises(ValueError, match=r"float64, of which JAX makes float32.*jax_enable_x64"):
        model.apply(params, random_ids(HEADS), HEADS)


def test_other_parameters_are_refused():
    params = model.init(HEADS)
    ids = random_ids(HEADS)
    with pytest.raises(TypeError, match=r"unembed\.weight is a numpy\.ndarray: convert them by from_params"):
        model.apply({**params, "unembed.weight": np.asarray(params["unembed.weight"])}, ids, HEADS)
    with pytest.raises(TypeError, match=r"params must be a Mapping, and is a .*: the order is \(params, …, config\)"):
        model.apply(ids, params, HEADS)
    with pytest.raises(TypeError, match=r"config must be a TMMConfig, and is 'paper': make one"):
        model.init("paper")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"unembed\.weight is unknown"):
        model.apply(params, ids, VARIANTS["tied"])
    with pytest.raises(ValueError, match=r"embed\.weight has the shape \(11, 8\), expected \(12, 8\)"):
        model.loss(params, ids, dataclasses.replace(HEADS, vocab_size=12))
    adamw = model.optimizer(HEADS, learning_rate=0.1)
    with pytest.raises(ValueError, match=r"unembed\.weight is missing"):
        model.train_step({}, None, {"input_ids": ids}, dataclasses.replace(HEADS, n_layers=0), adamw)


@pytest.mark.parametrize("function", [model.apply, model.loss, lm.forward, lm.loss])
def test_arguments_in_another_order_are_refused(function):
    arguments = (model.init(HEADS), jnp.asarray(random_ids(HEADS)), HEADS)
    for order in list(itertools.permutations(arguments))[1:]:
        with pytest.raises(TypeError, match=r"^(params|config) must be an? .*, and is an? "):
            function(*order)


def test_arguments_of_a_step_in_another_order_are_refused():
    adamw = model.optimizer(HEADS, learning_rate=0.1)
    params, batch = model.init(HEADS), {"input_ids": random_ids(HEADS)}
    for order in list(itertools.permutations((batch, HEADS, adamw)))[1:]:
        with pytest.raises(TypeError, match=r"^(batch|config|optimizer) must be .*, (got|and is an?) "):
            model.train_step(params, adamw.init(params), *order)


@pytest.mark.parametrize(
    ("batch", "error", "match"),
    [
        ({"input_ids": torch.zeros(2, 12).long()}, TypeError, r"input_ids must be an array of JAX or NumPy, got torch"),
        ({"input_ids": [[1, 2]]}, TypeError, r"input_ids must be an array of JAX or NumPy, got builtins\.list"),
        ({"input_ids": np.ones((2, 12))}, TypeError, "input_ids must be an array of integers, got float64"),
        ({"input_ids": np.ones(12, int)}, ValueError, r"input_ids must have the shape \(batch, n\), got \(12,\)"),
        ({"input_ids": np.full((2, 12), 11)}, ValueError, "token 11 is outside the vocabulary of 11"),
        ({"input_ids": np.full((2, 12), 1 << 40)}, ValueError, "token 1099511627776 is outside the vocabulary"),
        ({"labels": np.full((2, 12), -3)}, ValueError, "label -3 is outside the vocabulary of 11"),
        ({"targets": np.full((2, 12), 11)}, ValueError, "label 11 is outside the vocabulary of 11"),
        ({"labels": np.ones((2, 11), int)}, ValueError, "labels must have the shape of input_ids"),
        ({"labels": np.ones((2, 12), int), "targets": np.ones((2, 12), int)}, ValueError, "both given"),
        ({"attention_mask": np.asarray([[1, 0, 1] + [1] * 9] * 2)}, ValueError, "attention_mask has a hole"),
        ({"attention_mask": np.zeros((2, 12), int)}, ValueError, "padding only"),
        ({"segment_ids": np.asarray([[1] * 6 + [0] * 6] * 2)}, ValueError, "segment_ids must not decrease"),
        ({"input_ids": np.ones((2, 13), int)}, ValueError, "13 positions .* only max_len=12"),
    ],
)
def test_batches_that_would_be_misread_are_refused(batch: dict[str, Any], error: type[Exception], match: str):
    params = model.init(SMALL)
    batch = {"input_ids": np.ones((2, 12), int), **batch}
    with pytest.raises(error, match=match):
        model.loss(params, **batch, config=SMALL)


def test_batches_with_something_else_are_refused():
    adamw, params = model.optimizer(SMALL, learning_rate=0.1), model.init(SMALL)
    batch = {"input_ids": np.ones((2, 12), int), "mask": np.ones((2, 12), int)}
    with pytest.raises(ValueError, match=r"a batch holds input_ids, and may hold labels, .*; got input_ids, mask"):
        model.train_step(params, adamw.init(params), batch, SMALL, adamw)


def test_a_mesh_that_does_not_fit_is_refused():
    params, ids = model.init(SMALL), random_ids(SMALL)
    with pytest.raises(ValueError, match=r"mesh must have the axes 'data' and 'model'.*make it by jax\.sharding\.Mesh"):
        model.apply(params, ids, SMALL, mesh=Mesh(np.asarray(jax.devices()[:1]), ("data",)))


def test_an_engine_of_the_cpu_is_refused_in_programs_for_accelerators():
    params, ids = model.init(SMALL), random_ids(SMALL)

    def export(backend: str) -> Any:
        program = jax.jit(lambda p, i: model.loss(p, i, SMALL, backend=backend))
        return jax.export.export(program, platforms=["cuda"])(params, ids)

    assert "tmm_core_host_engine" not in export("jax").mlir_module()
    with pytest.raises(ValueError, match=r"'numba'.*another platform.*choose backend='jax'"):
        export("numba")
