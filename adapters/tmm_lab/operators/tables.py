"""Tables of a model's Toeplitz operators, in words and as JSON."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tmm_adapters.words import counted
from tmm_core import TMMConfig

from .filters import Filter, FilterReport

__all__ = [
    "WHAT_TO_SEE",
    "WHAT_TO_SEE_OVER_TIME",
    "coordinates",
    "filter_table",
    "plain",
    "size_of",
    "summary_of",
    "table_over_time",
]


WHAT_TO_SEE = (
    "The index of a filter counts how often its symbol turns around 0, against the clock: 0 means invertible, -1 is "
    "the index of the shift by one token.\n"
    "The matrix on n tokens loses one token for each singular value that vanishes. Their number is minus the index if "
    "n is much larger than the number of lags; otherwise it is often smaller."
)
WHAT_TO_SEE_OVER_TIME = (
    "An index jumps when the curve of the symbol crosses 0. The matrix on n tokens loses one token for each singular "
    "value that vanishes; the shift by one token loses one.\n"
    "A lag that keeps its colour from top to bottom of a band did not change in training."
)


def filter_table(reports: Sequence[FilterReport], config: TMMConfig) -> list[list[str]]:
    """Return the table, the heading first."""
    heading = ["index", "margin", "certified", "rank", "condition", "inverse/lag", "lag", "energy"]
    rows = [[*_coordinate_names(config), *heading]]
    for r in reports:
        index = [_index_cell(r.index.index), f"{r.index.margin:.2g}", "yes" if r.index.certified else "no"]
        cells = ["-"] * 5
        if r.section is not None:
            s = r.section
            beyond = math.isinf(s.condition)
            rank = str(s.rank) if s.rank is not None else f"< {s.n}" if beyond else "-"
            bound = f"> {1 / (s.n * sys.float_info.epsilon):.0e}"
            condition = bound if beyond else "-" if math.isnan(s.condition) else f"{s.condition:.2g}"
            energy = "-" if math.isnan(r.share) else f"{r.share:.1%}"
            cells = [rank, condition, f"x {r.growth:.3g}", str(r.lag), energy]
        rows.append([*_coordinate_cells(r.filter, config), *index, *cells])
    return rows


def table_over_time(
    filters: Sequence[Filter],
    steps: Sequence[int],
    indices: Sequence[Sequence[int | None]],
    shown: Sequence[int],
    config: TMMConfig,
) -> list[list[str]]:
    """Return a row a filter with its index at those evaluations that are shown, the heading first."""
    rows = [[*_coordinate_names(config), *(str(steps[t]) for t in shown)]]
    for i, f in enumerate(filters):
        rows.append([*_coordinate_cells(f, config), *(_index_cell(indices[t][i]) for t in shown)])
    return rows


def plain(r: FilterReport) -> dict[str, Any]:
    """Return a report as JSON has it: what is infinite, or not known, is null."""
    section = r.section
    numbers = {
        "rank": None if section is None else section.rank,
        "condition": None if section is None else section.condition,
        "largest_singular_value": None if section is None else section.largest,
        "smallest_singular_value": None if section is None else section.smallest,
        "inverse_growth": r.growth,
        "dominant_lag": r.lag,
        "dominant_share": r.share,
    }
    index = {"index": r.index.index, "margin": r.index.margin, "certified": r.index.certified, "reason": r.index.reason}
    known = {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}
    return {**coordinates(r.filter), **index, **known, "missing": "" if section is None else section.missing}


def coordinates(f: Filter) -> dict[str, int]:
    """Return the layer, the product and the head of a filter, by name."""
    return {"layer": f.layer, "product": f.product, "head": f.head}


def _coordinate_names(config: TMMConfig) -> list[str]:
    return ["layer", *(["T"] if config.mix_layers == 2 else []), "head"]


def _coordinate_cells(f: Filter, config: TMMConfig) -> list[str]:
    return [str(f.layer), *([str(f.product)] if config.mix_layers == 2 else []), str(f.head) if config.n_heads else "-"]


def _index_cell(index: int | None) -> str:
    return "none" if index is None else str(index)


def size_of(config: TMMConfig) -> str:
    """Return how many filters a model has, of how many lags."""
    each = counted(config.n_heads, "head") if config.n_heads else "one filter"
    kernel = (
        f", kernels over {config.kernel_size} channels, of which the own one is analysed"
        if config.kernel_size > 1
        else ""
    )
    products = " and two products" if config.mix_layers == 2 else ""
    return f"{counted(config.n_layers, 'layer')} of {each}{products}, {counted(config.lags, 'lag')}{kernel}"


def summary_of(indices: Sequence[int | None], vanishing: Sequence[int | None]) -> str:
    """Return how many filters have which index, and how many have how many singular values that vanish.

    >>> summary_of([-1, 0, -1, None], [1, 0, 1, None])
    'index of 4 filters: 0 in 1, -1 in 2, none in 1; singular values that vanish: 0 in 1, 1 in 2, unknown in 1'
    """
    filters = counted(len(indices), "filter")
    return f"index of {filters}: {_counts(indices)}; singular values that vanish: {_counts(vanishing, 'unknown')}"


def _counts(numbers: Sequence[int | None], missing: str = "none") -> str:
    """Return how often each number is there, those nearest to 0 first; beyond six of them the others as a range."""
    counts = Counter(numbers)
    known = sorted((i for i in counts if i is not None), key=abs)
    parts = [f"{i} in {counts[i]}" for i in known]
    if len(known) > 6:
        parts = [*parts[:5], f"{known[5]} to {known[-1]} in {sum(counts[i] for i in known[5:])}"]
    parts += [f"{missing} in {counts[None]}"] if None in counts else []
    return ", ".join(parts)
