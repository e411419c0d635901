"""What is kept of a comparison in its folder as it goes, so that the same command takes it up again."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tmm_adapters.files import (
    WriteError,
    atomic_write,
    locked,
    open_to_read,
    parse_json,
    require_empty,
    sweep,
)
from tmm_core.errors import InputError

from ..data.config import DataConfig
from ..evaluation.baselines import baseline_costs
from ..training.data import Data, open_data, prepare_data
from ..training.runs import Run, content_digest
from .options import Arm, ComparisonOptions

__all__ = ["Folder", "slug"]

FORMAT, VERSION = "tmm-comparison-plan", 1


class Folder:
    """The folder of a comparison, begun or taken up again; before its first run, others may be begun in it.

    Parameters
    ----------
    path : Path
        New, or that of a comparison with the same arms, options and text.
    arms : sequence of Arm
        The first is the reference.
    options : ComparisonOptions
        How they are compared.
    source : DataConfig
        The text.

    Raises
    ------
    ValueError
        If the folder holds a comparison of something else, or something else altogether.
    """

    def __init__(self, path: Path, arms: Sequence[Arm], options: ComparisonOptions, source: DataConfig) -> None:
        """Write what is compared, or see that it is what the folder was begun with."""
        labels = [slug(arm.label) for arm in arms]
        if len(set(labels)) < len(labels) or len(labels) < 2:
            raise InputError(f"a comparison needs two or more models of different names, and has {', '.join(labels)}")
        self.path, self.source = path, source
        self.owner = Run(path, {})
        """Has the text of all runs, and is none itself."""
        self._values = self._begun(
            arms=[dataclasses.asdict(arm) for arm in arms], options=options.to_dict(), data=source.to_dict()
        )

    def __contains__(self, name: str) -> bool:
        """Return whether something is kept under a name."""
        return name in self._values

    def get(self, name: str, default: Any) -> Any:
        """Return what is kept under a name, or `default`."""
        return self._values.get(name, default)

    def __getitem__(self, name: str) -> Any:
        """Return what is kept under a name."""
        return self._values[name]

    def keep(self, name: str, value: Any) -> None:
        """Keep plain data under a name."""
        self._values[name] = value
        self._write(self._values)

    def run(self, label: str, kind: str) -> Path:
        """Return the folder of a run of a model."""
        return self.path / "runs" / f"{slug(label)}-{kind}"

    @contextmanager
    def data(self) -> Iterator[Data]:
        """Give the text, prepared once; no other process works in the folder meanwhile."""
        with locked(self.path, f"{self.path} is in use by another comparison: let it end, or choose another --out"):
            sweep(self.path)
            if "baselines" in self:
                data = self._opened()
            else:
                data = prepare_data(self.owner, self.source)
                self.keep("baselines", baseline_costs(data.training, data.held_out))
            yield data

    def _opened(self) -> Data:
        """Return the text that was prepared before."""
        try:
            return open_data(self.owner, self.source, check=True)
        except InputError as error:
            raise InputError(
                f"the text of the comparison cannot be used ({error.__cause__}): bring {self.owner.data} and "
                f"{self.owner.tokenizer} back from a copy, or remove {self.path}, and compare anew"
            ) from error

    def _begun(self, **asked: Any) -> dict[str, Any]:
        """Return what the folder holds, which is what is asked for, or, where it is new, begin it."""
        asked = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **asked}))  # as it is read again
        path = self.path / "comparison.json"
        if not path.is_file():
            require_empty(self.path)
            self.source.check_files()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WriteError(self.path, error) from error
            self._write(asked)
            return asked
        try:
            with open_to_read(path) as file:
                found: dict[str, Any] = parse_json(file.read())
            if found.pop("sha256", None) not in (None, content_digest(found)):
                raise InputError("it is not what was written")
            other = [name for name in asked if found.get(name) != asked[name]]
        except (ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged ({error}): remove the folder, and compare anew") from error
        if other and "steps" not in found:  # no run has begun: minutes were too few, perhaps, and others are given now
            self._write(asked)
            return asked
        if other:
            raise InputError(
                f"{self.path} holds a comparison with other {' and '.join(other)}: give the same options to go on "
                "with it, or another --out to begin one"
            )
        return found

    def _write(self, values: Mapping[str, Any]) -> None:
        with atomic_write(self.path / "comparison.json") as file:
            fields = {**values, "sha256": content_digest(values)}
            file.write(json.dumps(fields, indent=1).encode() + b"\n")


def slug(label: str) -> str:
    """Return a label as the name of a folder.

    >>> slug("TMM, twice as wide")
    'tmm-twice-as-wide'
    """
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
