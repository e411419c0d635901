"""The Toeplitz operators of a language model: its filters, the index of each, and what its finite sections are like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tmm_core import TMMConfig
from tmm_core.errors import InputError
from tmm_core.index import OperatorIndex, fredholm_index
from tmm_core.lm import parameter_shapes

from ..progress import waiting
from .spectra import FiniteSection, dominant_lag, finite_section, inverse_growth

__all__ = ["Filter", "FilterReport", "analyse", "filters_of", "index_of", "vanishing"]


@dataclass(frozen=True)
class Filter:
    """One filter of a model, and where it stands there; numbers count from 1."""

    layer: int
    product: int
    """1, or 2 for the second Toeplitz product of a two-layer mixing."""
    head: int
    lags: NDArray[np.float64]
    """Effective lags, of shape (k,), or (m, k) over m neighbouring channels."""

    @property
    def diagonal(self) -> NDArray[np.float64]:
        """The lags (k,) with which a channel reads itself.

        Those of a kernel for channels below it make the operator a triangular block matrix, whose determinant is a
        power of the diagonal's symbol: only the diagonal decides on the index and on the zeros of singular sections.
        """
        return self.lags if self.lags.ndim == 1 else self.lags[-1]


@dataclass(frozen=True)
class FilterReport:
    """What is known of one filter; all but `index` are NaN or None where its lags are no numbers."""

    filter: Filter
    index: OperatorIndex
    section: FiniteSection | None
    growth: float
    """Factor per lag by which the inverse's lags grow."""
    lag: int | None
    """Lag with most of the energy (tokens back)."""
    share: float
    """Its share of the energy."""

    @property
    def vanishing(self) -> int | None:
        """Singular values of the matrix that vanish, as `vanishing` counts them."""
        return None if self.section is None else self.section.vanishing

    @property
    def reason(self) -> str:
        """What is not known, and why; empty where all is."""
        index = self.index.reason if self.index.index is None else ""
        section = "" if self.section is None else self.section.missing
        return "; ".join(filter(None, (index, section)))


def filters_of(lags: Mapping[str, Any], config: TMMConfig) -> list[Filter]:
    """Return the filters of a model in order of layer, product and head.

    Parameters
    ----------
    lags : mapping of str to array
        The parameters `blocks.{i}.mix.lags` (and `lags2`), of shape (h, k) or (h, m, k); others are not looked at.
    config : TMMConfig
        The model.

    Returns
    -------
    list of Filter
        With effective lags, float64: softplus of the parameters where the model takes it.

    Raises
    ------
    ValueError
        If the model has no layers, divides by the running sum of its lags, or the arrays are not those of `config`.
    """
    if config.n_layers == 0:
        raise InputError("the model has no layers: there is no filter to analyse; choose another model")
    if config.mean:
        raise InputError(
            "this model divides its products by the running sum of the lags (mean=True), so no layer is a Toeplitz "
            "operator: choose a model with mean=False"
        )
    if config.n_layers > len(lags):  # before names are listed: a damaged configuration may ask for any number
        raise InputError(f"there are {len(lags)} arrays of lags, too few for n_layers={config.n_layers}")
    shapes = {name: shape for name, shape in parameter_shapes(config).items() if ".mix.lags" in name}
    filters = []
    for name, shape in shapes.items():
        found = np.shape(lags[name]) if name in lags else None
        if found != shape:
            what = "are missing" if found is None else f"have the shape {found}, expected {shape}"
            raise InputError(f"the lags {name} {what}: do they belong to this configuration?")
        w = np.asarray(lags[name], np.float64)
        w = np.logaddexp(w, 0) if config.softplus else w
        layer, product = int(name.split(".")[1]) + 1, 2 if name.endswith("2") else 1
        filters += [Filter(layer, product, head, row) for head, row in enumerate(w, 1)]
    return filters


def analyse(filters: Sequence[Filter], n: int) -> list[FilterReport]:
    """Return what is known of each filter, and of the matrix that it is on n tokens.

    Parameters
    ----------
    filters : sequence of Filter
        With equally many lags.
    n : int
        Rows of the finite sections (tokens).

    Notes
    -----
    For a kernel all is said of its diagonal, which decides on invertibility; the condition of the whole is larger.
    Cost: that of `fredholm_index`, `finite_section` and `inverse_growth`, for each filter.
    """
    finite = [bool(np.isfinite(f.lags).all()) for f in filters]
    rows = [f.diagonal for f, fine in zip(filters, finite, strict=True) if fine]
    growths = iter(inverse_growth(np.stack(rows), n).tolist() if rows else ())
    reports = []
    with waiting("analysing filters", len(filters)) as advance:
        for f, fine in zip(filters, finite, strict=True):
            if fine:
                section, growth, (lag, share) = finite_section(f.diagonal, n), next(growths), dominant_lag(f.diagonal)
                reports.append(FilterReport(f, index_of(f), section, growth, lag, share))
            else:
                reports.append(FilterReport(f, index_of(f), None, math.nan, None, math.nan))
            advance(1)
    return reports


def vanishing(f: Filter, n: int) -> int | None:
    """Return how many singular values of a filter's n x n matrix float64 does not tell from 0; None where unknown.

    They tell how many tokens the matrix forgets, and tend to minus the index when n grows far beyond the lags. For
    fewer rows only zeros well inside the circle count, not those that many small lags put beside it.
    """
    return finite_section(f.diagonal, n).vanishing if np.isfinite(f.lags).all() else None


def index_of(f: Filter) -> OperatorIndex:
    """Return the Fredholm index of a filter; without one, and why, where a lag is NaN or infinite."""
    bad = int(np.count_nonzero(~np.isfinite(f.lags)))
    if bad:
        return OperatorIndex(index=None, margin=0.0, certified=False, reason=f"{bad} of the lags are NaN or infinite")
    return cast(OperatorIndex, fredholm_index(f.diagonal))  # one filter, no list
