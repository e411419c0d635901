"""The laws of the products as checks that any backend and any array library can be put through.

A stranger's backend passes when every law holds for every library that it serves::

    from tmm_core.testing import LAWS, STREAMING_LAWS, installed_libraries
    for library in installed_libraries():
        for law in (*LAWS, *STREAMING_LAWS):
            law(library, "mybackend")

and, with a library that differentiates, `check_gradients`. This module needs NumPy, which computes the oracles.
"""

from .libraries import GPU_LIBRARIES, LIBRARIES, Library, get_library, installed_libraries
from .products import (
    BATCH_LAWS,
    ERROR_CONSTANT,
    LAWS,
    STREAMING_ERROR_CONSTANT,
    STREAMING_LAWS,
    check_gradients,
)

__all__ = [
    "BATCH_LAWS",
    "ERROR_CONSTANT",
    "GPU_LIBRARIES",
    "LAWS",
    "LIBRARIES",
    "STREAMING_ERROR_CONSTANT",
    "STREAMING_LAWS",
    "Library",
    "check_gradients",
    "get_library",
    "installed_libraries",
]
