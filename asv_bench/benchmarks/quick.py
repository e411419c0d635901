"""The quick set: of every topic one case, with fewer turns; a minute or two on two cores."""

from __future__ import annotations

from typing import Any

from tmm_lab.bench import QUICK

from . import decoding, gradients, importing, lengths, memory, packing, product, streaming, training


def _part(benchmark: type, *params: tuple[Any, ...], **settings: Any) -> type:
    """Return a benchmark with some of its first parameters, all of the others, and these settings."""
    params = params + benchmark.params[len(params) :]  # type: ignore[attr-defined]
    return type(benchmark.__name__, (benchmark,), {"params": params, "__module__": __name__, **settings})


N, TOKENS, HEADS = lengths(1024), lengths(512), (4,)

Product = _part(product.Product, N, HEADS)
ProductAgainst = _part(product.ProductAgainst, N, HEADS)
GradientsAgainst = _part(gradients.GradientsAgainst, N, HEADS)
Memory = _part(memory.Memory, N, HEADS)
TrainingAgainst = _part(training.TrainingAgainst, N, HEADS, schedule=QUICK, tokens=1024)
StreamingAgainst = _part(streaming.StreamingAgainst, N, HEADS)
DecodingAgainst = _part(decoding.DecodingAgainst, TOKENS, ("research code", "no mixing"), schedule=QUICK)
PackingAgainst = _part(packing.PackingAgainst, TOKENS, ("joined, default preset",), schedule=QUICK, tokens=1024)


class Importing(importing.Import):
    """As it is."""
