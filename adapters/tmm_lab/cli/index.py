"""`tmm index`: each filter of a trained model as a Toeplitz operator, in a table and in a picture."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmm_adapters.pretrained import WEIGHTS, read_config, read_tensors
from tmm_adapters.words import counted
from tmm_core.errors import InputError, MissingFileError

from ..progress import note, waiting
from ..tables import filled, numbers, terminal_width
from .fields import path
from .model_options import model_folder, newest_run

if TYPE_CHECKING:
    from tmm_adapters.architecture import ModelConfig
    from tmm_core import TMMConfig

    from ..training.runs import Run

__all__ = ["add_parser"]

_LAGS = ".mix.lags"
_LENGTH = 512  # eight times the time at 1024, for the same picture
_SLOW = 3e11  # summed n^3 of the matrices: about 20 s
_MOST_STEPS = 12  # columns of the table over time


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `tmm`."""
    parser = commands.add_parser(
        "index",
        help="compute the Fredholm index of each filter of a model, and draw it",
        description="Analyse each filter of a model as a Toeplitz operator: its Fredholm index, the margin to an "
        "operator without one, rank and condition of the matrix on n tokens, how fast the inverse grows, and the "
        "dominant lag. Prints a table, and draws symbols, lags and singular values.",
    )
    parser.add_argument(
        "dir",
        nargs="?",
        type=path,
        metavar="DIR",
        help="folder of a run, a model or a checkpoint, or a safetensors file of the paper's research code "
        "(default: the newest run)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--plot", type=path, metavar="FILE", help="the picture, .png or .pdf (default: DIR/index.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw no picture")
    parser.add_argument(
        "--length",
        type=int,
        metavar="N",
        help=f"size n of the matrix in tokens (default: the model's max_len, at most {_LENGTH})",
    )
    parser.add_argument(
        "--over-time",
        action="store_true",
        help="show index and lags at each evaluation of a run (picture: DIR/index-over-time.png)",
    )
    parser.add_argument(
        "--mean",
        action=argparse.BooleanOptionalAction,
        help="for a file of the research code with softplus lags: whether the model divides by their running sum",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table, then draw."""
    if arguments.length is not None and arguments.length < 1:
        raise InputError(f"--length must be at least 1, and is {arguments.length}")
    if arguments.no_plot and arguments.plot is not None:
        raise InputError("--plot and --no-plot are both given: choose one")
    _one_thread()
    from tmm_core import use_backend

    # No product here is worth compiling an engine for; a choice of the user's stays.
    with nullcontext() if _chosen_backend() else use_backend("array_api"):
        return _over_time(arguments) if arguments.over_time else _now(arguments)


def _now(arguments: argparse.Namespace) -> int:
    """Analyse a model as it is."""
    source, config, lags, picture = _model(arguments)
    from ..operators.filters import analyse, filters_of
    from ..operators.tables import WHAT_TO_SEE, filter_table, plain, size_of, summary_of

    filters, n = filters_of(lags, config), arguments.length or min(config.max_len, _LENGTH)
    if not arguments.no_plot:
        _require_picture(picture, config)
    _warn_if_slow(len(filters), n)
    reports = analyse(filters, n)
    summary = summary_of([r.index.index for r in reports], [r.vanishing for r in reports])
    if arguments.json:
        print(json.dumps({"model": str(source), "n": n, "filters": [plain(r) for r in reports]}, indent=2))
    else:
        print(filled(f"{source}: {size_of(config)}; matrices on n = {counted(n, 'token')}") + "\n")
        _print(filter_table(reports, config), f"{summary}\n{WHAT_TO_SEE}", ["", *(r.reason for r in reports)])
    if not arguments.no_plot:
        from ..operators.pictures import plot_filters

        _draw(picture, lambda: plot_filters(picture, reports, title=f"{source}\n{summary}"), quiet=arguments.json)
    return 0


def _over_time(arguments: argparse.Namespace) -> int:
    """Analyse the lags of a run at each evaluation."""
    run = _run(arguments.dir)
    import numpy as np

    from ..operators.filters import filters_of, index_of, vanishing
    from ..operators.tables import WHAT_TO_SEE_OVER_TIME, coordinates, size_of, summary_of, table_over_time

    config = _tmm(run.parsed().config, run.folder)
    logs = run.logged_parameters()
    if config.n_layers and not logs:
        raise MissingFileError(
            f"{run.parameters} holds no lags yet: train until the first evaluation, or name another run"
        )
    picture = arguments.plot or run.folder / "index-over-time.png"
    if not arguments.no_plot:
        _require_picture(picture, config)
    evaluations = [filters_of(read_tensors(path), config) for path in logs.values()] or [filters_of({}, config)]
    steps, n = list(logs), arguments.length or min(config.max_len, _LENGTH)
    _warn_if_slow(len(evaluations) * len(evaluations[-1]), n)
    found: list[list[int | None]] = []
    vanished: list[list[int | None]] = []
    with waiting("analysing filters", sum(map(len, evaluations))) as advance:
        for evaluation in evaluations:
            found.append([index_of(f).index for f in evaluation])
            vanished.append([vanishing(f, n) for f in evaluation])
            advance(len(evaluation))
    summary = f"at the end: {summary_of(found[-1], vanished[-1])}"
    if arguments.json:
        rows = [
            {**coordinates(f), "index": [now[i] for now in found], "vanishing": [now[i] for now in vanished]}
            for i, f in enumerate(evaluations[-1])
        ]
        print(json.dumps({"run": str(run.folder), "steps": steps, "n": n, "filters": rows}, indent=2))
    else:
        moments = counted(len(steps), "evaluation")
        print(filled(f"{run.folder}: {size_of(config)}; the index at {moments}, by step") + "\n")
        shown = sorted({round(t) for t in np.linspace(0, len(steps) - 1, _MOST_STEPS)})
        _print(table_over_time(evaluations[-1], steps, found, shown, config), f"{summary}\n{WHAT_TO_SEE_OVER_TIME}")
    if not arguments.no_plot:
        from ..operators.pictures import plot_over_time

        numbers = [np.asarray(a, np.float64) for a in (found, vanished)]  # None becomes NaN
        title = f"{run.folder}, steps {steps[0]} to {steps[-1]}, n = {n} tokens\n{summary}"
        _draw(picture, lambda: plot_over_time(picture, steps, evaluations, *numbers, title=title), quiet=arguments.json)
    return 0


def _print(rows: Sequence[Sequence[str]], words: str, notes: Sequence[str] = ()) -> None:
    """Print a table, which layer and head name the rows of, and what to say of it."""
    keys = rows[0].index("head") + 1
    print(numbers(rows, keys=keys, width=terminal_width(), notes=notes), filled(words), sep="\n\n")


def _warn_if_slow(matrices: int, n: int) -> None:
    """Say on stderr, before it begins, that so many matrices on n tokens take long."""
    from ..operators.spectra import DENSE

    if matrices * min(n, DENSE) ** 3 > _SLOW:
        quicker = f"; --length {_LENGTH} is quicker" if n > _LENGTH else ""
        note(f"{matrices} matrices on {counted(n, 'token')} take a while{quicker}")


def _chosen_backend() -> bool:
    """Whether the user chose a backend; as in `tmm_core`, an empty variable is none."""
    return bool(os.environ.get("TMM_BACKEND", "").strip())


def _one_thread() -> None:
    """Let linear algebra use one thread, unless the user chose: more gain little, and cost much beside other processes.

    OpenBLAS reads the variable when NumPy is imported.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _model(arguments: argparse.Namespace) -> tuple[Path, TMMConfig, dict[str, Any], Path]:
    """Return where a model was found, its configuration, its lags, and where its picture goes."""
    source: Path | None = arguments.dir
    if source is not None and source.is_file():
        from tmm_adapters.research_code import from_research_code

        config, params = from_research_code(read_tensors(source), mean=arguments.mean)
        lags = {name: p for name, p in params.items() if _LAGS in name}
        return source, config, lags, arguments.plot or source.with_name(f"{source.stem}-index.png")
    if arguments.mean is not None:
        raise InputError(
            "--mean is for a file of the research code; the config.json of a folder tells it: leave it out"
        )
    folder = newest_run().folder if source is None else source
    model = model_folder(folder)
    lags = read_tensors(model / WEIGHTS, containing=_LAGS)
    return model, _tmm(read_config(model), model), lags, arguments.plot or folder / "index.png"


def _tmm(config: ModelConfig, folder: Path) -> TMMConfig:
    """Return the configuration of a folder, refused where its model has no Toeplitz operators."""
    from tmm_core import TMMConfig

    if not isinstance(config, TMMConfig):
        raise InputError(f"{folder} holds a model of the architecture {config.model_type!r}, which has no filters")
    return config


def _run(folder: Path | None) -> Run:
    """Return the run that a folder stands for, or that its model belongs to; None is the newest."""
    from tmm_adapters.checkpoints import DESCRIPTION

    from ..training.listing import run_of
    from ..training.runs import Run

    if folder is None:
        return newest_run()
    run = None if (folder / DESCRIPTION).is_file() else run_of(folder)
    return Run.open(folder) if run is None else run


def _require_picture(picture: Path, config: TMMConfig) -> None:
    """Refuse a picture that cannot be written; Matplotlib is imported only where one is drawn."""
    from ..operators.panels import require_picture

    require_picture(picture, config.n_layers * config.mix_layers)


def _draw(picture: Path, draw: Callable[[], None], *, quiet: bool) -> None:
    """Draw, and say where."""
    with waiting("drawing"):
        draw()
    print(f"picture: {picture}", file=sys.stderr if quiet else sys.stdout)
