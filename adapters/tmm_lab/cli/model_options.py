"""Options that the commands share which use a trained model: its folder, the framework and the device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tmm_core import available_backends, chosen_backend, get_backend

from ..progress import note
from .fields import path

if TYPE_CHECKING:
    from ..training.runs import Run

__all__ = ["add_model_options", "check_backend", "model_folder", "newest_run"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the model, the framework and the device."""
    parser.add_argument(
        "dir", nargs="?", type=path, metavar="DIR", help="folder of a run or of a model (default: the newest run)"
    )
    parser.add_argument(
        "--framework",
        choices=("auto", "torch", "jax"),
        default="auto",
        help="what computes, whichever trained the model; auto is PyTorch if it is installed (default: auto)",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="where to compute (default: auto)"
    )


def check_backend(name: str | None = None) -> None:
    """Refuse a choice of a backend that is unknown or not installed, before a framework is imported.

    Raises
    ------
    LookupError
        If `name`, or without one the environment variable TMM_BACKEND, chooses such a backend.
    """
    chosen = chosen_backend(name)
    if chosen not in ("auto", *available_backends()):
        get_backend(chosen)  # says why


def model_folder(folder: Path | None) -> Path:
    """Return the model folder that a folder stands for, None for the newest run; say what was passed over.

    Raises
    ------
    FileNotFoundError
        If there is no model in it that can be used.
    """
    from tmm_adapters.checkpoints import find_model

    found, skipped = find_model(newest_run().folder if folder is None else folder)
    _say_skipped(skipped)
    return found


def newest_run(*, unfinished: bool = False) -> Run:
    """Return the newest run, or the newest that is not finished; say what was passed over.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    from ..training.listing import newest_run

    run, skipped = newest_run(unfinished=unfinished)
    _say_skipped(skipped)
    return run


def _say_skipped(reasons: Sequence[str]) -> None:
    """Say on stderr what was passed over, and why."""
    for reason in reasons:
        note(f"skipped {reason}")
