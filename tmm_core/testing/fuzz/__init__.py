"""Random calls of the public operations against their definition, and the smallest that fails: a command.

::

    python -m tmm_core.testing.fuzz --cases 1000 --seed 0

Each case is an operation, an engine, a library, dtypes, shapes, values and the ways in which the arrays are held, all
drawn from a seed and a number. What fails is made smaller and printed as code that runs. This package needs NumPy.
"""

from .cases import Case
from .draws import draw
from .shrinking import shrunk
from .verdict import verdict

__all__ = ["Case", "draw", "shrunk", "verdict"]
