"""One token-mixing operation, on every array library, against its formula."""

from typing import Any

import dask.array
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tmm_core import mix_tokens
from tmm_core.testing import LIBRARIES, Library

EXACT = 1e-12  # float64 sums of a few dozen terms of size 1


def formula(
    w: Any, x: Any, bias: Any = None, *, softplus: bool = False, mean: bool = False, segment_ids: Any = None
) -> Any:
    """Return `mix_tokens` by its definition, term by term."""
    lags = np.log1p(np.exp(w)) if softplus else np.asarray(w)
    lags = lags.reshape(len(w), -1, w.shape[-1])
    heads, kernel_size, k = lags.shape
    *batch, n, d = x.shape
    ids = np.broadcast_to(0 if segment_ids is None else segment_ids, x.shape[:-1])
    y = np.zeros(x.shape)
    for at in np.ndindex(*batch, n, d):
        *b, t, c = at
        row, head = ids[tuple(b)], c // (d // heads)
        start = int(np.argmax(row == row[t]))
        for i, j in np.ndindex(kernel_size, min(t - start + 1, k)):
            source = c - (kernel_size - 1) + i
            if source // (d // heads) == head and source >= 0:
                y[at] += lags[head, i, j] * x[(*b, t - j, source)]
        if mean:
            y[at] /= lags[head, 0, : t - start + 1].sum()
        if bias is not None:
            y[at] += bias[head, t - start]
    return y


IDS = np.asarray([[0, 0, 0, 2, 2, 5, 5, 5, 5], [-3, 1, 1, 1, 1, 1, 1, 1, 9]])
CASES: dict[str, dict[str, Any]] = {
    "product": {},
    "bias": {"bias": 9},
    "softplus_mean_bias": {"softplus": True, "mean": True, "bias": 11},
    "few_lags_mean": {"k": 4, "softplus": True, "mean": True},
    "more_lags_mean": {"k": 13, "softplus": True, "mean": True},
    "kernel_softplus_bias": {"kernel": 3, "softplus": True, "bias": 9},
    "segments": {"segment_ids": IDS, "softplus": True, "mean": True, "bias": 9},
    "segments_of_all_rows": {"segment_ids": IDS[0], "k": 3, "softplus": True, "mean": True, "bias": 10},
}


