"""The laws as checks that any backend and any array library can be put through.

A backend passes when every law holds for every library that it serves, which one call tries::

    from tmm_core.testing import check_backend
    check_backend("mine")

This package needs NumPy, which computes the oracles.
"""

from ..backend import ERROR_CONSTANT
from .batches import BATCH_LAWS
from .laws import LAWS, check_backend
from .libraries import GPU_LIBRARIES, LIBRARIES, Library, get_library, installed_libraries
from .products import check_gradients
from .streaming import STREAMING_LAWS
from .streams import STREAMING_ERROR_CONSTANT

__all__ = [
    "BATCH_LAWS",
    "ERROR_CONSTANT",
    "GPU_LIBRARIES",
    "LAWS",
    "LIBRARIES",
    "STREAMING_ERROR_CONSTANT",
    "STREAMING_LAWS",
    "Library",
    "check_backend",
    "check_gradients",
    "get_library",
    "installed_libraries",
]
