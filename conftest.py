"""Where a backend's library is not installed, its modules cannot be imported, and have no doctests to run.

`tests/conftest.py` fails the run where `TMM_TEST_REQUIRE` names such a library.
"""

import importlib.util

collect_ignore = [
    f"backends/tmm_backends/_{name}"
    for name in ("cupy", "jax", "numba", "torch")
    if importlib.util.find_spec(name) is None
]
