"""Options that the commands share which use a trained model: its folder, the framework and the device."""

from __future__ import annotations

import argparse
from pathlib import Path

from tmm_core.errors import MissingFileError

__all__ = ["add_model_options", "check_tokenizer"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the model, the framework and the device."""
    parser.add_argument(
        "dir", nargs="?", type=Path, metavar="DIR", help="folder of a run or of a model (default: the newest run)"
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


def check_tokenizer(folder: Path) -> None:
    """Refuse a model folder that has lost its tokenizer: without one it would be read as a model of bytes.

    Raises
    ------
    FileNotFoundError
        If its vocabulary is not that of bytes, and no run says that bytes are what it was trained on.
    """
    from tmm_adapters.pretrained import read_config
    from tmm_adapters.tokenizers import missing_tokenizer

    from ..training.runs import run_of

    reason = missing_tokenizer(folder, read_config(folder).vocab_size)
    if reason is not None and run_of(folder) is None:
        raise MissingFileError(reason)
