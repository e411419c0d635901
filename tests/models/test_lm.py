"""The language model in array-API calls: parameters, logits, loss, and what it refuses."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.model_variants import VARIANTS, random_ids, random_params

from tmm_core import TMMConfig, lm, mix_tokens
from tmm_core.errors import InputTypeError
from tmm_core.testing import Library

HEADS = VARIANTS["heads"]
PAPER_SIZE = TMMConfig(vocab_size=300, max_len=64, d_model=32, n_layers=2, n_heads=4)


@pytest.fixture(params=sorted(VARIANTS))
def config(request: pytest.FixtureRequest) -> TMMConfig:
    return VARIANTS[request.param]


# --- Streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["array_api", "numpy", "numba", "torch"])
@pytest.mark.parametrize("name", ["no_position_bias", "heads", "kernel"])
def test_caches_are_renewed_and_hold_no_place_for_tokens_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch, name: str, backend: str
):
    monkeypatch.setattr("tmm_core.lm.plans.WINDOW", 1)
    config = VARIANTS[name]
    n = 60 if config.longest_text > 60 else config.max_len
    params, ids = random_params(config), random_ids(config, (2, n))
    expected = lm.forward(params, ids, config)
    most = 1 << (config.max_len - 1).bit_length()
    for chunks in ([1] * n, [7, 1, 1, n - 11, 1, 1], [3, 1, *[5] * 8]):
        plan = lm.stream_plan(params, config, n if config.longest_text == n else 10**9, backend=backend)
        state, t = lm.stream_init(plan, 2), 0
        for count in chunks:
            if t + count > n:
                break
            if count == 1:
                logits, state = lm.stream_step(plan, state, ids[:, t])
            else:
                logits, state = lm.stream_prefill(plan, state, ids[:, t : t + count])
            t += count
            np.testing.assert_allclose(logits, expected[:, t - 1], atol=1e-9)
            assert all(cache.shape[1] <= most for cache in state.caches.values())


# --- Parameters -------------------------------------------------------------------------------------------------------


def test_initial_parameters_have_the_stated_shapes_and_one_source(config: TMMConfig):
    first, again, other = (lm.init_params(config, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert {name: p.shape for name, p in first.items()} == lm.parameter_shapes(config)
    assert all(p.dtype == np.float32 and np.isfinite(p).all() for p in first.values())
    assert all(np.array_equal(p, again[name]) for name, p in first.items())
    assert not np.array_equal(first["embed.weight"], other["embed.weight"])


def test_linear_maps_start_as_in_pytorch_and_embeddings_as_asked():
    config = dataclasses.replace(PAPER_SIZE, embed_std=0.1)
    params = lm.init_params(config, np.random.default_rng(0))
    for name, fan_in in {"mlp.up": 32, "mlp.down": 128, "mix.in_proj": 32, "mix.out_proj": 32}.items():
        weight = params[f"blocks.1.{name}.weight"]
        bound = 1 / math.sqrt(fan_in)
        assert 0.95 * bound < np.abs(weight).max() <= bound
        assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert 0 < np.abs(params[f"blocks.1.{name}.bias"]).max() <= bound
    assert params["embed.weight"].std() == pytest.approx(0.1, rel=0.05)
    assert params["blocks.0.mix.lags"].std() == pytest.approx(math.sqrt(2 / 64), rel=0.2)
    assert not params["blocks.0.mix.bias"].any()


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_shift_starts_each_head_as_a_delay(softplus: bool, kernel_size: int):
    config = dataclasses.replace(PAPER_SIZE, lag_init="shift", softplus=softplus, kernel_size=kernel_size)
    lags = lm.init_params(config, np.random.default_rng(0))["blocks.0.mix.lags"].astype(np.float64)
    x = np.random.default_rng(1).standard_normal((10, 32))
    y = mix_tokens(lags, x, softplus=softplus)
    for head in range(4):
        channels = slice(8 * head, 8 * head + 8)
        assert np.abs(y[head:, channels] - x[: 10 - head, channels]).max() < 0.05
        assert np.abs(y[:head, channels]).max(initial=0) < 0.05
    assert len(np.unique(lags)) == lags.size  # heads that start alike must be able to part


@pytest.mark.parametrize("softplus", [False, True])
def test_decay_starts_heads_with_geometric_time_constants(softplus: bool):
    config = dataclasses.replace(PAPER_SIZE, lag_init="decay", softplus=softplus)
    lags = lm.init_params(config, np.random.default_rng(0))["blocks.0.mix.lags"].astype(np.float64)
    lags = np.logaddexp(lags, 0) if softplus else lags
    assert np.linalg.norm(lags, axis=1) == pytest.approx(np.ones(4), abs=0.02)  # independent inputs keep their scale
    ratio = lags[:, 1] / lags[:, 0]
    assert -1 / np.log(ratio) == pytest.approx(np.geomspace(1, 64, 4), rel=0.1)


def test_frozen_names_are_those_of_the_ablations():
    assert lm.frozen_names(HEADS) == frozenset()
    lags = lm.frozen_names(VARIANTS["frozen_lags"])
    assert lags == {f"blocks.{i}.mix.{name}" for i in (0, 1) for name in ("lags", "lags2")}
    projections = lm.frozen_names(VARIANTS["frozen_projections"])
    parts = [f"{p}_proj.{part}" for p in ("in", "out") for part in ("weight", "bias")]
    assert projections == {f"blocks.{i}.mix.{part}" for i in (0, 1) for part in parts}


def test_foreign_parameters_are_refused():
    params = random_params(HEADS)
    lm.check_params(params, HEADS)
    params["extra"] = params.pop("unembed.weight")
    params["embed.weight"] = params["embed.weight"][:-1]
    with pytest.raises(ValueError, match=r"unembed\.weight is missing; extra is unknown; embed\.weight has the shape"):
        lm.check_params(params, HEADS)


def test_a_configuration_of_any_number_of_blocks_is_refused_at_once():
    huge = dataclasses.replace(HEADS, n_layers=10**12)
    with pytest.raises(ValueError, match="too few for n_layers=1000000000000: do both belong together"):
        lm.check_params(random_params(HEADS), huge)


def test_chance_comes_from_a_generator_only():
    for seed in (0, np.random.RandomState(0)):
        with pytest.raises(TypeError, match=r"rng must be a numpy.random.Generator, got .*default_rng"):
            lm.init_params(HEADS, seed)


def test_flops_are_those_of_matrices_and_transforms():
    config = TMMConfig(vocab_size=7, max_len=8, d_model=4, n_layers=1, n_heads=2, d_mlp=6)
    linear = 2 * 4 * 6 + 2 * 4 * 4 + 7 * 4
    assert lm.flops_per_token(config) == 3 * (2 * linear + 4 * (10 * 3 + 8 + 8))
    assert lm.flops_per_token(dataclasses.replace(config, tie_embeddings=True)) == lm.flops_per_token(config)
    flat = dataclasses.replace(config, n_heads=0, n_layers=2, mix_layers=2)
    assert lm.flops_per_token(flat) == 3 * (2 * (2 * 2 * 4 * 6 + 7 * 4) + 2 * 2 * 4 * 46)


# --- Logits and loss --------------------------------------------------------------------------------------------------


def test_a_token_changes_nothing_before_it(config: TMMConfig):
    params, ids = random_params(config), random_ids(config)
    other = ids.copy()
    other[:, 7] = (other[:, 7] + 1) % config.vocab_size
    change = np.abs(lm.forward(params, other, config) - lm.forward(params, ids, config)).max(axis=(0, 2))
    assert change[:7].max() < 1e-12
    assert change[7] > 1e-3


def test_leading_axes_are_batches():
    params, ids = random_params(HEADS), random_ids(HEADS, (2, 3, 5))
    whole = lm.forward(params, ids, HEADS)
    assert whole.shape == (2, 3, 5, 11)
    assert whole[1, 2] == pytest.approx(lm.forward(params, ids[1, 2], HEADS), abs=1e-12)


def test_loss_is_the_mean_over_labels_that_count():
    params, ids = random_params(HEADS), random_ids(HEADS)
    logits = lm.forward(params, ids, HEADS)
    nats = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
    nats = np.asarray([[nats[b, t, ids[b, t + 1]] for t in range(11)] for b in range(2)])
    assert lm.loss(params, ids, HEADS) == pytest.approx(nats.mean(), rel=1e-12)
    labels = ids.copy()
    labels[0, :] = -100
    labels[1, 5:] = -100
    assert lm.loss(params, ids, HEADS, labels=labels) == pytest.approx(nats[1, :4].mean(), rel=1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint64"])
@pytest.mark.parametrize("xp", ["numpy", "array_api_strict", "torch", "jax", "dask"], indirect=True)
def test_integers_of_any_width_are_tokens(xp: Library, dtype: str):
    config = TMMConfig(vocab_size=257, max_len=4, d_model=2, n_layers=0, n_heads=0)
    params, ids = random_params(config), np.asarray([[1, 255, 3, 4]])
    given = {key: xp.asarray(p, "float64") for key, p in params.items()}
    loss = lm.loss(given, xp.asarray(ids, dtype), config)
    assert float(xp.to_numpy(loss)) == pytest.approx(lm.loss(params, ids, config), rel=1e-12)


def test_huge_logits_do_not_overflow():
    params = random_params(HEADS)
    params["unembed.weight"] = params["unembed.weight"] * 1e6
    assert np.isfinite(lm.loss(params, random_ids(HEADS), HEADS))


@pytest.mark.parametrize("name", ["heads", "later"])
def test_float16_is_computed_and_returned(name: str):
    config = VARIANTS[name]
    params, ids = random_params(config, np.float16), random_ids(config)
    params["embed.weight"] *= 300  # the squares of these, in the norms, are beyond float16
    logits = lm.forward(params, ids, config)
    exact = lm.forward({key: p.astype(np.float64) for key, p in params.items()}, ids, config)
    assert logits.dtype == np.float16
    assert np.abs(logits - exact).max() < 0.02 * np.abs(exact).max()  # eps 1e-3, ten roundings deep
    assert lm.loss(params, ids, config).dtype == np.float32


def test_a_model_without_position_bias_runs_on_past_max_len(config: TMMConfig):
    ids = random_ids(config, (1, 20))
    params = random_params(config)
    if config.position_bias and config.n_layers:
        with pytest.raises(ValueError, match=r"20 positions .* only max_len=12.*position_bias=False"):
            lm.forward(params, ids, config)
    else:
        assert lm.forward(params, ids, config)[:, :12] == pytest.approx(
            lm.forward(params, ids[:, :12], config), abs=1e-12
        )


@pytest.mark.parametrize(("token", "named"), [(11, "11"), (-1, "-1")])
def test_a_token_outside_the_vocabulary_is_refused(token: int, named: str):
    params, ids = random_params(HEADS), random_ids(HEADS)
    ids[1, 3] = token
    with pytest.raises(ValueError, match=rf"token {named} is outside the vocabulary of 11"):
        lm.forward(params, ids, HEADS)
    with pytest.raises(ValueError, match=rf"label {named} is outside the vocabulary of 11"):
        lm.loss(params, random_ids(HEADS), HEADS, labels=ids)


def test_other_parameters_and_tokens_are_refused():
    params, ids = random_params(HEADS), random_ids(HEADS)
    with pytest.raises(TypeError, match="input_ids must be integers, numbers of tokens, not float64"):
        lm.forward(params, ids.astype(float), HEADS)
    with pytest.raises(TypeError, match="expected arrays of one library"):
        lm.forward({**params, "unembed.weight": jnp.asarray(params["unembed.weight"])}, ids, HEADS)
    with pytest.raises(ValueError, match=r"input_ids must be .* a sequence of tokens"):
        lm.forward(params, np.asarray(1), HEADS)
    with pytest.raises(ValueError, match=r"unembed\.weight is unknown"):
        lm.forward(params, ids, VARIANTS["tied"])


@pytest.mark.parametrize(
    "wrong",
    [[[1, 2]], "ab", jnp.ones((2, 4), int), np.ma.ones((2, 4), int), random_ids(HEADS).astype("U2")],
    ids=["list", "text", "JAX's", "masked", "texts"],
)
def test_what_is_no_array_of_the_models_library_is_refused_by_its_name(wrong: Any):
    params, ids = random_params(HEADS), random_ids(HEADS)
    plan = lm.stream_plan(params, HEADS, 8)
    state = lm.stream_init(plan, len(ids))
    for name, call in (
        ("input_ids", lambda: lm.forward(params, wrong, HEADS)),
        ("attention_mask", lambda: lm.forward(params, ids, HEADS, attention_mask=wrong)),
        ("segment_ids", lambda: lm.forward(params, ids, HEADS, segment_ids=wrong)),
        ("input_ids", lambda: lm.loss(params, wrong, HEADS)),
        ("labels", lambda: lm.loss(params, ids, HEADS, labels=wrong)),
        ("targets", lambda: lm.loss(params, ids, HEADS, targets=wrong)),
        ("attention_mask", lambda: lm.documents_of(ids, wrong, None)),
        ("attention_mask", lambda: lm.left_padded(ids, wrong)),
        ("labels", lambda: lm.next_token_targets(wrong, ids)),
        ("input_ids", lambda: lm.stream_prefill(plan, state, wrong)),
        ("attention_mask", lambda: lm.stream_prefill(plan, state, ids, wrong)),
        ("input_ids", lambda: lm.stream_step(plan, state, wrong)),
    ):
        with pytest.raises(InputTypeError, match=name):
            call()


def test_arguments_that_changed_places_are_told():
    params, ids = random_params(HEADS), random_ids(HEADS)
    plan = lm.stream_plan(params, HEADS, 8)
    state = lm.stream_init(plan, len(ids))
    for kind, call in (
        ("Mapping", lambda: lm.forward(ids, params, HEADS)),
        ("Mapping", lambda: lm.loss(HEADS, params, ids)),
        ("Mapping", lambda: lm.stream_plan(HEADS, params, 8)),
        ("TMMConfig", lambda: lm.forward(params, HEADS, ids)),
        ("TMMConfig", lambda: lm.init_params("paper", np.random.default_rng(0))),
        ("DecodingPlan", lambda: lm.stream_init(len(ids), plan)),
        ("DecodingPlan", lambda: lm.stream_prefill(state, plan, ids)),
        ("DecodingState", lambda: lm.stream_prefill(plan, ids, state)),
        ("DecodingState", lambda: lm.stream_step(plan, ids[:, 0], state)),
        ("DecodingState", lambda: lm.stream_copy(plan)),
        ("DecodingState", lambda: lm.stream_reorder(np.asarray([0]), state)),
    ):
        with pytest.raises(InputTypeError, match=f"^[a-z]* must be a {kind}, and is "):
            call()


def test_labels_of_another_shape_are_refused():
    params, ids = random_params(HEADS), random_ids(HEADS)
    with pytest.raises(ValueError, match="labels must have the shape of input_ids"):
        lm.loss(params, ids, HEADS, labels=ids[:, :-1])
    with pytest.raises(ValueError, match="two positions or more"):
        lm.loss(params, ids[:, :1], HEADS)


# --- Other libraries --------------------------------------------------------------------------------------------------


def on_jax(params: dict[str, Any]) -> dict[str, Any]:
    return {name: jnp.asarray(p) for name, p in params.items()}


@pytest.mark.parametrize("name", ["two_layer_heads", "later"])
@pytest.mark.parametrize("xp", ["array_api_strict", "torch", "jax-jit", "dask"], indirect=True)
def test_every_library_computes_the_same(xp: Library, name: str):
    config = VARIANTS[name]
    params, ids = random_params(config), random_ids(config)
    given = {key: xp.asarray(p, "float64") for key, p in params.items()}
    whole = xp.transform(lambda p, i: (lm.forward(p, i, config), lm.loss(p, i, config)))
    logits, loss = whole(given, xp.asarray(ids, "int64"))
    assert xp.to_numpy(logits) == pytest.approx(lm.forward(params, ids, config), abs=1e-10)
    assert float(xp.to_numpy(loss)) == pytest.approx(lm.loss(params, ids, config), rel=1e-10)


@pytest.mark.parametrize("name", ["two_layer_heads", "later", "kernel_heads"])
def test_gradients_on_jax_are_those_of_finite_differences(name: str):
    config = dataclasses.replace(VARIANTS[name], n_layers=1)
    params, ids = random_params(config), random_ids(config)
    with jax.enable_x64(True):
        grads = jax.jit(jax.grad(lambda p, i: lm.loss(p, i, config)))(on_jax(params), jnp.asarray(ids))
        grads = {key: np.asarray(g) for key, g in grads.items()}
    rng = np.random.default_rng(2)
    for key, p in params.items():
        direction = rng.standard_normal(p.shape)
        slope = finite_difference(lambda s, key=key, p=p, u=direction: lm.loss({**params, key: p + s * u}, ids, config))
        assert np.vdot(grads[key], direction) == pytest.approx(slope, rel=1e-6, abs=1e-8), key


def finite_difference(f: Any, h: float = 1e-3) -> float:
    """Return f'(0) by the central formula of order 4; its error is h^4 times a fifth derivative."""
    return float((8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h))


