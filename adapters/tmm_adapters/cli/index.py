"""`tmm index`: the operator theory of a trained model, filter by filter, as a table and as a picture."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..folder import WEIGHTS, read_config, read_tensors
from .convert import plain_parameters

if TYPE_CHECKING:
    from tmm_core import TMMConfig

    from ..operators import Filter, Verdict
    from ..training.runs import Run

__all__ = ["add_parser"]

_LAGS = ".mix.lags"
_LENGTH = 512  # eight times the time at 1024, for the same picture
_PATIENCE = 3e11  # summed n^3 of the matrices: about 20 s
_MOST_STEPS = 12  # columns of the table over time


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "index",
        help="tell the Fredholm index of every filter of a model, and draw it",
        description="Judge every filter of a model as a Toeplitz operator: its Fredholm index, how near it is to an "
        "operator that has none, rank and condition of the matrix on n tokens, how fast the inverse grows, and its "
        "dominant lag. Prints a table and draws symbols, lags and singular values.",
    )
    parser.add_argument(
        "dir",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="folder of a run, a model or a checkpoint, or a safetensors file of the paper's research code "
        "(default: the newest run)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="the picture, .png or .pdf (default: DIR/index.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument(
        "--length",
        type=int,
        metavar="N",
        help=f"tokens of the matrix (default: the model's max_len, up to {_LENGTH})",
    )
    parser.add_argument(
        "--over-time",
        action="store_true",
        help="how index and lags moved during a run, at every evaluation (picture: DIR/index-over-time.png)",
    )
    parser.add_argument(
        "--mean",
        action=argparse.BooleanOptionalAction,
        help="whether a file of the research code with softplus lags divides by their running sum",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table, then draw."""
    if arguments.length is not None and arguments.length < 1:
        raise ValueError(f"--length must be at least 1, and is {arguments.length}")
    if arguments.no_plot and arguments.plot is not None:
        raise ValueError("--plot and --no-plot are both given: choose one")
    _one_thread()
    from tmm_core import use_backend

    # No product here is worth compiling an engine for; a choice of the user's stays.
    with nullcontext() if "TMM_BACKEND" in os.environ else use_backend("array_api"):
        return _over_time(arguments) if arguments.over_time else _now(arguments)


def _now(arguments: argparse.Namespace) -> int:
    """Judge a model as it is."""
    source, config, lags, picture = _model(arguments)
    from ..operator_pictures import WHAT_TO_SEE, plot_verdicts
    from ..operators import filters_of, judge
    from ..panels import require_picture

    filters, n = filters_of(lags, config), arguments.length or min(config.max_len, _LENGTH)
    if not arguments.no_plot:
        require_picture(picture, config.n_layers * config.mix_layers)
    if min(n, 4096) ** 3 * len(filters) > _PATIENCE:
        print(
            f"note: {len(filters)} matrices on {n} tokens take a while; --length {_LENGTH} is quicker", file=sys.stderr
        )
    verdicts = judge(filters, n)
    ranks = [None if v.section is None else v.section.rank for v in verdicts]
    summary = _summary([v.index.index for v in verdicts], [None if rank is None else n - rank for rank in ranks])
    if arguments.json:
        print(json.dumps({"model": str(source), "n": n, "filters": [_plain(v) for v in verdicts]}, indent=2))
    else:
        print(f"{source}: {_size(config)}; matrices on n = {n} tokens\n")
        _print_table(_table(verdicts, config))
        print(f"\n{summary}\n{WHAT_TO_SEE}")
    if not arguments.no_plot:
        _draw(picture, lambda: plot_verdicts(picture, verdicts, title=f"{source}\n{summary}"), quiet=arguments.json)
    return 0


def _over_time(arguments: argparse.Namespace) -> int:
    """Judge a run's lags at every evaluation."""
    run = _run(arguments.dir)
    import numpy as np

    from tmm_core import TMMConfig

    from ..operator_pictures import WHAT_TO_SEE_OVER_TIME, plot_over_time
    from ..operators import filters_of, index_of, vanishing
    from ..panels import require_picture

    config = TMMConfig.from_dict(run.description["config"])
    logs = run.logged_lags()
    if config.n_layers and not logs:
        raise FileNotFoundError(f"{run.lags} holds no lags yet: train until the first evaluation, or name another run")
    picture = arguments.plot or run.folder / "index-over-time.png"
    if not arguments.no_plot:
        require_picture(picture, config.n_layers * config.mix_layers)
    moments = [filters_of(read_tensors(path), config) for path in logs.values()] or [filters_of({}, config)]
    steps, n = list(logs), arguments.length or min(config.max_len, _LENGTH)
    found = [[index_of(f).index for f in moment] for moment in moments]
    vanished = [[vanishing(f, n) for f in moment] for moment in moments]
    summary = f"at the end: {_summary(found[-1], vanished[-1])}"
    if arguments.json:
        rows = [
            {**_place(f), "index": [now[i] for now in found], "vanishing": [now[i] for now in vanished]}
            for i, f in enumerate(moments[-1])
        ]
        print(json.dumps({"run": str(run.folder), "steps": steps, "n": n, "filters": rows}, indent=2))
    else:
        print(f"{run.folder}: {_size(config)}; the index at {len(steps)} evaluations, by step\n")
        shown = sorted({round(t) for t in np.linspace(0, len(steps) - 1, _MOST_STEPS)})
        table = [[*_place_names(config), *(str(steps[t]) for t in shown)]]
        for i, f in enumerate(moments[-1]):
            table.append([*_place_cells(f, config), *(_index_cell(found[t][i]) for t in shown)])
        _print_table(table)
        print(f"\n{summary}\n{WHAT_TO_SEE_OVER_TIME}")
    if not arguments.no_plot:
        numbers = [np.asarray(a, np.float64) for a in (found, vanished)]  # None becomes NaN
        title = f"{run.folder}, steps {steps[0]} to {steps[-1]}, n = {n} tokens\n{summary}"
        _draw(picture, lambda: plot_over_time(picture, steps, moments, *numbers, title=title), quiet=arguments.json)
    return 0


