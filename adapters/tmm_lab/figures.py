"""Matplotlib as pictures in files need it: whatever backend and whatever style the environment asks for.

Pictures are `matplotlib.figure.Figure`s, which choose what draws them by the file's kind; no window is ever opened.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, suppress

__all__ = ["own_style"]


def _import_matplotlib() -> None:
    """Import Matplotlib, which refuses to be where MPLBACKEND names a backend that it cannot find.

    Jupyter hands its own to the commands of its cells. What can be found still serves a program that opens windows.
    """
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = named


if "matplotlib" not in sys.modules:
    _import_matplotlib()


def own_style() -> AbstractContextManager[None]:
    """Return the context in which pictures are drawn and saved: Matplotlib's own style, not one of a `matplotlibrc`.

    Such a file may ask for what is not here, such as TeX.
    """
    import matplotlib.style

    return matplotlib.style.context("default")
