"""All laws, and the one call that puts a backend through them."""

from __future__ import annotations

import numpy as np

from ..backend import Request, Streamer, device_kind, get_backend
from ..errors import InputError
from ._calls import Law
from .accuracy import ACCURACY_LAWS
from .batches import BATCH_LAWS
from .libraries import Library, installed_libraries
from .products import PRODUCT_LAWS, check_gradients, check_solve
from .streaming import STREAMING_LAWS

__all__ = ["LAWS", "check_backend"]

LAWS: tuple[Law, ...] = (*PRODUCT_LAWS, *ACCURACY_LAWS, *BATCH_LAWS)
"""The laws of products and batches, as functions of a library and the name of a backend; a broken one raises
AssertionError. Those of streams are `STREAMING_LAWS`, and that of derivatives is `check_gradients`."""


def check_backend(name: str, *libraries: Library) -> None:
    """Put a backend through every law that concerns it, on the arrays that it serves.

    Parameters
    ----------
    name : str
        A registered backend.
    *libraries : Library
        Those whose arrays are tried; all that are installed, unless any is given.

    Raises
    ------
    AssertionError
        If a law is broken; the message says which, and how far the result is from the one expected.
    LookupError
        If the backend is not registered or cannot be loaded.
    ValueError
        If it serves none of the libraries in float32, so that nothing would be checked.

    Notes
    -----
    A backend is left in peace with dtypes that it says beforehand not to support. Streams are tried where its engine
    is a `Streamer`, derivatives where the library differentiates. Seconds for NumPy, minutes for libraries that
    compile.
    """
    checked = False
    for library in libraries or installed_libraries():
        served = _served(name, library)
        if served is None:
            continue
        checked = True
        laws = [law for law in LAWS if law is not check_solve or "float64" in served.dtypes]
        if isinstance(get_backend(name).engine, Streamer):
            laws += STREAMING_LAWS
        if served.vjp is not None and "float64" in served.dtypes:
            laws.append(check_gradients)
        for law in laws:
            law(served, name)
    if not checked:
        raise InputError(f"backend {name!r} serves none of these libraries in float32, so no law was checked")


def _served(name: str, library: Library) -> Library | None:
    """Return a library with the dtypes that a backend supports, or None if float32 is not among them."""
    engine, device = get_backend(name).engine, device_kind(library.asarray(np.zeros(1), "float32"))
    dtypes = [dtype for dtype in library.dtypes if engine.unsupported(Request(dtype, device)) is None]
    return library.restricted(*dtypes) if "float32" in dtypes else None