def _one_thread() -> None:
    """Let linear algebra keep to one thread: more gain little here, and beside another process cost a factor of ten.

    Read when NumPy loads: not where it is loaded already, and not where the user chose.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _model(arguments: argparse.Namespace) -> tuple[Path, TMMConfig, dict[str, Any], Path]:
    """Return where a model was found, its configuration, its lags, and where its picture goes."""
    source: Path | None = arguments.dir
    if source is not None and source.is_file():
        from ..authors import read_authors

        config, params = read_authors(plain_parameters(read_tensors(source)), mean=arguments.mean)
        lags = {name: p for name, p in params.items() if _LAGS in name}
        return source, config, lags, arguments.plot or source.with_name(f"{source.stem}-index.png")
    if arguments.mean is not None:
        raise ValueError(
            "--mean is for a file of the research code; the config.json of a folder tells it: leave it out"
        )
    from ..training.runs import model_folder, newest_run

    folder = newest_run().folder if source is None else source
    model = model_folder(folder)
    lags = read_tensors(model / WEIGHTS, containing=_LAGS)
    return model, read_config(model), lags, arguments.plot or folder / "index.png"


def _run(folder: Path | None) -> Run:
    """Return the run that a folder stands for, or that its model belongs to; None is the newest."""
    from ..training.runs import DESCRIPTION, Run, newest_run, run_of

    if folder is None:
        return newest_run()
    run = None if (folder / DESCRIPTION).is_file() else run_of(folder.absolute())
    return Run.open(folder) if run is None else run


def _draw(picture: Path, draw: Callable[[], None], *, quiet: bool) -> None:
    """Draw, and say where."""
    try:
        draw()
    except OSError as error:
        raise OSError(
            f"cannot write the picture {picture} ({error.strerror or error}): choose another --plot"
        ) from error
    print(f"picture: {picture}", file=sys.stderr if quiet else sys.stdout)


def _table(verdicts: Sequence[Verdict], config: TMMConfig) -> list[list[str]]:
    """Return the table, the heading first; what it cannot say of a filter it says why."""
    heading = ["index", "margin", "certified", "rank", "condition", "inverse/lag", "lag", "energy", ""]
    rows = [[*_place_names(config), *heading]]
    for v in verdicts:
        index = [_index_cell(v.index.index), f"{v.index.margin:.2g}", "yes" if v.index.certified else "no"]
        cells = ["-"] * 5
        if v.section is not None:
            s = v.section
            beyond = math.isinf(s.condition)
            rank = f"< {s.n}" if s.rank is None else str(s.rank)
            condition = f"> {1 / (s.n * sys.float_info.epsilon):.0e}" if beyond else f"{s.condition:.2g}"
            energy = "-" if math.isnan(v.share) else f"{v.share:.1%}"
            cells = [rank, condition, f"x {v.growth:.3g}", str(v.lag), energy]
        rows.append([*_place_cells(v.filter, config), *index, *cells, v.index.reason if v.index.index is None else ""])
    return rows


def _plain(v: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON has it: what is infinite, or not known, is null."""
    section = v.section
    numbers = {
        "rank": None if section is None else section.rank,
        "condition": None if section is None else section.condition,
        "largest_singular_value": None if section is None else section.largest,
        "smallest_singular_value": None if section is None else section.smallest,
        "inverse_growth": v.growth,
        "dominant_lag": v.lag,
        "dominant_share": v.share,
    }
    index = {"index": v.index.index, "margin": v.index.margin, "certified": v.index.certified, "reason": v.index.reason}
    known = {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}
    return {**_place(v.filter), **index, **known}


def _place(f: Filter) -> dict[str, int]:
    return {"layer": f.layer, "product": f.product, "head": f.head}


def _place_names(config: TMMConfig) -> list[str]:
    return ["layer", *(["T"] if config.mix_layers == 2 else []), "head"]


def _place_cells(f: Filter, config: TMMConfig) -> list[str]:
    return [str(f.layer), *([str(f.product)] if config.mix_layers == 2 else []), str(f.head) if config.n_heads else "-"]


def _index_cell(index: int | None) -> str:
    return "none" if index is None else str(index)


def _size(config: TMMConfig) -> str:
    each = f"{config.n_heads} heads" if config.n_heads else "one filter"
    kernel = (
        f", kernels over {config.kernel_size} channels judged by their own channel's" if config.kernel_size > 1 else ""
    )
    products = " and two products" if config.mix_layers == 2 else ""
    return f"{config.n_layers} layers of {each}{products}, {config.lags} lags{kernel}"


def _summary(indices: Sequence[int | None], vanishing: Sequence[int | None]) -> str:
    """Return how many filters have which index, and how many have how many singular values that vanish.

    >>> _summary([-1, 0, -1, None], [1, 0, 1, None])
    'index of 4 filters: 0 in 1, -1 in 2, none in 1; singular values that vanish: 0 in 1, 1 in 2, unknown in 1'
    """
    filters = f"{len(indices)} filter{'s'[: len(indices) != 1]}"
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


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print columns of numbers, on the right; a last column without a heading holds words, on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if rows[0][-1] == "":
        widths[-1] = 0
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
