"""What a comparison came to: a record of each architecture, differences with their intervals, and the verdict."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tmm_adapters.files import atomic_write
from tmm_adapters.words import counted

from ..tables import markdown
from .options import Equal
from .statistics import MARGIN, Difference, Verdict, verdict

__all__ = ["Curve", "Entry", "Results", "table", "write_results"]


@dataclass(frozen=True)
class Curve:
    """One run: what it measured of the held-out text as it went."""

    seed: int
    tokens: tuple[int, ...]
    bits_per_byte: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    """One model of a comparison, and its runs."""

    label: str
    config: Mapping[str, Any]
    """As `config_to_dict` gives it."""
    learning_rate: float
    """The best of the candidates, at a seed that is not used again."""
    candidates: Mapping[str, float | None]
    """Bits per byte by learning rate, None where training diverged."""
    parameters: int
    parameters_without_embeddings: int
    flops_per_token: int
    """Of training."""
    memory_bytes: int
    """The most that the tensors of a training step take."""
    stored_bytes_per_token: float
    """Kept for the backward pass."""
    cache_bytes: int
    """Kept of a text of one context while it is continued."""
    training_rate: float
    """Tokens a second, timed in turns with the other models; so are the next two."""
    prefill_rate: float
    decoding_rate: float
    curves: tuple[Curve, ...]
    difference: Difference | None
    """The reference's bits per byte less this model's; None for the reference itself."""

    @property
    def final(self) -> list[float]:
        """The bits per byte of the trained models, one a seed."""
        return [curve.bits_per_byte[-1] for curve in self.curves]


@dataclass(frozen=True)
class Results:
    """A comparison; the first entry is the reference, of which the verdict speaks."""

    entries: tuple[Entry, ...]
    equal: Equal
    """What was held equal."""
    steps: int
    """Steps of each run."""
    text: Mapping[str, Any]
    baselines: Mapping[str, float]
    """Bits per byte of n-gram models of the same text."""
    machine: Mapping[str, str]
    options: Mapping[str, Any]
    decisive: tuple[str, ...]
    """The labels that the verdict depends on; the others are only shown."""
    date: str

    @property
    def verdict(self) -> Verdict:
        """What the differences say of the claim that the reference is as good as each decisive model, or better."""
        found = {entry.label: entry.difference for entry in self.entries}
        return verdict(difference for name in self.decisive if (difference := found[name]) is not None)

    @property
    def sentence(self) -> str:
        """The claim and its verdict, in words."""
        reference, *_ = self.entries
        seeds = len(reference.curves)
        equal = {"flops": "FLOPs"}.get(self.equal, self.equal)
        claim = f"that {reference.label} at equal {equal} is as good as {', '.join(self.decisive)}, or better"
        of = f"{counted(seeds, 'seed')}, {self.steps:,} steps, margin {MARGIN} bits per byte"
        return f"{self.verdict}: {claim} ({of})"


def write_results(path: Path, results: Results) -> None:
    """Write results as JSON, whole or not at all."""
    values = {"verdict": results.verdict, **_plain(asdict(results))}
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=1, allow_nan=False).encode() + b"\n")


def table(results: Results, *, width: int | None = None) -> str:
    """Return the results in Markdown, the best model first, in parts that `width` columns have room for."""
    head = (
        *("model", "width", "parameters", "FLOPs/token", "memory", "tokens/s", "decoding", "learning rate"),
        *("bits per byte", f"{results.entries[0].label} minus model"),
    )
    rows = [_row(entry) for entry in sorted(results.entries, key=lambda entry: statistics.mean(entry.final))]
    return markdown([head, *rows], keys=1, width=width)


def _row(entry: Entry) -> tuple[str, ...]:
    spread = f" ± {statistics.stdev(entry.final):.3f}" if len(entry.final) > 1 else ""
    return (
        entry.label,
        str(entry.config.get("d_model", "")),
        f"{entry.parameters / 1e6:.2f} M",
        f"{entry.flops_per_token / 1e6:.1f} M",
        f"{entry.memory_bytes / 2**20:.0f} MiB",
        f"{entry.training_rate:,.0f}",
        f"{entry.decoding_rate:,.0f}",
        f"{entry.learning_rate:.2g}",
        f"{statistics.mean(entry.final):.3f}{spread}",
        "" if entry.difference is None else _interval(entry.difference),
    )


def _interval(difference: Difference) -> str:
    if math.isinf(difference.low):
        return f"{difference.mean:+.3f}"
    return f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