def test_traced_code_makes_nan_of_what_eager_code_refuses():
    params, ids = random_params(HEADS), random_ids(HEADS)
    ids[1, 3] = 11
    with jax.enable_x64(True):
        logits = np.asarray(jax.jit(lambda p, i: lm.forward(p, i, HEADS))(on_jax(params), jnp.asarray(ids)))
        good = np.asarray(jax.jit(lambda p, i: lm.forward(p, i, HEADS))(on_jax(params), jnp.asarray(ids[:1])))
    assert np.isnan(logits[1, 3:]).all()
    assert np.isfinite(logits[0]).all()
    assert logits[0] == pytest.approx(good[0], abs=1e-12)


def test_scaled_linear_maps_keep_the_scale_of_the_residual_stream() -> None:
    config = TMMConfig(d_model=96, n_layers=8, n_heads=2, max_len=8, vocab_size=300, linear_init="scaled")
    params = lm.init_params(config, np.random.default_rng(0))
    for i in range(config.n_layers):
        for name, fan_in, branches in (
            ("mix.in_proj", 96, 1),
            ("mlp.up", 96, 1),
            ("mix.out_proj", 96, 16),  # two branches a block end in the residual stream
            ("mlp.down", 384, 16),
        ):
            spread = float(np.std(params[f"blocks.{i}.{name}.weight"]))
            assert spread == pytest.approx(1 / math.sqrt(fan_in * branches), rel=0.05), name
            assert not params[f"blocks.{i}.{name}.bias"].any(), name
    assert float(np.std(params["unembed.weight"])) == pytest.approx(1 / math.sqrt(96), rel=0.05)


def test_kaiming_linear_maps_are_those_of_the_papers_experiments() -> None:
    config = TMMConfig(d_model=96, n_layers=2, n_heads=2, max_len=8, vocab_size=300, linear_init="kaiming")
    params = lm.init_params(config, np.random.default_rng(0))
    maps = {name: w for name, w in params.items() if w.ndim == 2 and "lags" not in name and "bias" not in name}
    for name, w in maps.items():
        if not name.startswith("embed"):
            assert float(np.std(w)) == pytest.approx(math.sqrt(2 / w.shape[1]), rel=0.05), name
    assert not any(params[name].any() for name in params if name.endswith("bias"))
