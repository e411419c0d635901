"""What the commands that use a trained model share: the options that say where it is, and on what it computes."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_model_options"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the model, the framework and the device."""
    parser.add_argument(
        "dir", nargs="?", type=Path, metavar="DIR", help="folder of a run or of a model (default: the newest run)"
    )
    parser.add_argument(
        "--framework",
        choices=("auto", "torch", "jax"),
        default="auto",
        help="what computes, whichever trained the model; auto is PyTorch where it is installed (default: auto)",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="where to compute (default: auto)"
    )
