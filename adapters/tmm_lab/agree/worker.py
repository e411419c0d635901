"""A process of its own for columns in one dtype: JAX has one width of numbers a process, and compiles on one core.

Run as `python -m tmm_lab.agree.worker float64 results.npz jax jax+numba`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Thread

import numpy as np

from .columns import Column, columns
from .measures import TOPICS, Key, Measured, measure

__all__ = ["Worker"]


class Worker:
    """A process that computes some columns in one dtype, while this one goes on."""

    def __init__(
        self, dtype: str, chosen: Sequence[Column], folder: Path, done: Callable[[Column, str, str], None]
    ) -> None:
        """Start it; `done` is called from another thread with column, dtype and topic."""
        self.dtype, self.chosen = dtype, {column.name: column for column in chosen}
        self._results, self._done = folder / f"{dtype}.npz", done
        self._errors = (folder / f"{dtype}.txt").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, dtype, str(self._results), *self.chosen],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"JAX_ENABLE_X64": str(int(dtype == "float64"))},
            text=True,
        )
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def results(self) -> dict[Column, Measured]:
        """Wait for the process and return what each column gave; if it died, that is the fault of every topic."""
        self._listener.join()
        code = self._process.wait()
        if code == 0:
            found = _read(self._results)
            return {column: found[name] for name, column in self.chosen.items()}
        self._errors.seek(0)
        last = ([line.strip() for line in self._errors if line.strip()] or [""])[-1]
        fault = f"its process ended with code {code}: {last}"
        return {column: Measured(faults=dict.fromkeys(TOPICS, fault)) for column in self.chosen.values()}

    def stop(self) -> None:
        """End the process, if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._errors.close()

    def _listen(self) -> None:
        with self._process.stdout or nullcontext(()) as lines:
            for line in lines:
                name, _, topic = line.rstrip("\n").partition("\t")
                if name in self.chosen:
                    self._done(self.chosen[name], self.dtype, topic)


def _write(path: Path, results: dict[str, Measured]) -> None:
    arrays = [(name, key, array) for name, measured in results.items() for key, array in measured.arrays.items()]
    told = {
        "columns": {name: [measured.faults, measured.refusals] for name, measured in results.items()},
        "keys": [[name, *key] for name, key, _ in arrays],
    }
    np.savez(path, json.dumps(told), *(array for *_, array in arrays))


def _read(path: Path) -> dict[str, Measured]:
    with np.load(path) as file:
        told = json.loads(str(file["arr_0"]))
        results = {name: Measured({}, *rest) for name, rest in told["columns"].items()}
        for i, (name, *key) in enumerate(told["keys"], start=1):
            results[name].arrays[Key(*key)] = file[f"arr_{i}"]
    return results


def _main(dtype: str, path: str, *names: str) -> None:
    found, _ = columns(names)
    results = {}
    for column in found:
        results[column.name] = measure(column, dtype, functools.partial(_tell, column.name))
    _write(Path(path), results)


def _tell(name: str, topic: str) -> None:
    print(name, topic, sep="\t", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
