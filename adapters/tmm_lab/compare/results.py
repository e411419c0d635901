"""What a comparison came to: a record of each architecture, differences with their intervals, and the verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tmm_adapters.files import atomic_write
from tmm_core.errors import InputError

from .options import Equal
from .statistics import MARGIN, Difference, Verdict, verdict

__all__ = ["Curve", "Entry", "Results", "read_results", "table", "write_results"]

FORMAT, VERSION = "tmm-comparison", 1


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
    candidates: Mapping[str, float]
    """Bits per byte by learning rate."""
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
    """Of each run."""
    text: Mapping[str, Any]
    baselines: Mapping[str, float]
    """Bits per byte of n-gram models of the same text."""
    machine: Mapping[str, str]
    options: Mapping[str, Any]
    rivals: tuple[str, ...]
    """The labels that the claim is about; the others are shown and do not decide."""
    date: str
    finished: bool = True
    """Whether all runs have ended."""

    @property
    def verdict(self) -> Verdict:
        """What the differences say of the claim that the reference is as good as each rival, or better."""
        found = {entry.label: entry.difference for entry in self.entries}
        return verdict(difference for name in self.rivals if (difference := found[name]) is not None)

    @property
    def sentence(self) -> str:
        """The claim and its verdict, in words."""
        reference, *_ = self.entries
        seeds = len(reference.curves)
        claim = f"{reference.label} at equal {self.equal} is as good as {', '.join(self.rivals)}, or better"
        of = f"{seeds} seed{'s'[: seeds != 1]}, {self.steps:,} steps, margin {MARGIN} bits per byte"
        return f"{self.verdict}: {claim} ({of})"


def write_results(path: Path, results: Results) -> None:
    """Write results as JSON, whole or not at all."""
    values = {"format": FORMAT, "version": VERSION, "verdict": results.verdict, **_plain(asdict(results))}
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=1, allow_nan=False).encode() + b"\n")


def read_results(path: Path) -> Results:
    """Return the results that `write_results` wrote.

    Raises
    ------
    FileNotFoundError
        If there are none.
    ValueError
        If they are damaged, or another version's.
    """
    try:
        values = json.loads(path.read_bytes())
        if (values.pop("format"), values.pop("version")) != (FORMAT, VERSION):
            raise InputError("another version wrote it")
        values.pop("verdict")
        entries = tuple(_entry(entry) for entry in values.pop("entries"))
        return Results(entries=entries, **{**values, "rivals": tuple(values["rivals"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds no results of a comparison ({error}): run the comparison again") from error


def table(results: Results) -> str:
    """Return the results in Markdown, the best model first."""
    head = (
        "model", "width", "parameters", "FLOPs/token", "memory", "tokens/s", "decoding", "learning rate",
        "bits per byte", f"{results.entries[0].label} less it",
    )  # fmt: skip
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    lines += [_row(entry) for entry in sorted(results.entries, key=lambda entry: _mean(entry.final))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def _row(entry: Entry) -> tuple[str, ...]:
    spread = f" ± {_spread(entry.final):.3f}" if len(entry.final) > 1 else ""
    return (
        entry.label,
        str(entry.config.get("d_model", "")),
        f"{entry.parameters / 1e6:.2f} M",
        f"{entry.flops_per_token / 1e6:.1f} M",
        f"{entry.memory_bytes / 2**20:.0f} MiB",
        f"{entry.training_rate:,.0f}",
        f"{entry.decoding_rate:,.0f}",
        f"{entry.learning_rate:.2g}",
        f"{_mean(entry.final):.3f}{spread}",
        "" if entry.difference is None else _interval(entry.difference),
    )


def _interval(difference: Difference) -> str:
    if math.isinf(difference.low):
        return f"{difference.mean:+.3f}"
    return f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds."""
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, which knows no infinity."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _entry(values: dict[str, Any]) -> Entry:
    curves = tuple(
        Curve(curve["seed"], tuple(curve["tokens"]), tuple(curve["bits_per_byte"])) for curve in values.pop("curves")
    )
    difference = values.pop("difference")
    numbers = None if difference is None else {name: float(value) for name, value in difference.items()}
    return Entry(**values, curves=curves, difference=None if numbers is None else Difference(**numbers))
