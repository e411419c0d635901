"""The filters of a model: which they are, and what is said of each."""

from __future__ import annotations

import numpy as np
import pytest

from tmm_core import TMMConfig, causal_toeplitz, lm
from tmm_lab.operators.filters import analyse, filters_of, index_of
from tmm_lab.operators.spectra import inverse_growth


def params(**changes: object) -> tuple[dict[str, np.ndarray], TMMConfig]:
    config = TMMConfig(**{"d_model": 8, "n_layers": 2, "n_heads": 2, "max_len": 16, **changes})
    return lm.init_params(config, np.random.default_rng(0)), config


def test_filters_are_the_effective_lags_in_order() -> None:
    tensors, config = params(mix_layers=2, softplus=True)
    filters = filters_of(tensors, config)
    order = [(layer, product, head) for layer in (1, 2) for product in (1, 2) for head in (1, 2)]
    assert [(f.layer, f.product, f.head) for f in filters] == order
    raw = tensors["blocks.1.mix.lags2"][0].astype(float)
    np.testing.assert_allclose(filters[6].lags, np.log1p(np.exp(raw)), rtol=1e-12)
    assert len(filters_of(*params(n_heads=0))) == 2


def test_a_kernel_is_analysed_by_its_own_channel() -> None:
    """The whole operator on two channels: a triangular block matrix, singular where its diagonal is."""
    tensors, config = params(kernel_size=2, max_len=40, n_layers=1)
    own = np.asarray([0.5, 2.0, *[0] * 38])  # a zero at -1/4: index -1
    tensors["blocks.0.mix.lags"][:, 1] = own
    filters = filters_of(tensors, config)
    assert filters[0].lags.shape == (2, 40)
    (report, _) = analyse(filters, 40)
    assert (report.index.index, report.section.rank, report.lag) == (-1, 39, 1)
    below = causal_toeplitz(filters[0].lags[0], 40)
    diagonal = causal_toeplitz(own, 40)
    whole = np.block([[diagonal, np.zeros_like(below)], [below, diagonal]])
    vanishing = np.count_nonzero(np.linalg.svd(whole, compute_uv=False) < 1e-8)
    assert vanishing == 2, "one for each channel"


def test_lags_that_are_no_numbers_are_told_and_spoil_no_other() -> None:
    tensors, config = params()
    tensors["blocks.0.mix.lags"][1, 3] = np.nan
    filters = filters_of(tensors, config)
    first, bad, *_ = analyse(filters, 16)
    assert first.index.index is not None
    assert first.growth == pytest.approx(float(inverse_growth(filters[0].lags, 16)))
    assert bad.index == index_of(filters[1])
    assert (bad.index.index, bad.index.certified, bad.section) == (None, False, None)
    assert bad.index.reason == "1 of the lags are NaN or infinite"


def test_models_without_toeplitz_operators_are_refused() -> None:
    with pytest.raises(ValueError, match=r"running sum of the lags .* no layer is a Toeplitz operator"):
        filters_of(*params(softplus=True, mean=True))
    with pytest.raises(ValueError, match="the model has no layers"):
        filters_of(*params(n_layers=0))
    tensors, config = params()
    with pytest.raises(ValueError, match=r"blocks\.1\.mix\.lags have the shape \(2, 15\), expected \(2, 16\)"):
        filters_of({**tensors, "blocks.1.mix.lags": np.ones((2, 15))}, config)
    del tensors["blocks.1.mix.lags"]
    with pytest.raises(ValueError, match=r"blocks\.1\.mix\.lags are missing"):
        filters_of(tensors, config)
    with pytest.raises(ValueError, match="too few for n_layers=1000000000"):
        filters_of(tensors, TMMConfig(d_model=8, n_layers=10**9))
