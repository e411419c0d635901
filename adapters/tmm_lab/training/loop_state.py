"""How far a run has come: what a checkpoint keeps beside the model, so that a resumed run goes on exactly there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tmm_adapters.files import parse_json
from tmm_adapters.pretrained import write_json
from tmm_core.errors import InputError

__all__ = ["LoopState"]

_FILE = "loop.json"


@dataclass
class LoopState:
    """The counters of the training loop."""

    step: int = 0
    """Optimiser steps done."""
    samples: int = 0
    """Training samples read; the next step begins at the one of this number."""
    samples_per_step: int = 0
    """Of the last step: another number of devices takes another."""
    loss_sum: float = 0.0
    """Sum of the losses of the steps since the last record."""
    loss_steps: int = 0
    """How many those are."""
    seconds: float = 0.0
    """Time of all sessions until now, for a run of given minutes."""
    records: int = 0
    """Lines of metrics.jsonl."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the other files that tell of the course of the run, by name."""

    def write(self, folder: Path) -> None:
        """Write the file of a checkpoint."""
        write_json(folder / _FILE, asdict(self))

    @classmethod
    def read(cls, checkpoint: Path) -> LoopState:
        """Return what `write` wrote.

        Raises
        ------
        ValueError
            If it is missing, or holds something else.
        """
        path = checkpoint / _FILE
        kinds = {field.name: type(getattr(cls(), field.name)) for field in fields(cls)}
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
            fit = found.keys() == kinds.keys() and all(type(found[name]) is kinds[name] for name in kinds)
            if fit and all(type(size) is int for size in found["sizes"].values()):
                return cls(**found)
            reason = "other fields than a checkpoint of a run"
        except (OSError, ValueError, AttributeError) as error:
            reason = str(error)
        raise InputError(f"{path} does not tell how far the run had come ({reason}): resume from another checkpoint")
