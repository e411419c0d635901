"""The first product of a process: the engine compiles where nothing is kept on disk, and loads what is."""

from __future__ import annotations

import os

from . import measures, ready
from .product import Case

CALL = "tmm_core.causal_toeplitz_matmul(w, x, backend='numba')"
ARRAYS = "import numpy as np, tmm_core; w, x = np.ones((4, 1024), 'f4'), np.ones((8, 1024, 512), 'f4')"
# Within the temporary folder that asv runs a benchmark in, and removes.
EMPTY = "import os, tempfile; os.environ['NUMBA_CACHE_DIR'] = tempfile.mkdtemp(dir='.')"
FILLED = "cache"


class FirstCall:
    """Seconds of a product, import of the engine included, each in a new process."""

    number = 1
    repeat = 3
    rounds = 1
    warmup_time = 0

    def setup(self) -> None:
        """Compile once, to fill the cache of the second benchmark."""
        ready("numba")
        os.environ["NUMBA_CACHE_DIR"] = os.path.abspath(FILLED)
        Case(1024, 4).product("numba")()

    @measures("first product of a process, which compiles")
    def timeraw_empty_cache(self) -> tuple[str, str]:
        """Compile all that the product takes."""
        return CALL, f"{EMPTY}; {ARRAYS}"

    @measures("first product of a process, compiled before")
    def timeraw_filled_cache(self) -> tuple[str, str]:
        """Load it."""
        return CALL, ARRAYS
