"""Random calls of the public operations against their definition, and the smallest that fails: a command.

::

    python -m tmm_core.testing.fuzz --cases 1000 --seed 0 --jobs 2

Each case is an operation, an engine, a library, dtypes, shapes, values and the ways in which the arrays are held, all
drawn from a seed and a number. What fails is made smaller and printed as code that runs. This package needs NumPy.

Hypothesis would draw and shrink, too. But every new shape is a new program to JAX, so that structures come from a small
pool, which it could not shrink, nor numbers that NumPy draws. And it ends soon after the first failure, where a long
run is to find one of each kind.
"""

from .cases import OPERATIONS, Case
from .draws import draw
from .kinds import KINDS, kinds
from .shrinking import shrunk
from .verdict import verdict

__all__ = ["KINDS", "OPERATIONS", "Case", "draw", "kinds", "shrunk", "verdict"]