def arguments(case: dict[str, Any], seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    rng, case = np.random.default_rng(seed), dict(case)
    k, kernel_size, length = case.pop("k", 9), case.pop("kernel", None), case.pop("bias", None)
    w = rng.standard_normal((2, k) if kernel_size is None else (2, kernel_size, k))
    return [w, rng.standard_normal((2, 9, 6)), None if length is None else rng.standard_normal((2, length))], case


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    with jax.enable_x64(True):
        yield


# JAX compiles each of its eager calls, so that two cases must do there; jit has them all.
PAIRS = [
    (lib, case) for lib in LIBRARIES for case in CASES if lib != "jax" or case in ("product", "softplus_mean_bias")
]


@pytest.mark.parametrize(("xp", "case"), PAIRS, indirect=["xp"])
def test_the_formula_holds_on_every_library(xp: Library, case: str):
    arrays, options = arguments(CASES[case])
    ids = options.pop("segment_ids", None)
    expected = formula(*arrays, segment_ids=ids, **options)
    given = [None if a is None else xp.asarray(a, "float64") for a in arrays]
    given.append(None if ids is None else xp.asarray(ids, "int64"))
    y = xp.transform(lambda w, x, bias, ids: mix_tokens(w, x, bias, segment_ids=ids, **options))(*given)
    assert type(y) is type(given[1])
    assert xp.to_numpy(y) == pytest.approx(expected, abs=EXACT)


def test_dask_stays_lazy():
    def refuse(block: Any) -> Any:
        raise AssertionError("computed")

    x = dask.array.zeros((9, 6)).map_blocks(refuse, dtype=float, meta=np.zeros((0, 0)))
    lags = dask.array.ones((2, 9))
    assert mix_tokens(lags, x, lags, softplus=True, mean=True).shape == (9, 6)


def test_one_filter_mixes_one_signal():
    w, x, bias = np.asarray([1.0, 2.0]), np.asarray([1.0, 10.0, 100.0]), np.asarray([5.0, 6.0, 7.0, 8.0])
    assert mix_tokens(w, x, bias) == pytest.approx([6.0, 18.0, 127.0])
    assert mix_tokens(w, x[:, None], bias)[:, 0] == pytest.approx([6.0, 18.0, 127.0])
    assert mix_tokens(w, x, mean=True) == pytest.approx([1.0, 4.0, 40.0])


@pytest.mark.parametrize("shape", [(0, 5, 6), (3, 0, 5, 6), (5, 6), (1, 1, 6)])
def test_any_batch_shape_passes(shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    w, x, bias = rng.standard_normal((2, 5)), rng.standard_normal(shape), rng.standard_normal((2, 5))
    y = mix_tokens(w, x, bias, softplus=True, mean=True)
    assert y == pytest.approx(formula(w, x, bias, softplus=True, mean=True), abs=EXACT)


def test_one_segment_id_for_all_positions_is_no_segment():
    (w, x, bias), options = arguments(CASES["softplus_mean_bias"])
    y = mix_tokens(w, x, bias, segment_ids=np.asarray([[0], [7]]), **options)
    assert y == pytest.approx(mix_tokens(w, x, bias, **options), abs=EXACT)


def test_documents_are_bit_identical_whatever_the_others_hold():
    (w, x, bias), options = arguments(CASES["segments"])
    y = mix_tokens(w, x, bias, **options)
    other = np.where(IDS[0, :, None] == 2, x * 1e6 + 3, x)
    changed = mix_tokens(w, other, bias, **options)
    assert np.array_equal(y[0, IDS[0] != 2], changed[0, IDS[0] != 2])
    assert not np.array_equal(y[0, IDS[0] == 2], changed[0, IDS[0] == 2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_the_dtype_of_x(dtype: torch.dtype, weights: torch.dtype):
    (w, x, bias), options = arguments(CASES["softplus_mean_bias"])
    w, x, bias = torch.tensor(w).to(weights), torch.tensor(x).to(dtype), torch.tensor(bias).to(weights)
    y = mix_tokens(w, x, bias, **options)
    assert y.dtype == dtype
    expected = formula(w.double().numpy(), x.double().numpy(), bias.double().numpy(), **options)
    # Lags and sums are kept in float32 at least, so one rounding of the result remains (and one of a half bias).
    eps = max(torch.finfo(dtype).eps, 1e-14 if weights == torch.float64 else 1e-6)
    assert y.double().numpy() == pytest.approx(expected, abs=4 * eps, rel=2 * eps)


def test_a_mean_is_finite_where_its_sum_is_not():
    w, x = np.full((1, 64), 20.0, np.float16), np.full((64, 1), 3e4, np.float16)
    y = mix_tokens(w, x, softplus=True, mean=True)
    assert y.dtype == np.float16
    assert y.astype(float) == pytest.approx(np.full((64, 1), 3e4), rel=1e-3)


SIZES = [-1e4, -80.0, -20.0, -1.0, 0.0, 1.0, 20.0, 80.0, 1e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_and_its_slope_are_right_at_any_size(dtype: torch.dtype):
    raw = torch.tensor(SIZES, dtype=dtype)
    w = raw.clone().reshape(-1, 1).requires_grad_()
    y = mix_tokens(w, torch.ones(1, 9, dtype=dtype), softplus=True)[0]
    y.sum().backward()
    eps = torch.finfo(dtype).eps
    exact = raw.double()
    assert torch.allclose(y.double(), torch.logaddexp(exact, torch.zeros_like(exact)), rtol=4 * eps, atol=1e-300)
    assert torch.allclose(w.grad[:, 0].double(), exact.sigmoid(), rtol=100 * eps, atol=1e-300)


def test_softplus_has_the_right_slope_on_jax():
    slope = jax.jit(jax.grad(lambda w: mix_tokens(w, jnp.ones((1, 9)), softplus=True).sum()))
    expected = torch.tensor(SIZES, dtype=torch.float64).sigmoid().numpy()
    assert np.asarray(slope(jnp.asarray(SIZES)[:, None]))[:, 0] == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("case", ["softplus_mean_bias", "few_lags_mean", "kernel_softplus_bias", "segments"])
def test_gradients_of_first_and_second_order(case: str):
    arrays, options = arguments(CASES[case])
    if "segment_ids" in options:
        options["segment_ids"] = torch.tensor(options["segment_ids"])
    given = [torch.tensor(a, requires_grad=True) for a in arrays if a is not None]

    def mix(*tensors: torch.Tensor) -> Any:
        return mix_tokens(*tensors, **options)

    assert torch.autograd.gradcheck(mix, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(mix, given, fast_mode=True)


@pytest.mark.parametrize(
    ("w", "bias", "options", "message"),
    [
        ((2, 9), (2, 8), {}, r"9 positions and the position bias only max_len=8: .*position_bias=False"),
        ((2, 9), (3, 9), {}, r"bias must have the shape \(2, 'L'\).*has \(3, 9\)"),
        ((2, 9), (9,), {}, r"bias must have the shape \(2, 'L'\)"),
        ((9,), (1, 9), {}, r"bias must have the shape \('L',\)"),
        ((2, 3, 9), None, {"mean": True}, r"mean=True expects one row of lags a head"),
        ((4, 9), None, {}, r"."),  # heads that do not divide the channels: the product's own words
        ((2, 2, 2, 9), (2, 9), {}, r"."),
    ],
)
def test_shapes_that_do_not_fit_are_refused(w: Any, bias: Any, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        mix_tokens(np.ones(w), np.ones((2, 9, 6)), None if bias is None else np.ones(bias), **options)


@pytest.mark.parametrize(
    ("w", "x", "bias"),
    [
        (np.ones((2, 9)), torch.ones(9, 6), None),
        (np.ones((2, 9)), np.ones((9, 6)), torch.ones(2, 9)),
        ([[1.0]], np.ones((9, 6)), None),
        (np.ones((2, 9), int), np.ones((9, 6), int), None),
    ],
)
def test_other_types_are_refused(w: Any, x: Any, bias: Any):
    with pytest.raises(TypeError):
        mix_tokens(w, x, bias)
