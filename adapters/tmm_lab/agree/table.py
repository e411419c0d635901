"""Results as a table in Markdown, and what it means in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..tables import markdown
from .inputs import DTYPES, TRAINING, WHOLE, models
from .reference import LOGITS, TOLERANCES
from .results import ROWS, Result

__all__ = ["failures", "legend", "table"]


def table(results: Sequence[Result], *, width: int | None = None) -> str:
    """Return a line a row, with a column for each way to compute, and the verdict; results have a number a dtype."""
    names = list(dict.fromkeys(result.configuration for result in results))
    lines = [[" ".join(DTYPES), *names, "verdict"]]
    for row in ROWS:
        across = [[result for result in results if (result.row, result.configuration) == (row, name)] for name in names]
        said = {result.status for both in across for result in both}
        verdict = next((word for word in ("FAIL", "ok", "refused") if word in said), "-")
        lines.append([row, *map(_both, across), verdict])
    return markdown(lines, keys=1, width=width)


def legend(*, jax: bool) -> str:
    """Return what the numbers are; `jax` says whether JAX computed."""

    def share(tolerances: dict[str, float]) -> str:
        single, double = (f"{tolerances[dtype]:.0e}".replace("e-0", "e-") for dtype in DTYPES)
        return f"{single} ({double} in float64)"

    programs = f"JAX compiles training and the model `{WHOLE[0]}` as whole programs, the rest operation by operation. "
    return (
        f"Each number is the largest difference from NumPy in float64, divided by what is allowed, in "
        f"{' and in '.join(DTYPES)}: up to 1 is ok. From product to streaming, the error that products promise is "
        f"allowed; further down, {share(LOGITS)} of the largest logit; {share(TOLERANCES)} of a parameter's largest "
        f"gradient; and {share(TOLERANCES)} of the loss at each of {TRAINING.steps} steps of training. Logits and "
        f"gradients are those of {len(models())} models. {programs if jax else ''}Gradients are compared with slopes "
        "in NumPy and with the first framework's gradients, training with the first loss in NumPy and the first "
        "framework's losses. ref: the reference itself. A dash: this library has no gradients."
    )


def failures(results: Sequence[Result]) -> list[str]:
    """Return a line for every result that fails or was refused."""
    return [
        f"{result.status} {result.row}, {result.configuration}, {result.dtype}: {_why(result)}"
        for result in results
        if result.status in ("FAIL", "refused")
    ]


def _both(results: Sequence[Result]) -> str:
    if all(result.status == "none" for result in results):
        return "-"
    return " ".join(_number(result) for result in results)


def _number(result: Result) -> str:
    if result.status == "reference":
        return "ref"
    if result.status != "ok" or result.units is None:
        return result.status
    return "<.01" if result.units < 0.005 else f"{result.units:.2f}"


def _why(result: Result) -> str:
    units = result.units
    if units is None or not math.isfinite(units):
        return ": ".join(part for part in (result.worst, result.reason) if part)
    return f"{units:.3g} times what is allowed, in {result.worst}"
