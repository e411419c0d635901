"""The benchmarks of `asv_bench/`: asv runs them, each case in a process of its own; its results are read here."""

from __future__ import annotations

import ast
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tmm_core.errors import NotFoundError, UnsupportedError

from ..progress import waiting

__all__ = ["Result", "read_results", "run_benchmarks"]

SUITE = Path(__file__).parents[3] / "asv_bench"


@dataclass(frozen=True)
class Result:
    """What asv tells of a benchmark at one combination of its parameters."""

    benchmark: str
    title: str
    unit: str
    params: dict[str, str]
    value: float | None
    """The median where there are samples; None if the benchmark failed."""
    low: float | None = None
    """The lower quartile of the samples."""
    high: float | None = None
    """The upper quartile of the samples."""
    samples: Sequence[float] | None = None


def run_benchmarks(patterns: Sequence[str], environment: Mapping[str, str]) -> tuple[list[Result], list[str]]:
    """Run the benchmarks whose names match one of the regular expressions, and show asv's progress on stderr.

    Parameters
    ----------
    patterns : sequence of str
        As for `asv run --bench`.
    environment : mapping
        Variables for the processes that are measured, beside those of this one.

    Returns
    -------
    results : list of Result
        In asv's order, without the cases that were skipped.
    reasons : list of str
        Why others were skipped.

    Raises
    ------
    UnsupportedError
        If there is no checkout with benchmarks, or no asv.
    NotFoundError
        If nothing matches.
    OSError
        If asv leaves no results; it has said why.
    """
    if not (SUITE / "asv.conf.json").is_file():
        raise UnsupportedError(
            "benchmarks are in the folder asv_bench of a checkout, and this is an installed package: "
            "clone the repository and pip install -e '.[bench]' there"
        )
    if find_spec("asv") is None:
        raise UnsupportedError("benchmarks are run by asv, which is not installed: pip install -e '.[bench]'")
    with tempfile.TemporaryDirectory() as folder:
        results, config = Path(folder, "results"), Path(folder, "asv.conf.json")
        config.write_text(json.dumps(_configuration(results)))
        if not Path("~/.asv-machine.json").expanduser().exists():  # else it would ask
            _asv(config, ["machine", "--yes"], environment)
        options = ["--python=same", "--set-commit-hash=HEAD", "--record-samples", "--show-stderr"]
        options += [] if hasattr(os, "fork") else ["--launch-method=spawn"]
        said = _asv(config, ["run", *options, *(f"--bench={pattern}" for pattern in patterns)], environment)
        if any("No benchmarks selected" in line for line in said):
            raise NotFoundError(f"no benchmark matches {' or '.join(patterns)}: see asv_bench/benchmarks")
        files = [file for file in results.glob("*/*.json") if file.name != "machine.json"]
        if not files:
            raise OSError("asv left no results: see what it says above")
        reasons = [line.split("asv: skipped:", 1)[1].strip() for line in said if "asv: skipped:" in line]
        return read_results(results / "benchmarks.json", files[0]), list(dict.fromkeys(reasons))


def _configuration(results: Path) -> dict[str, Any]:
    """Return asv's configuration with results elsewhere: asv keeps those of commits, and these have other settings."""
    config = json.loads(re.sub(r"^ *//.*$", "", (SUITE / "asv.conf.json").read_text(), flags=re.MULTILINE))
    for name in ("repo", "benchmark_dir"):
        config[name] = str((SUITE / config[name]).resolve())
    return {**config, "results_dir": str(results)}


def _asv(config: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Run asv, pass on what it says to stderr, and return the lines."""
    lines = []
    with (
        ExitStack() as silent,
        subprocess.Popen(
            [sys.executable, "-m", "asv", "--config", str(config), *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        silent.enter_context(waiting("starting asv"))  # and no longer: a bar that moves would slow what is measured
        for line in process.stdout or ():
            silent.close()
            print(line, end="", file=sys.stderr, flush=True)
            lines.append(line)
    return lines


def read_results(benchmarks: Path, results: Path) -> list[Result]:
    """Return what asv's file of benchmarks and a file of results, of version 2 both, say together."""
    described, found = json.loads(benchmarks.read_text()), json.loads(results.read_text())
    read = []
    for name, row in found["results"].items():
        told = dict(zip(found["result_columns"], row, strict=False))  # what is None at the end is left out
        about = described[name]
        cases = list(itertools.product(*told["params"]))
        for i, case in enumerate(cases):
            value = _at(told.get("result"), i)
            if value is not None and math.isnan(value):
                continue  # skipped, or not selected
            read.append(
                Result(
                    benchmark=name,
                    title=about.get("pretty_name") or name,
                    unit=about["unit"],
                    params=dict(zip(about["param_names"], map(_plain, case), strict=True)),
                    value=value,
                    low=_at(told.get("stats_q_25"), i),
                    high=_at(told.get("stats_q_75"), i),
                    samples=_at(told.get("samples"), i),
                )
            )
    return read


def _at(values: Sequence[Any] | None, i: int) -> Any:
    return None if values is None else values[i]


def _plain(value: str) -> str:
    """Return a parameter as text: asv writes its `repr`."""
    try:
        return str(ast.literal_eval(value))
    except (SyntaxError, ValueError):
        return value
