"""The first product of a process: the engine compiles where nothing is kept on disk, and loads what is."""

from __future__ import annotations

import os

from tmm_lab.bench import Case, product

from . import ready

FIRST = "from tmm_lab.bench import Case, product; call = product(Case(1024, 4), 'numba')"
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
        """Choose threads for the processes, and compile once, to fill the cache of the second benchmark."""
        ready("numba")
        os.environ["NUMBA_CACHE_DIR"] = os.path.abspath(FILLED)
        product(Case(1024, 4), "numba")()

    def timeraw_empty_cache(self) -> tuple[str, str]:
        """Compile all that the product takes."""
        return "call()", f"{EMPTY}; {FIRST}"

    def timeraw_filled_cache(self) -> tuple[str, str]:
        """Load it."""
        return "call()", FIRST
